"""What a snapshot keeps of a job's events and of those who read them durably, and back again (see `codec`)."""

from __future__ import annotations

from typing import Any

from .dropped import Dropped
from .filters import EventFilter
from .log import EventLog
from .subscriptions import Subscription, Subscriptions


def dump_log(log: EventLog) -> dict[str, Any]:
    return {
        "log_id": log.log_id,
        "first_seq": log._first,
        "events": log._events[log._passed :],
        "retained": [[seq, *kept] for seq, kept in log.retained._events.items()],
        "dropped": dump_dropped(log.dropped),
    }


def load_log(values: dict[str, Any]) -> EventLog:
    """Who waits for what is retained is found when the subscriptions are loaded."""
    log = EventLog(values["log_id"])
    log._first = values["first_seq"]
    # Version 0.1 dumped neither of the two: whatever was before the first event had been dropped.
    log.dropped = load_dropped(values["dropped"]) if "dropped" in values else Dropped(values["first_seq"] - 1)
    for seq, *kept in values.get("retained", ()):
        log.retained.add(seq, tuple(kept), 0)
    log._events = list(map(tuple, values["events"]))
    return log


def dump_dropped(dropped: Dropped) -> list[Any]:
    places = [[segment, scope, seq] for (segment, scope), seq in dropped._places.items()]
    return [dropped.last, dropped._everywhere, places, list(dropped._segments.items())]


def load_dropped(values: list[Any]) -> Dropped:
    last, everywhere, places, segments = values
    dropped = Dropped(last)
    dropped._everywhere = everywhere
    dropped._places = {(segment, scope): seq for segment, scope, seq in places}
    dropped._segments = dict(map(tuple, segments))
    return dropped


def dump_subscriptions(subscriptions: Subscriptions) -> list[Any]:
    """What each waits for follows from the log."""
    return [
        [
            each.name,
            sorted(each.wanted.segments),
            sorted(each.wanted.scopes),
            each.acknowledged,
            each.max_age,
            each.max_events,
            each.created,
            each.last_ack,
            each.expired,
            each.expired_because,
        ]
        for each in subscriptions._by_name.values()
    ]


def load_subscriptions(log: EventLog, values: list[Any]) -> Subscriptions:
    subscriptions = Subscriptions(log)
    for name, segments, scopes, *rest in values:
        subscriptions.restore(Subscription(name, EventFilter(segments, scopes), *rest))
    subscriptions.release_unclaimed()
    return subscriptions
