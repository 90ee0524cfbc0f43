"""Requests, read as the core's commands.

A command is read from the bytes of its request alone, so the same bytes from a journal give the same command.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

from google.protobuf.message import Message

from tracker.contract import commands
from tracker.wire.gen import tracker_pb2 as wire

from .reports import read_commit_promises, read_report
from .values import optional, parse, read_asked, read_spec


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
    MOVED = 103  #: no command: the journal ends here; the payload has HOST:PORT of who continues, or nothing


def read_command(method: Method, data: bytes) -> commands.Command:
    """Return the command that a request asks for, or that time does.

    Raises:
        Refused: ``MALFORMED``: the request cannot be read, or a required field is missing.
    """
    if method is Method.TICK:
        return commands.Tick(data.decode())
    request, read = _READERS[method]
    return read(parse(request, data))


def _define_job(request: wire.DefineJobRequest) -> commands.DefineJob:
    return commands.DefineJob(read_spec(request.spec), force=request.force)


def _commit(request: wire.CommitRequest) -> commands.Commit:
    return commands.Commit(
        request.job,
        request.producer,
        request.run,
        optional(request, "epoch"),
        tuple(request.units.names) if request.HasField("units") else None,
        request.seal,
        *read_commit_promises(request.promises),
    )


def _as(kind: type[Any]) -> Callable[[Message], Any]:
    return lambda request: read_asked(request, kind)


_READERS: dict[Method, tuple[type[Message], Callable[[Any], commands.Command]]] = {
    Method.DEFINE_JOB: (wire.DefineJobRequest, _define_job),
    Method.DELETE_JOB: (wire.DeleteJobRequest, _as(commands.DeleteJob)),
    Method.OPEN_PRODUCER: (wire.OpenProducerRequest, _as(commands.OpenProducer)),
    Method.CLOSE_PRODUCER: (wire.CloseProducerRequest, _as(commands.CloseProducer)),
    Method.FORGET_PRODUCER: (wire.ForgetProducerRequest, _as(commands.ForgetProducer)),
    Method.FINISH_FRONT: (wire.FinishFrontRequest, _as(commands.FinishFront)),
    Method.REPORT: (wire.ReportRequest, read_report),
    Method.COMMIT: (wire.CommitRequest, _commit),
    Method.DRAIN: (wire.DrainRequest, _as(commands.Drain)),
    Method.CANCEL_DRAIN: (wire.CancelDrainRequest, _as(commands.CancelDrain)),
    Method.ABANDON: (wire.AbandonRequest, _as(commands.Abandon)),
    Method.SUBSCRIBE: (wire.SubscribeRequest, _as(commands.Subscribe)),
    Method.ACK: (wire.AckRequest, _as(commands.Ack)),
    Method.UNSUBSCRIBE: (wire.UnsubscribeRequest, _as(commands.Unsubscribe)),
}
