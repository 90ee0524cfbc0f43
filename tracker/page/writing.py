"""Events and explanations as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tracker.client.texts import why_open
from tracker.contract.events import (
    Advanced,
    Body,
    DrainCancelled,
    Drained,
    DrainRequested,
    DrainTimedOut,
    Ended,
    Event,
    Excess,
    FrontIdle,
    Late,
    Stalled,
)
from tracker.contract.status import Explained, JobStatus, SegmentStatus
from tracker.contract.values import DrainMode, Reason

from .overview import Json, millis, time

_MOST_SEGMENTS: Final = 200  #: of an explained substream
_MOST_REASONS: Final = 100
_DRAINS: Final[Mapping[type, str]] = {
    DrainRequested: "drain requested",
    Drained: "drained",
    DrainTimedOut: "drain not over in time",
    DrainCancelled: "drain cancelled",
}


def event(one: Event) -> Json:
    """Return an event: its kind, its substream if it has one, and the rest in words."""
    body = one.kind
    head: Json = {"seq": one.seq, "at": millis(one.at_ns), "kind": type(body).__name__}
    match body:
        case Ended():
            lost = "" if body.reason is Reason.COMPLETE else f", {body.reason}: {body.in_flight} not received"
            of = "" if body.expected is None else f" of {body.expected}"
            drain = ", closed by a drain" if body.by_drain else ""
            said = f"{body.elements}{of} elements{lost}{drain}"
            return head | {"segment": body.segment, "scope": body.scope, "name": body.name, "text": said}
        case Late():
            said = f"{body.sent} sent, {body.received} received by {body.producer}"
            return head | {"segment": body.segment, "scope": body.scope, "name": body.name, "text": said}
        case Stalled():
            of = f", {body.sent} of {body.expected} sent" if body.expected else ""
            where = ", ".join(body.segments[:5])
            return head | {
                "segment": where,
                "scope": body.scope,
                "name": body.name,
                "text": f"{body.in_flight} in flight{of}",
            }
        case Excess():
            said = f"{body.sent} sent, only {body.expected} expected"
            return head | {"segment": body.segment, "scope": body.scope, "name": body.name, "text": said}
        case FrontIdle():
            return head | {"text": f"front {body.front} {'is idle' if body.idle else 'is active again'}"}
        case Advanced():
            return head | {"segment": body.segment, "text": f"everything up to {time(body.time)}"}
        case _:
            return head | {"text": f"{_DRAINS[type(body)]} ({body.drain_id}){_to_hand_over(body)}"}


def _to_hand_over(body: Body) -> str:
    hands_over = isinstance(body, DrainRequested | Drained) and body.mode is DrainMode.HAND_OVER
    return ", to hand over" if hands_over else ""


def explanation(job: JobStatus, found: Explained, scope: str, name: str) -> Json:
    """Return why a substream is open: the sentences of `tracker explain`, and its account on each segment."""
    substream = found.substream
    reasons = list(why_open(job, found))
    head: Json = {
        "scope": scope,
        "name": name,
        "known": substream is not None,
        "named": substream is not None or bool(found.staged),
        "reasons": reasons[:_MOST_REASONS],
        "more_reasons": max(0, len(reasons) - _MOST_REASONS),
    }
    if substream is None:
        return head
    # What is not over comes first, and what has elements in flight before the rest.
    segments = sorted(substream.segments, key=lambda each: (each.ended, _balanced(each)))
    return head | {
        "ended": all(each.ended for each in substream.segments),
        "end_time": time(substream.end_time),
        "created": millis(substream.created_ns),
        "changed": millis(substream.changed_ns),
        "late": substream.late_reports,
        "by_drain": [each.segment for each in substream.segments if each.by_drain][:_MOST_SEGMENTS],
        "segments": [_segment(each) for each in segments[:_MOST_SEGMENTS]],
        "more_segments": max(0, len(segments) - _MOST_SEGMENTS),
    }


def _balanced(segment: SegmentStatus) -> bool:
    return segment.sent == segment.received and not segment.xor


def _segment(segment: SegmentStatus) -> dict[str, Any]:
    return {
        "name": segment.segment,
        "state": "ended" if segment.ended else "closed" if segment.closed else "open",
        "balanced": _balanced(segment),
        "sent": segment.sent,
        "received": segment.received,
        "expected": segment.expected,
        "sender": segment.last_sender,
        "receiver": segment.last_receiver,
    }
