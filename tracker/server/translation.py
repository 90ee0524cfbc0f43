"""From the wire to commands, and from answers, events and status to the wire.

A command is read from the bytes of its request alone, so the same bytes from a journal give the same command. This
module decides nothing: whether a command makes sense in the job's state is the core's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp
from numpy.typing import NDArray

from tracker.core import commands, events, status
from tracker.core.refusal import Refused
from tracker.wire.columns import pack_u8, unpack_i8, unpack_u4, unpack_u8
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire

_M = TypeVar("_M", bound=Message)
_E = TypeVar("_E", bound=IntEnum)
_N = TypeVar("_N", bound=np.generic)

_NS = 1_000_000_000


class Method(IntEnum):
    """What a journal calls a command; the numbers never change."""

    DEFINE_JOB = 1
    DELETE_JOB = 2
    OPEN_PRODUCER = 3
    CLOSE_PRODUCER = 4
    FORGET_PRODUCER = 5
    FINISH_FRONT = 6
    REPORT = 7
    COMMIT = 8
    DRAIN = 9
    CANCEL_DRAIN = 10
    ABANDON = 11
    SUBSCRIBE = 12
    ACK = 13
    UNSUBSCRIBE = 14
    TICK = 100  #: no caller's: time has passed, for the job that is named or, without a name, for all
    STARTED = 101  #: no command: what a server brought with it when it started


# ---------------------------------------------------------------- from the wire


def parse(kind: type[_M], data: bytes) -> _M:
    """A request.

    Raises:
        Refused: ``MALFORMED``: the bytes are none.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused.malformed(
            f"the request is no {kind.DESCRIPTOR.full_name} ({error}); was it made from another proto, or cut?"
        ) from error


def command(method: Method, data: bytes) -> commands.Command:
    """The command that a request asks for, or that time does.

    Raises:
        Refused: ``MALFORMED``: the request cannot be read, or does not say what it must.
    """
    return _READERS[method](data)


def _define_job(data: bytes) -> commands.DefineJob:
    request = parse(wire.DefineJobRequest, data)
    spec = request.spec
    return commands.DefineJob(
        commands.Spec(
            job=spec.job,
            deployment=spec.deployment,
            segments=tuple((segment.name, tuple(segment.feeds)) for segment in spec.segments),
            fronts=tuple(spec.fronts),
            ordering=_enum(commands.Ordering, spec.ordering, "ordering"),
            progress=spec.progress,
            stall_after=_duration(spec, "stall_after"),
            expire_after=_duration(spec, "expire_after"),
            idle_after=_duration(spec, "idle_after"),
            retention=_duration(spec, "retention"),
            remember=_duration(spec, "remember"),
            front_segments=tuple((each.front, tuple(each.segments)) for each in spec.front_segments),
        ),
        force=request.force,
    )


def _delete_job(data: bytes) -> commands.DeleteJob:
    request = parse(wire.DeleteJobRequest, data)
    return commands.DeleteJob(request.job, request.force)


def _open_producer(data: bytes) -> commands.OpenProducer:
    request = parse(wire.OpenProducerRequest, data)
    return commands.OpenProducer(
        request.job,
        request.producer,
        request.run,
        _enum(commands.Mode, request.mode, "mode"),
        _optional(request, "resume_epoch"),
        request.seals,
    )


def _close_producer(data: bytes) -> commands.CloseProducer:
    request = parse(wire.CloseProducerRequest, data)
    return commands.CloseProducer(request.job, request.producer, request.run, _optional(request, "resume_epoch"))


def _forget_producer(data: bytes) -> commands.ForgetProducer:
    request = parse(wire.ForgetProducerRequest, data)
    return commands.ForgetProducer(request.job, request.producer)


def _finish_front(data: bytes) -> commands.FinishFront:
    request = parse(wire.FinishFrontRequest, data)
    return commands.FinishFront(request.job, request.front)


def _report(data: bytes) -> commands.Report:
    return report(parse(wire.ReportRequest, data))


