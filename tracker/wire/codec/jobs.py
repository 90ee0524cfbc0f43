"""Jobs: how they are specified, what defining one answers, how a job and its drain stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from tracker.contract.answers import JobDefined, Opened
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import JobSpec, ModeWord, OrderingWord, Spec
from tracker.contract.status import DrainStatus, FrontStatus, JobStatus, ProducerStatus
from tracker.contract.values import DrainMode, DrainState, Mode, Numbered, Ordering
from tracker.wire.gen import tracker_pb2 as wire

from .fields import (
    count,
    enumeration,
    optional,
    read_duration,
    read_length_if_any,
    read_time,
    read_time_if_any,
    write_length,
    write_time,
    write_time_if_any,
)

# ---------------------------------------------------------------- specifications


def read_spec(spec: wire.JobSpec) -> Spec:
    """Return a specification for the core.

    Raises:
        Refused: ``MALFORMED``: its ordering or a length of time is none.
    """
    return Spec(
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


def write_job_spec(spec: JobSpec) -> wire.JobSpec:
    """Return a specification.

    Raises:
        ValueError: an ordering that does not exist, or a segment of state that is none of the job's.
    """
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
        ordering=wire.Ordering.ValueType(_number(Ordering, spec.ordering, "ordering")),
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


def read_job_spec(message: wire.JobSpec) -> JobSpec:
    """Return a specification for a caller."""
    return JobSpec(
        job=message.job,
        deployment=message.deployment,
        segments={segment.name: tuple(segment.feeds) for segment in message.segments},
        fronts=_fronts(message),
        state_segments=tuple(segment.name for segment in message.segments if segment.state),
        ordering=cast("OrderingWord", Ordering.by_number().get(message.ordering, Ordering.NONE).value),
        progress=message.progress,
        stall_after=read_length_if_any(message, "stall_after"),
        expire_after=read_length_if_any(message, "expire_after"),
        idle_after=read_length_if_any(message, "idle_after"),
        retention=read_length_if_any(message, "retention"),
        remember=read_length_if_any(message, "remember"),
        committed_ends=message.committed_ends,
    )


# ---------------------------------------------------------------- what defining one answers


def write_job_defined(answer: JobDefined) -> wire.DefineJobResponse:
    return wire.DefineJobResponse(
        spec=write_job_spec(answer.spec),
        created=answer.created,
        last_seq=answer.last_seq,
        drain=write_drain_status(answer.drain),
        log_id=answer.log_id,
        incarnation=answer.incarnation,
    )


def read_job_defined(message: wire.DefineJobResponse) -> JobDefined:
    return JobDefined(
        created=message.created,
        last_seq=message.last_seq,
        log_id=message.log_id,
        incarnation=message.incarnation,
        drain=read_drain_status(message.drain),
        spec=read_job_spec(message.spec),
    )


# ---------------------------------------------------------------- how a job stands


def write_job_status(job: JobStatus) -> wire.JobStatus:
    return wire.JobStatus(
        spec=write_job_spec(job.spec),
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


def _write_producer(producer: ProducerStatus) -> wire.ProducerStatus:
    return wire.ProducerStatus(
        producer=producer.producer,
        run=producer.run,
        mode=wire.Mode.ValueType(producer.mode.number),
        committed_epoch=producer.committed_epoch,
        staged_epochs=producer.staged_epochs,
        closed=producer.closed,
        last_heard=write_time(producer.last_heard_ns),
    )


def _write_front(front: FrontStatus) -> wire.FrontStatus:
    return wire.FrontStatus(
        front=front.front,
        finished=front.finished,
        idle=front.idle,
        frontiers=front.frontiers,
        producer=front.producer,
        last_promise=write_time_if_any(front.last_promise_ns),
        segments=front.segments,
        more_frontiers=front.more_frontiers,
    )


def read_job_status(message: wire.JobStatus) -> JobStatus:
    return JobStatus(
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


def _read_producer(message: wire.ProducerStatus) -> ProducerStatus:
    return ProducerStatus(
        producer=message.producer,
        run=message.run,
        mode=read_mode(message.mode),
        committed_epoch=optional(message, "committed_epoch"),
        staged_epochs=tuple(message.staged_epochs),
        closed=message.closed,
        last_heard_ns=read_time(message.last_heard),
    )


def _read_front(message: wire.FrontStatus) -> FrontStatus:
    return FrontStatus(
        front=message.front,
        finished=message.finished,
        idle=message.idle,
        frontiers=dict(message.frontiers),
        producer=message.producer,
        last_promise_ns=read_time_if_any(message, "last_promise"),
        segments=tuple(message.segments),
        more_frontiers=message.more_frontiers,
    )


# ---------------------------------------------------------------- producers


def write_mode(mode: ModeWord) -> wire.Mode.ValueType:
    """Return a mode of a caller.

    Raises:
        ValueError: a mode that does not exist.
    """
    return wire.Mode.ValueType(_number(Mode, mode, "mode"))


def read_mode(number: int) -> Mode:
    """Return a mode; a server that gives none knows only of STAGED."""
    return Mode.by_number().get(number, Mode.STAGED)


def _number(kind: type[Numbered], word: str, field: str) -> int:
    for member in kind:
        if member == word:
            return member.number
    raise ValueError(f"{field}={word!r} is not a known value; use one of {', '.join(repr(str(each)) for each in kind)}")


def write_opened(answer: Opened) -> wire.OpenProducerResponse:
    return wire.OpenProducerResponse(committed_epoch=answer.committed_epoch)


def read_asked_mode(number: int) -> DrainMode:
    """Return the mode of a drain that is asked for; unspecified: it finishes.

    Raises:
        Refused: ``MALFORMED``: there is no such mode.
    """
    if number and number not in DrainMode.by_number():
        known = ", ".join(f"{mode.number} ({mode})" for mode in DrainMode)
        raise Refused(Refusal.MALFORMED, f"mode={number} is not a known value; use one of {known}")
    return read_drain_mode(number)


def write_drain_mode(mode: DrainMode | None) -> wire.DrainMode.ValueType:
    """Return a drain's mode; None: there is no drain."""
    return wire.DrainMode.ValueType(0 if mode is None else mode.number)


def read_drain_mode(number: int) -> DrainMode:
    """Return a drain's mode; a server or caller that gives none knows only of drains that finish."""
    return DrainMode.of(number) if number else DrainMode.FINISH


def write_drain_status(answer: DrainStatus) -> wire.DrainStatus:
    return wire.DrainStatus(
        state=wire.DrainState.ValueType(answer.state.number),
        drain_id=answer.drain_id,
        deployment=answer.deployment,
        unfinished_fronts=answer.unfinished_fronts,
        open_substreams=answer.open_substreams,
        in_flight=answer.in_flight,
        uncommitted_producers=answer.uncommitted_producers,
        open_producers=answer.open_producers,
        mode=write_drain_mode(answer.mode),
        unbalanced_segments=answer.unbalanced_segments,
    )


def read_drain_status(message: wire.DrainStatus) -> DrainStatus:
    return DrainStatus(
        state=DrainState.of(message.state),
        drain_id=message.drain_id,
        deployment=message.deployment,
        unfinished_fronts=tuple(message.unfinished_fronts),
        open_substreams=message.open_substreams,
        in_flight=message.in_flight,
        uncommitted_producers=tuple(message.uncommitted_producers),
        open_producers=tuple(message.open_producers),
        mode=None if message.state == DrainState.NOT_DRAINING.number else read_drain_mode(message.mode),
        unbalanced_segments=tuple(message.unbalanced_segments),
    )
