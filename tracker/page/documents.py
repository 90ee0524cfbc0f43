"""Jobs, open substreams, events and explanations as JSON of bounded size.

Of very many fronts, scopes or producers, a document has those that hold others up.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, TypeAlias

from tracker.client.texts import time_text, why_open
from tracker.contract.events import (
    Advanced,
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
from tracker.contract.status import (
    DrainStatus,
    Explained,
    FrontStatus,
    JobStatus,
    OpenSubstream,
    ProducerStatus,
    SegmentStatus,
    Survey,
)
from tracker.contract.values import EVERY_SCOPE, DrainMode

Json: TypeAlias = dict[str, Any]

_MOST: Final = 100  #: fronts, producers or names that are listed
_MOST_SEGMENTS: Final = 400
_MOST_SCOPES: Final = 3  #: of a front
_MOST_ACCOUNTS: Final = 200  #: segments of an explained substream


def glance(status: JobStatus) -> Json:
    """Return a line in the list of jobs."""
    return {
        "job": status.spec.job,
        "deployment": status.spec.deployment,
        "open": status.open_substreams,
        "ended": status.ended_substreams,
        "in_flight": status.in_flight,
        "late": status.late_reports,
        "drain": status.drain.state.name.lower(),
        "fronts": len(status.fronts),
        "finished_fronts": sum(front.finished for front in status.fronts),
        "idle_fronts": sum(front.idle and not front.finished for front in status.fronts),
        "producers": sum(not producer.closed for producer in status.producers),
        "contact": millis(max((producer.last_heard_ns for producer in status.producers), default=None)),
    }


def overview(status: JobStatus) -> Json:
    """Return a job's numbers, segments, fronts, producers and drain."""
    spec = status.spec
    segments = dict(islice(spec.segments.items(), _MOST_SEGMENTS))
    place = {name: at for at, name in enumerate(segments)}
    unread = set(status.unread_segments)
    return {
        **glance(status),
        "ordering": spec.ordering,
        "staged_substreams": status.staged_substreams,
        "incomplete": status.incomplete_substreams,
        "expected": status.expected,
        "expected_sent": status.expected_sent,
        "first_seq": status.first_seq,
        "last_seq": status.last_seq,
        "segments": [
            {
                "name": name,
                "feeds": [place[fed] for fed in feeds if fed in place],
                "unread": name in unread,
            }
            for name, feeds in segments.items()
        ],
        "more_segments": len(spec.segments) - len(segments),
        "front_list": [
            _front(front) for front in nsmallest(_MOST, status.fronts, key=lambda front: (front.finished, _all(front)))
        ],
        "producer_list": [
            _producer(producer)
            for producer in nsmallest(
                _MOST, status.producers, key=lambda each: (not each.staged_epochs, each.closed, each.producer)
            )
        ],
        "all_producers": len(status.producers),
        "drain_status": _drain(status.drain),
    }


def _all(front: FrontStatus) -> int:
    return front.frontiers.get(EVERY_SCOPE, -(2**63))


def _front(front: FrontStatus) -> Json:
    scoped = [(time, scope) for scope, time in front.frontiers.items() if scope != EVERY_SCOPE]
    slowest = nsmallest(_MOST_SCOPES, scoped)
    state = "finished" if front.finished else "idle" if front.idle else "open" if front.producer else "silent"
    return {
        "name": front.front,
        "state": state,
        "producer": front.producer,
        "feeds": list(front.segments[:_MOST]),
        "frontier": time(front.frontiers.get(EVERY_SCOPE)),
        "scopes": len(scoped),
        "slowest": [[scope, time(at)] for at, scope in slowest],
        "last_promise": millis(front.last_promise_ns),
    }


def _producer(producer: ProducerStatus) -> Json:
    staged = producer.staged_epochs
    return {
        "name": producer.producer,
        "run": producer.run,
        "mode": producer.mode,
        "committed": None if producer.committed_epoch is None else str(producer.committed_epoch),
        "staged": len(staged),
        "staged_from": str(staged[0]) if staged else None,
        "staged_to": str(staged[-1]) if staged else None,
        "closed": producer.closed,
        "contact": millis(producer.last_heard_ns),
    }