def report(request: wire.ReportRequest, more: Sequence[wire.ReportRequest] = ()) -> commands.Report:
    """The command of a report that is already parsed.

    Args:
        more: its repeated fields go on in these, as `wirecounts.pieces` cuts a large one.
    """
    parts = (request, *more)
    return commands.Report(
        job=request.job,
        producer=request.producer,
        run=request.run,
        epoch=request.epoch,
        units=_strings([part.units for part in parts]),
        scopes=_strings([part.scopes for part in parts]),
        names=_strings([part.names for part in parts]),
        scope_index=_column([unpack_u4(part.scope_index) for part in parts]),
        end_times=_column([unpack_i8(part.end_times) for part in parts]),
        substream_ids=_column([unpack_u8(part.substream_ids) for part in parts]),
        log_id=request.log_id,
        want_ids=request.want_ids,
        segments=_strings([part.segments for part in parts]),
        substream_index=_column([unpack_u4(part.substream_index) for part in parts]),
        segment_index=_column([unpack_u4(part.segment_index) for part in parts]),
        xor=_column([unpack_u8(part.xor) for part in parts]),
        sent=_column([unpack_u4(part.sent) for part in parts]),
        received=_column([unpack_u4(part.received) for part in parts]),
        entry_count=request.entry_count,
        promises=_promises(request.promises) if not more else _all_promises(parts),
        commit=request.commit,
    )


def large_report(pieces: Iterable[bytes]) -> commands.Report:
    """The command of a report that comes in pieces: the first whole but for its repeated fields, they in the others.

    It takes as long as reading it in one piece, but no step of it takes long, so that other threads get their turns.

    Raises:
        Refused: ``MALFORMED``.
    """
    first, *more = (parse(wire.ReportRequest, piece) for piece in pieces)
    return report(first, more)


def _strings(parts: Sequence[Sequence[str]]) -> Sequence[str]:
    if len(parts) == 1:
        return tuple(parts[0])
    strings: list[str] = []
    for part in parts:
        strings.extend(part)
    return strings


def _column(parts: Sequence[NDArray[_N]]) -> NDArray[_N]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _all_promises(parts: Sequence[wire.ReportRequest]) -> tuple[commands.Promise, ...]:
    promises: list[commands.Promise] = []
    for part in parts:
        promises.extend(_promises(part.promises))
    return tuple(promises)


def _commit(data: bytes) -> commands.Commit:
    request = parse(wire.CommitRequest, data)
    return commands.Commit(
        request.job,
        request.producer,
        request.run,
        _optional(request, "epoch"),
        tuple(request.units.names) if request.HasField("units") else None,
        request.seal,
        *_commit_promises(request.promises),
    )


def _commit_promises(
    promises: Iterable[wire.Promise],
) -> tuple[tuple[commands.Promise, ...], tuple[tuple[str, str, int | None], ...]]:
    """A commit's promises, and the substreams that its expectations name: each its own place among them."""
    read: list[commands.Promise] = []
    substreams: list[tuple[str, str, int | None]] = []
    for promise in promises:
        each = _promise(promise)
        if isinstance(each, commands.Expect):
            if not promise.expect.HasField("substream"):
                raise Refused.malformed("an expectation in a commit names its substream (`substream`), not an index")
            each = replace(each, substream_index=len(substreams))
            said = promise.expect.substream
            substreams.append((said.scope, said.name, _optional(said, "end_time")))
        read.append(each)
    return tuple(read), tuple(substreams)


def _drain(data: bytes) -> commands.Drain:
    request = parse(wire.DrainRequest, data)
    return commands.Drain(request.job, request.deployment, request.drain_id, _duration(request, "timeout"))


def _cancel_drain(data: bytes) -> commands.CancelDrain:
    request = parse(wire.CancelDrainRequest, data)
    return commands.CancelDrain(request.job, request.drain_id, request.deployment)


def _abandon(data: bytes) -> commands.Abandon:
    request = parse(wire.AbandonRequest, data)
    return commands.Abandon(request.job, request.scope, request.name)


def _subscribe(data: bytes) -> commands.Subscribe:
    request = parse(wire.SubscribeRequest, data)
    return commands.Subscribe(
        request.job,
        request.name,
        tuple(request.segments),
        tuple(request.scopes),
        _optional(request, "after_seq"),
        _duration(request, "max_age"),
        request.max_events or None,
        request.log_id,
    )


