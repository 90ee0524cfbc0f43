"""Durable readers: a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracker.cli.tables import Column
from tracker.client import SubscriptionStatus
from tracker.client.texts import text

SUBSCRIPTIONS: Final[Sequence[Column[SubscriptionStatus]]] = [
    Column("NAME", lambda each: each.name),
    Column("SEGMENTS", lambda each: each.segments or "all"),
    Column("SCOPES", lambda each: each.scopes or "all"),
    Column("ACKNOWLEDGED", lambda each: each.acknowledged),
    Column("KEPT", lambda each: each.retained),
    Column("OLDEST KEPT", lambda each: each.oldest_retained),
    Column("MAX AGE", lambda each: each.max_age),
    Column("LAST ACK", lambda each: each.last_ack),
    Column("STATE", lambda each: _state(each), style=lambda each: "red" if each.expired else ""),
    Column("MAX EVENTS", lambda each: each.max_events, wide=True),
    Column("CREATED", lambda each: each.created, wide=True),
]


def _state(subscription: SubscriptionStatus) -> str:
    if subscription.expired is None:
        return "active"
    return f"expired {text(subscription.expired)}: {subscription.expired_because}"
