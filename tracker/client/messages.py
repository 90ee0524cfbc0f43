"""From the wire's messages to plain values and back. Nothing else of this package's face sees a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from tracker.client.events import (
    Advanced,
    DrainCancelled,
    Drained,
    DrainRequested,
    DrainTimedOut,
    Ended,
    Event,
    Excess,
    FrontIdle,
    Kind,
    Late,
    Reason,
    Stalled,
)
from tracker.client.ids import Named
from tracker.client.jobs import (
    DrainState,
    DrainStatus,
    Explained,
    FrontStatus,
    JobDefined,
    JobSpec,
    JobStatus,
    Mode,
    Ordering,
    ProducerStatus,
    SegmentStatus,
    ServerInfo,
    StagedCount,
    StagedStatus,
    SubscriptionStatus,
    SubstreamStatus,
)
from tracker.client.report import (
    NO_END_TIME,
    Close,
    CommitPromise,
    Contents,
    Expect,
    Expected,
    Finish,
    Frontier,
    Outcome,
    Promise,
    Reported,
)
from tracker.wire.columns import pack_i8, pack_u4, pack_u8
from tracker.wire.gen import columns_pb2, tracker_pb2

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)

_ORDERINGS: Final[dict[Ordering, tracker_pb2.Ordering.ValueType]] = {
    "none": tracker_pb2.ORDERING_NONE,
    "scope": tracker_pb2.ORDERING_SCOPE,
    "global": tracker_pb2.ORDERING_GLOBAL,
}
_MODES: Final[dict[Mode, tracker_pb2.Mode.ValueType]] = {
    "staged": tracker_pb2.STAGED,
    "immediate": tracker_pb2.IMMEDIATE,
}
_ORDERING_NAMES: Final = {number: name for name, number in _ORDERINGS.items()}
_MODE_NAMES: Final = {number: name for name, number in _MODES.items()}


def _moment(at: Timestamp) -> datetime:
    return _EPOCH + timedelta(seconds=at.seconds, microseconds=at.nanos // 1000)


def duration(length: timedelta | None) -> Duration | None:
    if length is None:
        return None
    message = Duration()
    message.FromTimedelta(length)
    return message


def _length(message: Duration) -> timedelta:
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


# ---------------------------------------------------------------- jobs


def spec_message(spec: JobSpec) -> tracker_pb2.JobSpec:
    """
    Raises:
        ValueError: an ordering that does not exist.
    """
    if spec.ordering not in _ORDERINGS:
        raise ValueError(f"ordering is one of {', '.join(map(repr, _ORDERINGS))}, not {spec.ordering!r}")
    return tracker_pb2.JobSpec(
        job=spec.job,
        deployment=spec.deployment,
        segments=[tracker_pb2.Segment(name=name, feeds=names(feeds)) for name, feeds in spec.segments.items()],
        fronts=names(list(spec.fronts) if isinstance(spec.fronts, Mapping) else spec.fronts),
        front_segments=_front_segments(spec.fronts),
        ordering=_ORDERINGS[spec.ordering],
        progress=spec.progress,
        stall_after=duration(spec.stall_after),
        expire_after=duration(spec.expire_after),
        idle_after=duration(spec.idle_after),
        retention=duration(spec.retention),
        remember=duration(spec.remember),
    )


def _front_segments(fronts: Sequence[str] | Mapping[str, Sequence[str]]) -> list[tracker_pb2.FrontSegments]:
    if not isinstance(fronts, Mapping):
        return []
    return [
        tracker_pb2.FrontSegments(front=front, segments=names(segments))
        for front, segments in fronts.items()
        if segments
    ]


def _fronts(message: tracker_pb2.JobSpec) -> Sequence[str] | Mapping[str, Sequence[str]]:
    if not message.front_segments:
        return tuple(message.fronts)
    fed = {each.front: tuple(each.segments) for each in message.front_segments}
    return {front: fed.get(front, ()) for front in message.fronts}


def names(column: Sequence[str]) -> Sequence[str]:
    """
    Raises:
        TypeError: a single string, which would pass for a sequence of names of one letter each.
    """
    if isinstance(column, str):
        raise TypeError(f"a sequence of names is wanted, not the string {column!r}")
    return column


def spec_value(message: tracker_pb2.JobSpec) -> JobSpec:
    return JobSpec(
        job=message.job,
        deployment=message.deployment,
        segments={segment.name: tuple(segment.feeds) for segment in message.segments},
        fronts=_fronts(message),
        ordering=_ORDERING_NAMES.get(message.ordering, "none"),
        progress=message.progress,
        stall_after=_length(message.stall_after) if message.HasField("stall_after") else None,
        expire_after=_length(message.expire_after) if message.HasField("expire_after") else None,
        idle_after=_length(message.idle_after) if message.HasField("idle_after") else None,
        retention=_length(message.retention) if message.HasField("retention") else None,
        remember=_length(message.remember) if message.HasField("remember") else None,
    )


def job_defined(message: tracker_pb2.DefineJobResponse) -> JobDefined:
    return JobDefined(
        created=message.created,
        last_seq=message.last_seq,
        log_id=message.log_id,
        incarnation=message.incarnation,
        drain=drain_status(message.drain),
        spec=spec_value(message.spec),
    )


def job_status(message: tracker_pb2.JobStatus) -> JobStatus:
    return JobStatus(
        spec=spec_value(message.spec),
        first_seq=message.first_seq,
        last_seq=message.last_seq,
        open_substreams=message.open_substreams,
        ended_substreams=message.ended_substreams,
        in_flight=message.in_flight,
        late_reports=message.late_reports,
        producers=tuple(_producer_status(producer) for producer in message.producers),
        fronts=tuple(_front_status(front) for front in message.fronts),
        drain=drain_status(message.drain),
        log_id=message.log_id,
        incarnation=message.incarnation,
        unread_segments=tuple(message.unread_segments),
        staged_substreams=message.staged_substreams,
        staged_units=message.staged_units,
        staged_entries=message.staged_entries,
        tombstones=message.tombstones,
        cells=message.cells,
        incomplete_substreams=message.incomplete_substreams,
        expected=message.expected,
        expected_sent=message.expected_sent,
    )


def _producer_status(message: tracker_pb2.ProducerStatus) -> ProducerStatus:
    return ProducerStatus(
        producer=message.producer,
        run=message.run,
        mode=_MODE_NAMES.get(message.mode, "staged"),
        committed_epoch=message.committed_epoch if message.HasField("committed_epoch") else None,
        staged_epochs=tuple(message.staged_epochs),
        closed=message.closed,
        last_heard=_moment(message.last_heard),
    )


def _front_status(message: tracker_pb2.FrontStatus) -> FrontStatus:
    return FrontStatus(
        front=message.front,
        finished=message.finished,
        idle=message.idle,
        frontiers=dict(message.frontiers),
        producer=message.producer,
        last_promise=_moment(message.last_promise) if message.HasField("last_promise") else None,
        segments=tuple(message.segments),
    )


def drain_status(message: tracker_pb2.DrainStatus) -> DrainStatus:
    return DrainStatus(
        state=DrainState(tracker_pb2.DrainState.Name(message.state)),
        drain_id=message.drain_id,
        deployment=message.deployment,
        unfinished_fronts=tuple(message.unfinished_fronts),
        open_substreams=message.open_substreams,
        in_flight=message.in_flight,
        uncommitted_producers=tuple(message.uncommitted_producers),
        open_producers=tuple(message.open_producers),
    )


def substream_status(message: tracker_pb2.SubstreamStatus) -> SubstreamStatus:
    return SubstreamStatus(
        scope=message.scope,
        name=message.name,
        end_time=message.end_time if message.HasField("end_time") else None,
        closed=message.closed,
        waiting_for=tuple(message.waiting_for),
        segments=tuple(
            SegmentStatus(
                segment=segment.segment,
                ended=segment.ended,
                xor=segment.xor,
                sent=segment.sent,
                received=segment.received,
                last_sender=segment.last_sender,
                last_receiver=segment.last_receiver,
                expected=segment.expected if segment.HasField("expected") else None,
                expected_by=dict(segment.expected_by),
                closed=segment.closed,
                by_drain=segment.by_drain,
            )
            for segment in message.segments
        ),
        late_reports=message.late_reports,
        created=_moment(message.created),
        changed=_moment(message.changed),
        held_by=tuple(message.held_by),
        by_drain=message.by_drain,
    )


def explained(message: tracker_pb2.ExplainResponse) -> Explained:
    return Explained(
        substream=substream_status(message.substream) if message.HasField("substream") else None,
        staged=tuple(
            StagedStatus(
                staged.producer,
                staged.epoch,
                _MODE_NAMES[staged.mode],
                staged.sealed,
                tuple(StagedCount(each.segment, each.sent, each.received) for each in staged.segments),
                tuple(staged.closed_by),
                tuple(staged.expected_by),
            )
            for staged in message.staged
        ),
    )


def subscription_status(message: tracker_pb2.SubscriptionStatus) -> SubscriptionStatus:
    return SubscriptionStatus(
        name=message.name,
        segments=tuple(message.segments),
        scopes=tuple(message.scopes),
        acknowledged=message.acknowledged,
        max_age=message.max_age.ToTimedelta(),
        max_events=message.max_events,
        retained=message.retained,
        oldest_retained=_moment(message.oldest_retained) if message.HasField("oldest_retained") else None,
        created=_moment(message.created),
        last_ack=_moment(message.last_ack) if message.HasField("last_ack") else None,
        expired=_moment(message.expired) if message.HasField("expired") else None,
        expired_because=message.expired_because,
    )


def server_info(message: tracker_pb2.ServerInfo) -> ServerInfo:
    return ServerInfo(
        version=message.version, journal=message.journal, leader=message.leader, limits=dict(message.limits)
    )


# ---------------------------------------------------------------- producers


def mode_number(mode: Mode) -> tracker_pb2.Mode.ValueType:
    """
    Raises:
        ValueError: a mode that does not exist.
    """
    if mode not in _MODES:
        raise ValueError(f"mode is one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    return _MODES[mode]


def promise_messages(
    promises: Iterable[Promise | CommitPromise], places: Sequence[int] = ()
) -> list[tracker_pb2.Promise]:
    """
    Args:
        promises: of a report or a commit, in their order.
        places: for each of the report's substreams its number on the wire.

    Raises:
        ValueError: a negative number of elements is expected.
    """
    messages = []
    for promise in promises:
        match promise:
            case Frontier(front, time, scope):
                frontier = tracker_pb2.Frontier(front=front, scope=scope, time=time)
                messages.append(tracker_pb2.Promise(frontier=frontier))
            case Finish(front):
                messages.append(tracker_pb2.Promise(finish=front))
            case Close(front, substream):
                close = tracker_pb2.Close(front=front, substream_index=places[substream])
                messages.append(tracker_pb2.Promise(close=close))
            case Expect(front, segment, substream, elements, revise):
                expect = tracker_pb2.Expect(front=front, segment=segment, elements=elements, revise=revise)
                expect.substream_index = places[substream]
                messages.append(tracker_pb2.Promise(expect=expect))
            case Expected(front, segment, scope, name, elements, end_time, revise):
                if elements < 0:
                    raise ValueError(f"a front expects 0 elements or more, not {elements}")
                expect = tracker_pb2.Expect(front=front, segment=segment, elements=elements, revise=revise)
                expect.substream.CopyFrom(tracker_pb2.SubstreamName(scope=scope, name=name, end_time=end_time))
                messages.append(tracker_pb2.Promise(expect=expect))
    return messages


def named(contents: Contents) -> list[Named]:
    """The substreams of a report as they are remembered with their ids."""
    times = contents.end_times.tolist()
    return [(scope, name, time) for (scope, name), time in zip(contents.substreams, times, strict=True)]


def report_message(
    contents: Contents, log_id: str, ids: Sequence[int | None], want_ids: bool
) -> tuple[columns_pb2.ReportRequest, list[int]]:
    """What a report says, by id where there is one and by name where not.

    Args:
        contents: the report's.
        log_id: the log that the ids are of.
        ids: one for each substream, or None.
        want_ids: ask for the ids of the names.

    Returns:
        The message, without who reports what; and which of the substreams it names.
    """
    by_name = [place for place, number in enumerate(ids) if number is None]
    by_id = [place for place, number in enumerate(ids) if number is not None]
    places = np.empty(len(ids), np.uint32)
    places[by_name] = np.arange(len(by_name), dtype=np.uint32)
    places[by_id] = np.arange(len(by_name), len(ids), dtype=np.uint32)
    scopes: dict[str, int] = {}
    scope_index = [scopes.setdefault(contents.substreams[place][0], len(scopes)) for place in by_name]
    end_times = contents.end_times[by_name]
    message = columns_pb2.ReportRequest(
        scopes=list(scopes),
        names=[contents.substreams[place][1] for place in by_name],
        scope_index=pack_u4(scope_index),
        end_times=pack_i8(end_times) if (end_times != NO_END_TIME).any() else b"",
        substream_ids=pack_u8([number for number in ids if number is not None]),
        log_id=log_id if by_id else "",
        segments=contents.segments,
        substream_index=pack_u4(places[contents.substream_index]),
        segment_index=pack_u4(contents.segment_index),
        xor=pack_u8(contents.xor),
        sent=pack_u4(contents.sent),
        received=pack_u4(contents.received),
        entry_count=len(contents.xor),
        promises=promise_messages(contents.promises, places.tolist()),
        want_ids=want_ids and bool(by_name),
    )
    return message, by_name


def reported(message: tracker_pb2.ReportResponse) -> Reported:
    return Reported(
        outcome=Outcome(tracker_pb2.ReportResponse.Outcome.Name(message.outcome)),
        duplicate_units=tuple(message.duplicate_units),
        last_seq=message.last_seq,
    )


# ---------------------------------------------------------------- events


def ended(message: tracker_pb2.Ended) -> Ended:
    return Ended(
        segment=message.segment,
        scope=message.scope,
        name=message.name,
        end_time=message.end_time if message.HasField("end_time") else None,
        elements=message.elements,
        reason=Reason(tracker_pb2.Reason.Name(message.reason)),
        in_flight=message.in_flight,
        by_drain=message.by_drain,
        expected=message.expected if message.HasField("expected") else None,
    )


def event(message: tracker_pb2.Event) -> Event | None:
    """The event; None for a bookmark, and for a kind that this client is too old to know."""
    kind = _kind(message)
    return None if kind is None else Event(message.seq, _moment(message.at), message.deployment, kind)


def _kind(message: tracker_pb2.Event) -> Kind | None:
    match message.WhichOneof("kind"):
        case "ended":
            return ended(message.ended)
        case "advanced":
            return Advanced(message.advanced.segment, message.advanced.time)
        case "late":
            late = message.late
            return Late(late.segment, late.scope, late.name, late.producer, late.sent, late.received)
        case "stalled":
            stalled = message.stalled
            return Stalled(
                stalled.scope,
                stalled.name,
                tuple(stalled.segments),
                stalled.in_flight,
                stalled.expected,
                stalled.sent,
            )
        case "excess":
            excess = message.excess
            return Excess(excess.segment, excess.scope, excess.name, excess.expected, excess.sent)
        case "front_idle":
            return FrontIdle(message.front_idle.front, message.front_idle.idle)
        case "drain_requested":
            return DrainRequested(message.drain_requested.drain_id)
        case "drained":
            return Drained(message.drained.drain_id)
        case "drain_timed_out":
            return DrainTimedOut(message.drain_timed_out.drain_id)
        case "drain_cancelled":
            return DrainCancelled(message.drain_cancelled.drain_id)
        case _:
            return None