def _ack(data: bytes) -> commands.Ack:
    request = parse(wire.AckRequest, data)
    return commands.Ack(request.job, request.name, request.seq, request.log_id)


def _unsubscribe(data: bytes) -> commands.Unsubscribe:
    request = parse(wire.UnsubscribeRequest, data)
    return commands.Unsubscribe(request.job, request.name)


def _tick(data: bytes) -> commands.Tick:
    return commands.Tick(data.decode())


_READERS: dict[Method, Callable[[bytes], commands.Command]] = {
    Method.DEFINE_JOB: _define_job,
    Method.DELETE_JOB: _delete_job,
    Method.OPEN_PRODUCER: _open_producer,
    Method.CLOSE_PRODUCER: _close_producer,
    Method.FORGET_PRODUCER: _forget_producer,
    Method.FINISH_FRONT: _finish_front,
    Method.REPORT: _report,
    Method.COMMIT: _commit,
    Method.DRAIN: _drain,
    Method.CANCEL_DRAIN: _cancel_drain,
    Method.ABANDON: _abandon,
    Method.SUBSCRIBE: _subscribe,
    Method.ACK: _ack,
    Method.UNSUBSCRIBE: _unsubscribe,
    Method.TICK: _tick,
}


def _optional(request: Message, field: str) -> Any:
    return getattr(request, field) if request.HasField(field) else None


def _enum(kind: type[_E], value: int, field: str) -> _E:
    """A wire enumeration's value, its default for unspecified."""
    try:
        return kind(value or 1)
    except ValueError:
        raise Refused.malformed(f"{field} is {value}, which means nothing; it is one of {_named(kind)}") from None


def _named(kind: type[IntEnum]) -> str:
    return ", ".join(f"{member.value} ({member.name})" for member in kind)


def _duration(message: Message, field: str) -> int | None:
    if not message.HasField(field):
        return None
    value: Duration = getattr(message, field)
    if value.seconds < 0 or not 0 <= value.nanos < _NS:
        raise Refused.malformed(f"{field} is {value.seconds} s and {value.nanos} ns; a duration is not negative")
    return value.seconds * _NS + value.nanos


def _promises(promises: Iterable[wire.Promise]) -> tuple[commands.Promise, ...]:
    """A report's promises."""
    if any(promise.expect.HasField("substream") for promise in promises if promise.HasField("expect")):
        raise Refused.malformed("an expectation in a report names its substream by `substream_index`")
    return tuple(map(_promise, promises))


def _promise(promise: wire.Promise) -> commands.Promise:
    match promise.WhichOneof("kind"):
        case "frontier":
            said = promise.frontier
            return commands.Frontier(said.front, said.scope if said.HasField("scope") else None, said.time)
        case "close":
            return commands.Close(promise.close.front, promise.close.substream_index)
        case "finish":
            return commands.Finish(promise.finish)
        case "expect":
            number = promise.expect
            return commands.Expect(number.front, number.segment, number.substream_index, number.elements, number.revise)
        case _:
            raise Refused.malformed("a promise is a frontier, a close, a finish or an expectation; one is none of them")


# ---------------------------------------------------------------- to the wire: answers


def job_defined(answer: commands.JobDefined) -> wire.DefineJobResponse:
    return wire.DefineJobResponse(
        spec=_spec(answer.spec),
        created=answer.created,
        last_seq=answer.last_seq,
        drain=drain_status(answer.drain),
        log_id=answer.log_id,
        incarnation=answer.incarnation,
    )


def opened(answer: commands.Opened) -> wire.OpenProducerResponse:
    return wire.OpenProducerResponse(committed_epoch=answer.committed_epoch)


def reported(answer: commands.Reported) -> columns_pb2.ReportResponse:
    response = columns_pb2.ReportResponse(
        outcome=wire.ReportResponse.Outcome.ValueType(answer.outcome),
        duplicate_units=answer.duplicate_units,
        last_seq=answer.last_seq,
    )
    if answer.substream_ids is not None:
        response.substream_ids = pack_u8(answer.substream_ids)
        response.log_id = answer.log_id
    return response


