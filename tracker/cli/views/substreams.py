"""Substreams: a row for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tracker.cli.tables import Column
from tracker.client import SegmentStatus, SubstreamStatus
from tracker.client.texts import ago, time_text

SUBSTREAMS: Final[Sequence[Column[SubstreamStatus]]] = [
    Column("SCOPE", lambda each: each.scope),
    Column("NAME", lambda each: each.name),
    Column("END TIME", lambda each: time_text(each.end_time)),
    Column("STATE", lambda each: _state(each)),
    Column("IN FLIGHT", lambda each: each.in_flight, style=lambda each: "yellow" if each.in_flight else ""),
    Column("WAITS FOR", lambda each: waits_for(each)),
    Column("SEGMENTS (RECEIVED/SENT)", lambda each: [_account(segment) for segment in each.segments]),
    Column("CHANGED", lambda each: ago(each.changed)),
    Column("LATE", lambda each: each.late_reports, wide=True),
    Column("LAST SENDERS", lambda each: _names(segment.last_sender for segment in each.segments), wide=True),
    Column("LAST RECEIVERS", lambda each: _names(segment.last_receiver for segment in each.segments), wide=True),
    Column("CREATED", lambda each: each.created, wide=True),
]


def waits_for(substream: SubstreamStatus) -> list[str]:
    """Return what a substream waits for: fronts that have not closed it, elements, and commits that producers owe."""
    uneven = [each.segment for each in substream.segments if not each.ended and not is_even(each)]
    return [
        *substream.waiting_for,
        *(f"elements on {segment}" for segment in uneven),
        *(f"a commit of {producer}" for producer in substream.held_by),
    ]


def is_even(segment: SegmentStatus) -> bool:
    """Return whether all that was sent on a segment, or is expected there, was received."""
    return segment.sent == segment.received and not segment.xor and not segment.missing


def _names(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name})


def _state(substream: SubstreamStatus) -> str:
    if all(segment.ended for segment in substream.segments):
        return "ended by a drain" if substream.by_drain else "ended"
    return "closed" if substream.closed else "open"


def _account(segment: SegmentStatus) -> str:
    note = (" ended by a drain" if segment.by_drain else " ended") if segment.ended else ""
    if segment.xor and segment.sent == segment.received:
        note = " other elements were received than were sent"
    of = "" if segment.expected is None else f" of {segment.expected}"
    return f"{segment.segment} {segment.received}/{segment.sent}{of}{note}"
