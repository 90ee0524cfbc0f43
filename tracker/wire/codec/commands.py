"""Requests, read as the core's commands.

A command is read from the bytes of its request alone, so the same bytes from a journal give the same command.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from tracker.contract import commands
from tracker.contract.values import Mode
from tracker.wire.gen import tracker_pb2 as wire

from .fields import enumeration, optional, parse, read_duration
from .jobs import read_asked_mode, read_spec
from .promises import read_commit_promises
from .reports import read_report


class Method(IntEnum):
    """Name of a command in a journal; the numbers never change."""

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
    RESTORED = 102  #: no command: the state of a backup, which is in the snapshot after this record
    MOVED = 103  #: no command: the journal ends here, and a backup has what was in it


def read_command(method: Method, data: bytes) -> commands.Command:
    """Return the command that a request asks for, or that time does.

    Raises:
        Refused: ``MALFORMED``: the request cannot be read, or a required field is missing.
    """
    return _READERS[method](data)


def _define_job(data: bytes) -> commands.DefineJob:
    request = parse(wire.DefineJobRequest, data)
    return commands.DefineJob(read_spec(request.spec), force=request.force)


def _delete_job(data: bytes) -> commands.DeleteJob:
    request = parse(wire.DeleteJobRequest, data)
    return commands.DeleteJob(request.job, request.force)


def _open_producer(data: bytes) -> commands.OpenProducer:
    request = parse(wire.OpenProducerRequest, data)
    return commands.OpenProducer(
        request.job,
        request.producer,
        request.run,
        enumeration(Mode, request.mode, "mode"),
        optional(request, "resume_epoch"),
        request.seals,
    )


def _close_producer(data: bytes) -> commands.CloseProducer:
    request = parse(wire.CloseProducerRequest, data)
    return commands.CloseProducer(request.job, request.producer, request.run, optional(request, "resume_epoch"))


def _forget_producer(data: bytes) -> commands.ForgetProducer:
    request = parse(wire.ForgetProducerRequest, data)
    return commands.ForgetProducer(request.job, request.producer)


def _finish_front(data: bytes) -> commands.FinishFront:
    request = parse(wire.FinishFrontRequest, data)
    return commands.FinishFront(request.job, request.front)


def _report(data: bytes) -> commands.Report:
    return read_report(parse(wire.ReportRequest, data))


def _commit(data: bytes) -> commands.Commit:
    request = parse(wire.CommitRequest, data)
    return commands.Commit(
        request.job,
        request.producer,
        request.run,
        optional(request, "epoch"),
        tuple(request.units.names) if request.HasField("units") else None,
        request.seal,
        *read_commit_promises(request.promises),
    )


def _drain(data: bytes) -> commands.Drain:
    request = parse(wire.DrainRequest, data)
    return commands.Drain(
        request.job,
        request.deployment,
        request.drain_id,
        read_duration(request, "timeout"),
        read_asked_mode(request.mode),
    )


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
        optional(request, "after_seq"),
        read_duration(request, "max_age"),
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