def drain_status(answer: commands.DrainStatus) -> wire.DrainStatus:
    return wire.DrainStatus(
        state=wire.DrainState.ValueType(answer.state),
        drain_id=answer.drain_id,
        deployment=answer.deployment,
        unfinished_fronts=answer.unfinished_fronts,
        open_substreams=answer.open_substreams,
        in_flight=answer.in_flight,
        uncommitted_producers=answer.uncommitted_producers,
        open_producers=answer.open_producers,
    )


def subscribed(answer: commands.Subscribed) -> wire.SubscribeResponse:
    return wire.SubscribeResponse(
        acknowledged=answer.acknowledged, last_seq=answer.last_seq, log_id=answer.log_id, created=answer.created
    )


def _spec(spec: commands.Spec) -> wire.JobSpec:
    return wire.JobSpec(
        job=spec.job,
        deployment=spec.deployment,
        segments=[wire.Segment(name=name, feeds=feeds) for name, feeds in spec.segments],
        fronts=spec.fronts,
        front_segments=[wire.FrontSegments(front=front, segments=feeds) for front, feeds in spec.front_segments],
        ordering=wire.Ordering.ValueType(spec.ordering),
        stall_after=_as_duration(spec.stall_after),
        expire_after=_as_duration(spec.expire_after),
        idle_after=_as_duration(spec.idle_after),
        retention=_as_duration(spec.retention),
        remember=_as_duration(spec.remember),
        progress=spec.progress,
    )