def _drain(drain: DrainStatus) -> Json:
    return {
        "state": drain.state.name.lower(),
        "id": drain.drain_id,
        "hands_over": drain.mode is DrainMode.HAND_OVER,
        "unbalanced_segments": list(drain.unbalanced_segments[:_MOST]),
        "unfinished_fronts": list(drain.unfinished_fronts[:_MOST]),
        "all_unfinished_fronts": len(drain.unfinished_fronts),
        "open": drain.open_substreams,
        "in_flight": drain.in_flight,
        "uncommitted": list(drain.uncommitted_producers[:_MOST]),
        "all_uncommitted": len(drain.uncommitted_producers),
        "open_producers": list(drain.open_producers[:_MOST]),
        "all_open_producers": len(drain.open_producers),
    }


def surveyed(survey: Survey) -> Json:
    """Return what open substreams wait for, in numbers."""
    fronts = sorted(survey.fronts.items(), key=lambda each: (-each[1], each[0]))
    return {
        "looked": survey.looked,
        "fronts": [list(each) for each in fronts[:_MOST]],
        "all_fronts": survey.all_fronts,
        "segments": dict(sorted(survey.segments.items(), key=lambda each: -each[1])[:_MOST_SEGMENTS]),
        "in_flight": {name: count for name, count in survey.in_flight.items() if count},
        "staged": survey.staged,
        "ordered": survey.ordered,
        "stalled": survey.stalled,
        "oldest": [open_substream(each) for each in survey.oldest],
    }


def open_substream(one: OpenSubstream) -> Json:
    """Return a line in the list of open substreams."""
    return {
        "scope": one.scope,
        "name": one.name,
        "end_time": time(one.end_time),
        "created": millis(one.created),
        "changed": millis(one.changed),
        "fronts": list(one.fronts),
        "more_fronts": one.more_fronts,
        "unbalanced": [[each.segment, each.sent, each.received] for each in one.unbalanced],
        "more_unbalanced": one.more_unbalanced,
        "in_flight": one.in_flight,
        "staged": one.staged,
        "ordered": one.ordered,
        "stalled": one.stalled,
    }


def time(value: int | None) -> str | None:
    """Return an end time or a frontier, as text: a browser's numbers are too short for it."""
    return None if value is None else str(time_text(value))


def millis(moment: int | None) -> int | None:
    """Return a moment in milliseconds, as browsers count."""
    return None if moment is None else moment // 1_000_000


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
        case Ended() | Late() | Excess() | Stalled():
            where = ", ".join(body.segments[:5]) if isinstance(body, Stalled) else body.segment
            return head | {"segment": where, "scope": body.scope, "name": body.name, "text": body.account}
        case FrontIdle():
            return head | {"text": f"front {body.front} {'is idle' if body.idle else 'is active again'}"}
        case Advanced():
            return head | {"segment": body.segment, "text": f"everything up to {time(body.time)}"}
        case _:
            hands_over = isinstance(body, DrainRequested | Drained) and body.mode is DrainMode.HAND_OVER
            return head | {"text": f"{_DRAINS[type(body)]} ({body.drain_id}){', to hand over' * hands_over}"}


def explanation(job: JobStatus, found: Explained, scope: str, name: str) -> Json:
    """Return why a substream is open: the sentences of `tracker explain`, and its account on each segment."""
    substream = found.substream
    reasons = list(why_open(job, found))
    head: Json = {
        "scope": scope,
        "name": name,
        "known": substream is not None,
        "named": substream is not None or bool(found.staged),
        "reasons": reasons[:_MOST],
        "more_reasons": max(0, len(reasons) - _MOST),
    }
    if substream is None:
        return head
    # Segments on which the substream is open come first, and those with elements in flight before the rest.
    segments = sorted(substream.segments, key=lambda each: (each.ended, _balanced(each)))
    return head | {
        "ended": all(each.ended for each in substream.segments),
        "end_time": time(substream.end_time),
        "created": millis(substream.created_ns),
        "changed": millis(substream.changed_ns),
        "late": substream.late_reports,
        "by_drain": [each.segment for each in substream.segments if each.by_drain][:_MOST_ACCOUNTS],
        "segments": [_segment(each) for each in segments[:_MOST_ACCOUNTS]],
        "more_segments": max(0, len(segments) - _MOST_ACCOUNTS),
    }


def _balanced(segment: SegmentStatus) -> bool:
    return segment.sent == segment.received and not segment.xor


def _segment(segment: SegmentStatus) -> Json:
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
