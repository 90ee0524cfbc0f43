"""Jobs: how they are specified, what defining one answers, how a job and its drain stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tracker.contract import answers, callers, commands, status
from tracker.contract.values import Mode, Ordering
from tracker.wire.gen import tracker_pb2 as wire

from .drains import read_drain_status, write_drain_status
from .fields import count, enumeration, optional
from .times import (
    read_duration,
    read_length_if_any,
    read_time,
    read_time_if_any,
    write_duration,
    write_length,
    write_time,
    write_time_if_any,
)

#: The words that callers have for them.
_ORDERINGS: Final[dict[callers.Ordering, Ordering]] = {
    "none": Ordering.NONE,
    "scope": Ordering.SCOPE,
    "global": Ordering.GLOBAL,
}
_MODES: Final[dict[callers.Mode, Mode]] = {"staged": Mode.STAGED, "immediate": Mode.IMMEDIATE}
_ORDERING_NAMES: Final[dict[int, callers.Ordering]] = {number: name for name, number in _ORDERINGS.items()}
MODE_NAMES: Final[dict[int, callers.Mode]] = {number: name for name, number in _MODES.items()}


# ---------------------------------------------------------------- specifications


def read_spec(spec: wire.JobSpec) -> commands.Spec:
    """Return a specification for the core.

    Raises:
        Refused: ``MALFORMED``: its ordering or a length of time is none.
    """
    return commands.Spec(
        job=spec.job,
        deployment=spec.deployment,
        segments=tuple((segment.name, tuple(segment.feeds)) for segment in spec.segments),
        fronts=tuple(spec.fronts),
        ordering=enumeration(Ordering, spec.ordering, "ordering"),
        progress=spec.progress,
        stall_after=read_duration(spec, "stall_after"),
        expire_after=read_duration(spec, "expire_after"),
        idle_after=read_duration(spec, "idle_after"),
        retention=read_duration(spec, "retention"),
        remember=read_duration(spec, "remember"),
        front_segments=tuple((each.front, tuple(each.segments)) for each in spec.front_segments),
        state_segments=tuple(segment.name for segment in spec.segments if segment.state),
        committed_ends=spec.committed_ends,
    )


def write_spec(spec: commands.Spec) -> wire.JobSpec:
    """Return a specification of the core."""
    return wire.JobSpec(
        job=spec.job,
        deployment=spec.deployment,
        segments=[
            wire.Segment(name=name, feeds=feeds, state=name in spec.state_segments) for name, feeds in spec.segments
        ],
        fronts=spec.fronts,
        front_segments=[wire.FrontSegments(front=front, segments=feeds) for front, feeds in spec.front_segments],
        ordering=wire.Ordering.ValueType(spec.ordering),
        stall_after=write_duration(spec.stall_after),
        expire_after=write_duration(spec.expire_after),
        idle_after=write_duration(spec.idle_after),
        retention=write_duration(spec.retention),
        remember=write_duration(spec.remember),
        progress=spec.progress,
        committed_ends=spec.committed_ends,
    )


def write_job_spec(spec: callers.JobSpec) -> wire.JobSpec:
    """Return a specification of a caller.

    Raises:
        ValueError: an ordering that does not exist, or a segment of state that is none of the job's.
    """
    if spec.ordering not in _ORDERINGS:
        raise ValueError(
            f"ordering={spec.ordering!r} is not a known value; use one of {', '.join(map(repr, _ORDERINGS))}"
        )
    for name in names_of(spec.state_segments):
        if name not in spec.segments:
            raise ValueError(f"state_segments names {name!r}, which is not one of the job's segments")
    return wire.JobSpec(
        job=spec.job,
        deployment=spec.deployment,
        segments=[
            wire.Segment(name=name, feeds=names_of(feeds), state=name in spec.state_segments)
            for name, feeds in spec.segments.items()
        ],
        fronts=names_of(list(spec.fronts) if isinstance(spec.fronts, Mapping) else spec.fronts),
        front_segments=_front_segments(spec.fronts),
        ordering=wire.Ordering.ValueType(_ORDERINGS[spec.ordering]),
        progress=spec.progress,
        stall_after=write_length(spec.stall_after),
        expire_after=write_length(spec.expire_after),
        idle_after=write_length(spec.idle_after),
        retention=write_length(spec.retention),
        remember=write_length(spec.remember),
        committed_ends=spec.committed_ends,
    )


def _front_segments(fronts: Sequence[str] | Mapping[str, Sequence[str]]) -> list[wire.FrontSegments]:
    if not isinstance(fronts, Mapping):
        return []
    return [
        wire.FrontSegments(front=front, segments=names_of(segments)) for front, segments in fronts.items() if segments
    ]


def _fronts(message: wire.JobSpec) -> Sequence[str] | Mapping[str, Sequence[str]]:
    if not message.front_segments:
        return tuple(message.fronts)
    fed = {each.front: tuple(each.segments) for each in message.front_segments}
    return {front: fed.get(front, ()) for front in message.fronts}


def names_of(column: Sequence[str]) -> Sequence[str]:
    """Return a column of names.

    Raises:
        TypeError: a single string, which would pass for a sequence of names of one letter each.
    """
    if isinstance(column, str):
        raise TypeError(f"expected a sequence of names, got the string {column!r}; put the name into a list")
    return column


def read_job_spec(message: wire.JobSpec) -> callers.JobSpec:
    """Return a specification for a caller."""
    return callers.JobSpec(
        job=message.job,
        deployment=message.deployment,
        segments={segment.name: tuple(segment.feeds) for segment in message.segments},
        fronts=_fronts(message),
        state_segments=tuple(segment.name for segment in message.segments if segment.state),
        ordering=_ORDERING_NAMES.get(message.ordering, "none"),
        progress=message.progress,
        stall_after=read_length_if_any(message, "stall_after"),
        expire_after=read_length_if_any(message, "expire_after"),
        idle_after=read_length_if_any(message, "idle_after"),
        retention=read_length_if_any(message, "retention"),
        remember=read_length_if_any(message, "remember"),
        committed_ends=message.committed_ends,
    )


# ---------------------------------------------------------------- what defining one answers


def write_job_defined(answer: answers.JobDefined) -> wire.DefineJobResponse:
    return wire.DefineJobResponse(
        spec=write_spec(answer.spec),
        created=answer.created,
        last_seq=answer.last_seq,
        drain=write_drain_status(answer.drain),
        log_id=answer.log_id,
        incarnation=answer.incarnation,
    )


def read_job_defined(message: wire.DefineJobResponse) -> callers.JobDefined:
    return callers.JobDefined(
        created=message.created,
        last_seq=message.last_seq,
        log_id=message.log_id,
        incarnation=message.incarnation,
        drain=read_drain_status(message.drain),
        spec=read_job_spec(message.spec),
    )


# ---------------------------------------------------------------- how a job stands


def write_job_status(job: status.JobStatus) -> wire.JobStatus:
    return wire.JobStatus(
        spec=write_spec(job.spec),
        first_seq=job.first_seq,
        last_seq=job.last_seq,
        open_substreams=job.open_substreams,
        ended_substreams=job.ended_substreams,
        in_flight=job.in_flight,
        late_reports=job.late_reports,
        producers=[_write_producer(producer) for producer in job.producers],
        fronts=[_write_front(front) for front in job.fronts],
        drain=write_drain_status(job.drain),
        log_id=job.log_id,
        incarnation=job.incarnation,
        unread_segments=job.unread_segments,
        advanced=job.advanced,
        staged_substreams=job.staged_substreams,
        staged_units=job.staged_units,
        staged_entries=job.staged_entries,
        tombstones=job.tombstones,
        cells=job.cells,
        incomplete_substreams=job.incomplete_substreams,
        expected=count(job.expected),
        expected_sent=count(job.expected_sent),
    )


def _write_producer(producer: status.ProducerStatus) -> wire.ProducerStatus:
    return wire.ProducerStatus(
        producer=producer.producer,
        run=producer.run,
        mode=wire.Mode.ValueType(producer.mode),
        committed_epoch=producer.committed_epoch,
        staged_epochs=producer.staged_epochs,
        closed=producer.closed,
        last_heard=write_time(producer.last_heard),
    )


def _write_front(front: status.FrontStatus) -> wire.FrontStatus:
    return wire.FrontStatus(
        front=front.front,
        finished=front.finished,
        idle=front.idle,
        frontiers=front.frontiers,
        producer=front.producer,
        last_promise=write_time_if_any(front.last_promise),
        segments=front.segments,
        more_frontiers=front.more_frontiers,
    )


def read_job_status(message: wire.JobStatus) -> callers.JobStatus:
    return callers.JobStatus(
        spec=read_job_spec(message.spec),
        first_seq=message.first_seq,
        last_seq=message.last_seq,
        open_substreams=message.open_substreams,
        ended_substreams=message.ended_substreams,
        in_flight=message.in_flight,
        late_reports=message.late_reports,
        producers=tuple(_read_producer(producer) for producer in message.producers),
        fronts=tuple(_read_front(front) for front in message.fronts),
        drain=read_drain_status(message.drain),
        log_id=message.log_id,
        incarnation=message.incarnation,
        unread_segments=tuple(message.unread_segments),
        advanced=dict(message.advanced),
        staged_substreams=message.staged_substreams,
        staged_units=message.staged_units,
        staged_entries=message.staged_entries,
        tombstones=message.tombstones,
        cells=message.cells,
        incomplete_substreams=message.incomplete_substreams,
        expected=message.expected,
        expected_sent=message.expected_sent,
    )


def _read_producer(message: wire.ProducerStatus) -> callers.ProducerStatus:
    return callers.ProducerStatus(
        producer=message.producer,
        run=message.run,
        mode=MODE_NAMES.get(message.mode, "staged"),
        committed_epoch=optional(message, "committed_epoch"),
        staged_epochs=tuple(message.staged_epochs),
        closed=message.closed,
        last_heard=read_time(message.last_heard),
    )


def _read_front(message: wire.FrontStatus) -> callers.FrontStatus:
    return callers.FrontStatus(
        front=message.front,
        finished=message.finished,
        idle=message.idle,
        frontiers=dict(message.frontiers),
        producer=message.producer,
        last_promise=read_time_if_any(message, "last_promise"),
        segments=tuple(message.segments),
        more_frontiers=message.more_frontiers,
    )


# ---------------------------------------------------------------- producers


def write_mode(mode: callers.Mode) -> wire.Mode.ValueType:
    """Return a mode of a caller.

    Raises:
        ValueError: a mode that does not exist.
    """
    if mode not in _MODES:
        raise ValueError(f"mode={mode!r} is not a known value; use one of {', '.join(map(repr, _MODES))}")
    return wire.Mode.ValueType(_MODES[mode])


def write_opened(answer: answers.Opened) -> wire.OpenProducerResponse:
    return wire.OpenProducerResponse(committed_epoch=answer.committed_epoch)