def _as_duration(ns: int | None) -> Duration | None:
    return None if ns is None else Duration(seconds=ns // _NS, nanos=ns % _NS)


def _timestamp(ns: int) -> Timestamp:
    return Timestamp(seconds=ns // _NS, nanos=ns % _NS)


# ---------------------------------------------------------------- to the wire: status


def job_status(job: status.JobStatus) -> wire.JobStatus:
    return wire.JobStatus(
        spec=_spec(job.spec),
        first_seq=job.first_seq,
        last_seq=job.last_seq,
        open_substreams=job.open_substreams,
        ended_substreams=job.ended_substreams,
        in_flight=job.in_flight,
        late_reports=job.late_reports,
        producers=[_producer(producer) for producer in job.producers],
        fronts=[_front(front) for front in job.fronts],
        drain=drain_status(job.drain),
        log_id=job.log_id,
        incarnation=job.incarnation,
        unread_segments=job.unread_segments,
        staged_substreams=job.staged_substreams,
        staged_units=job.staged_units,
        staged_entries=job.staged_entries,
        tombstones=job.tombstones,
        cells=job.cells,
        incomplete_substreams=job.incomplete_substreams,
        expected=_count(job.expected),
        expected_sent=_count(job.expected_sent),
    )


def _producer(producer: status.ProducerStatus) -> wire.ProducerStatus:
    return wire.ProducerStatus(
        producer=producer.producer,
        run=producer.run,
        mode=wire.Mode.ValueType(producer.mode),
        committed_epoch=producer.committed_epoch,
        staged_epochs=producer.staged_epochs,
        closed=producer.closed,
        last_heard=_timestamp(producer.last_heard),
    )


def _front(front: status.FrontStatus) -> wire.FrontStatus:
    return wire.FrontStatus(
        front=front.front,
        finished=front.finished,
        idle=front.idle,
        frontiers=front.frontiers,
        producer=front.producer,
        last_promise=None if front.last_promise is None else _timestamp(front.last_promise),
        segments=front.segments,
    )


def substream(substream: status.SubstreamStatus) -> wire.SubstreamStatus:
    return wire.SubstreamStatus(
        scope=substream.scope,
        name=substream.name,
        end_time=substream.end_time,
        closed=substream.closed,
        waiting_for=substream.waiting_for,
        segments=[
            wire.SegmentStatus(
                segment=segment.segment,
                ended=segment.ended,
                xor=segment.xor,
                sent=segment.sent,
                received=segment.received,
                last_sender=segment.last_sender,
                last_receiver=segment.last_receiver,
                expected=None if segment.expected is None else _count(sum(segment.expected.values())),
                expected_by=segment.expected or {},
                closed=segment.closed,
                by_drain=segment.by_drain,
            )
            for segment in substream.segments
        ],
        late_reports=substream.late_reports,
        created=_timestamp(substream.created),
        changed=_timestamp(substream.changed),
        held_by=substream.held_by,
        by_drain=substream.by_drain,
    )


def explained(explained: status.Explained) -> wire.ExplainResponse:
    return wire.ExplainResponse(
        substream=None if explained.substream is None else substream(explained.substream),
        staged=[
            wire.StagedStatus(
                producer=staged.producer,
                epoch=staged.epoch,
                mode=wire.Mode.ValueType(staged.mode),
                sealed=staged.sealed,
                segments=[
                    wire.StagedCount(segment=segment, sent=sent, received=received)
                    for segment, sent, received in staged.segments
                ],
                closed_by=staged.closed_by,
                expected_by=staged.expected_by,
            )
            for staged in explained.staged
        ],
    )


def subscription(subscription: status.SubscriptionStatus) -> wire.SubscriptionStatus:
    def moment(ns: int | None) -> Timestamp | None:
        return None if ns is None else _timestamp(ns)

    return wire.SubscriptionStatus(
        name=subscription.name,
        segments=subscription.segments,
        scopes=subscription.scopes,
        acknowledged=subscription.acknowledged,
        max_age=_as_duration(subscription.max_age),
        max_events=subscription.max_events,
        retained=subscription.retained,
        oldest_retained=moment(subscription.oldest_retained),
        created=_timestamp(subscription.created),
        last_ack=moment(subscription.last_ack),
        expired=moment(subscription.expired),
        expired_because=subscription.expired_because,
    )


# ---------------------------------------------------------------- to the wire: events


def event(event: events.Event) -> wire.Event:
    seq, at, deployment, body = event
    head: dict[str, Any] = {"seq": seq, "at": _timestamp(at), "deployment": deployment}
    match body:
        case events.Ended():
            return wire.Event(**head, ended=ended(body))
        case events.Late():
            return wire.Event(**head, late=wire.Late(**body._asdict()))
        case events.Stalled():
            return wire.Event(**head, stalled=wire.Stalled(**body._asdict() | {"expected": _count(body.expected)}))
        case events.Excess():
            return wire.Event(**head, excess=wire.Excess(**body._asdict() | {"expected": _count(body.expected)}))
        case events.FrontIdle():
            return wire.Event(**head, front_idle=wire.FrontIdle(**body._asdict()))
        case events.DrainRequested(drain_id):
            return wire.Event(**head, drain_requested=wire.DrainEvent(drain_id=drain_id))
        case events.Drained(drain_id):
            return wire.Event(**head, drained=wire.DrainEvent(drain_id=drain_id))
        case events.DrainTimedOut(drain_id):
            return wire.Event(**head, drain_timed_out=wire.DrainEvent(drain_id=drain_id))
        case events.DrainCancelled(drain_id):
            return wire.Event(**head, drain_cancelled=wire.DrainEvent(drain_id=drain_id))
        case events.Advanced():
            return wire.Event(**head, advanced=wire.Advanced(segment=body.segment, time=body.time))


def ended(body: events.Ended) -> wire.Ended:
    return wire.Ended(
        segment=body.segment,
        scope=body.scope,
        name=body.name,
        end_time=body.end_time,
        elements=body.elements,
        reason=wire.Reason.ValueType(body.reason),
        in_flight=body.in_flight,
        by_drain=body.by_drain,
        expected=None if body.expected is None else _count(body.expected),
    )


def _count(number: int) -> int:
    """A sum of numbers, each of which the wire can carry: no larger than it can carry."""
    return min(number, 2**64 - 1)


def bookmark(event: events.Event) -> wire.Event:
    """Says that a watcher's filters let nothing through up to an event."""
    return wire.Event(seq=event.seq, at=_timestamp(event.at), deployment=event.deployment, bookmark=wire.Bookmark())
