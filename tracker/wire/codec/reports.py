"""Commands: a client writes a report from what it has gathered, a server reads each request as the core's command.

Writing and reading take whole columns: nothing here takes a step for each entry. Names take one each.
A promise of a report names a substream by its number, one of a commit names it by itself.

A command is read from the bytes of its request alone, so the same bytes from a journal give the same command.

Reading columns needs nothing special: the contract's own messages give their packed columns to numpy in one piece
(`unpack_u4` and its like). Filling such a column does cost a step for each number, 60 ns and more; so writers use the
messages of `columns_pb2`, which declare the packed columns as bytes and make the same wire form. They are for writing
only: a legal writer may split a column or not pack it at all, and read as bytes it would lose numbers.

    >>> data = columns_pb2.ReportRequest(job="flights", xor=pack_u8([5, 7])).SerializeToString()
    >>> unpack_u8(wire.ReportRequest.FromString(data).xor)
    array([5, 7], dtype=uint64)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message
from numpy.typing import ArrayLike, NDArray

from tracker.contract import commands
from tracker.contract.commands import (
    Close,
    CommitPromise,
    Contents,
    Expect,
    Expected,
    Finish,
    Frontier,
    Identities,
    Promise,
    Reported,
)
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import I8, NO_END_TIME, U4, U8, Outcome

from ..gen import columns_pb2
from ..gen import tracker_pb2 as wire
from .values import optional, parse, read_asked, read_spec

_FEW = 48  # up to so many numbers, one by one is quicker


def pack_u4(numbers: ArrayLike) -> bytes:
    """Return a column of 32-bit numbers for a field of `columns_pb2`."""
    return np.asarray(numbers, "<u4").tobytes()


def pack_u8(numbers: ArrayLike) -> bytes:
    """Return a column of 64-bit numbers for a field of `columns_pb2`."""
    return np.asarray(numbers, "<u8").tobytes()


def pack_i8(numbers: ArrayLike) -> bytes:
    """Return a column of signed 64-bit numbers for a field of `columns_pb2`."""
    return np.asarray(numbers, "<i8").tobytes()


def unpack_u4(field: Sequence[int]) -> U4:
    """Return the numbers of a packed 32-bit field of `tracker_pb2`, copied once."""
    return np.asarray(field, np.uint32) if len(field) > _FEW else np.fromiter(field, np.uint32, len(field))


def unpack_u8(field: Sequence[int]) -> U8:
    """Return the numbers of a packed 64-bit field of `tracker_pb2`, copied once."""
    return np.asarray(field, np.uint64) if len(field) > _FEW else np.fromiter(field, np.uint64, len(field))


def unpack_i8(field: Sequence[int]) -> I8:
    """Return the numbers of a packed signed 64-bit field of `tracker_pb2`, copied once."""
    return np.asarray(field, np.int64) if len(field) > _FEW else np.fromiter(field, np.int64, len(field))


def read_promises(promises: Iterable[wire.Promise]) -> tuple[Promise, ...]:
    """Return a report's promises.

    Raises:
        Refused: ``MALFORMED``: a promise is of no kind, or names a substream otherwise than by its number.
    """
    if any(promise.expect.HasField("substream") for promise in promises if promise.HasField("expect")):
        raise Refused(Refusal.MALFORMED, "an expectation in a report must name its substream by `substream_index`")
    return tuple(map(_promise, promises))


def _promise(promise: wire.Promise) -> Promise:
    match promise.WhichOneof("kind"):
        case "frontier":
            given = promise.frontier
            return Frontier(given.front, given.time, given.scope if given.HasField("scope") else None)
        case "close":
            close = promise.close
            return Close(close.front, close.substream_index, close.only_without_fronts)
        case "finish":
            return Finish(promise.finish)
        case "expect":
            number = promise.expect
            xor = optional(number, "xor")
            return Expect(number.front, number.segment, number.substream_index, number.elements, number.revise, xor)
        case "identities":
            sent = promise.identities
            return Identities(sent.front, sent.segment, sent.substream_index, sent.xor)
        case _:
            raise Refused(
                Refusal.MALFORMED,
                "a promise has no known kind; give it a frontier, a close, a finish or an expectation",
            )


def read_commit_promises(
    promises: Iterable[wire.Promise],
) -> tuple[tuple[Promise, ...], tuple[tuple[str, str, int | None], ...]]:
    """Return a commit's promises, and the substreams that its expectations name: each its own place among them.

    Raises:
        Refused: ``MALFORMED``: a promise is of no kind, or an expectation does not name its substream.
    """
    read: list[Promise] = []
    substreams: list[tuple[str, str, int | None]] = []
    for promise in promises:
        each = _promise(promise)
        if isinstance(each, Identities):
            raise Refused(Refusal.MALFORMED, "identities are of elements, which a commit has none of: report them")
        if isinstance(each, Expect):
            if not promise.expect.HasField("substream"):
                raise Refused(
                    Refusal.MALFORMED, "an expectation in a commit must name its substream (`substream`), not an index"
                )
            each = replace(each, substream_index=len(substreams))
            named = promise.expect.substream
            substreams.append((named.scope, named.name, optional(named, "end_time")))
        read.append(each)
    return tuple(read), tuple(substreams)


def write_promises(promises: Iterable[Promise | CommitPromise], places: Sequence[int] = ()) -> list[wire.Promise]:
    """Write promises of a report, or of a commit.

    Args:
        places: for each of the report's substreams its number on the wire.

    Raises:
        ValueError: a negative number of elements is expected.
    """
    messages = []
    for promise in promises:
        match promise:
            case Frontier(front, time, scope):
                frontier = wire.Frontier(front=front, scope=scope, time=time)
                messages.append(wire.Promise(frontier=frontier))
            case Finish(front):
                messages.append(wire.Promise(finish=front))
            case Close(front, substream, only):
                close = wire.Close(front=front, substream_index=places[substream], only_without_fronts=only)
                messages.append(wire.Promise(close=close))
            case Expect(front, segment, substream, elements, revise, xor):
                expect = wire.Expect(front=front, segment=segment, elements=elements, revise=revise, xor=xor)
                expect.substream_index = places[substream]
                messages.append(wire.Promise(expect=expect))
            case Identities(front, segment, substream, xor):
                sent = wire.Identities(front=front, segment=segment, substream_index=places[substream], xor=xor)
                messages.append(wire.Promise(identities=sent))
            case Expected(front, segment, scope, name, elements, end_time, revise, xor):
                if elements < 0:
                    raise ValueError(f"elements={elements} is not valid; a front expects 0 elements or more")
                expect = wire.Expect(front=front, segment=segment, elements=elements, revise=revise, xor=xor)
                expect.substream.CopyFrom(wire.SubstreamName(scope=scope, name=name, end_time=end_time))
                messages.append(wire.Promise(expect=expect))
    return messages


_N = TypeVar("_N", bound=np.generic)


def write_report(
    contents: Contents, log_id: str, ids: Sequence[int | None], want_ids: bool
) -> tuple[columns_pb2.ReportRequest, list[int]]:
    """Write the contents of a report: substreams by id where there is one, else by name.

    Args:
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
        promises=write_promises(contents.promises, places.tolist()),
        want_ids=want_ids and bool(by_name),
    )
    return message, by_name


def read_report(request: wire.ReportRequest, more: Sequence[wire.ReportRequest] = ()) -> commands.Report:
    """Return the command of a report that is already parsed.

    Args:
        more: its repeated fields go on in these, as `limits.pieces` cuts a large one.
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
        promises=tuple(promise for part in parts for promise in read_promises(part.promises)),
        commit=request.commit,
    )


def read_large_report(pieces: Iterable[bytes]) -> commands.Report:
    """Return the command of a report that comes in pieces: the first whole but for its repeated fields, they in the
    others.

    It takes as long as reading it in one piece, but no step of it takes long, so that other threads get their turns.
    """
    first, *more = (parse(wire.ReportRequest, piece) for piece in pieces)
    return read_report(first, more)


def _strings(parts: Sequence[Sequence[str]]) -> Sequence[str]:
    if len(parts) == 1:
        return tuple(parts[0])
    strings: list[str] = []
    for part in parts:
        strings.extend(part)
    return strings


def _column(parts: Sequence[NDArray[_N]]) -> NDArray[_N]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def write_reported(answer: Reported) -> columns_pb2.ReportResponse:
    response = columns_pb2.ReportResponse(
        outcome=wire.ReportResponse.Outcome.ValueType(answer.outcome.number),
        duplicate_units=answer.duplicate_units,
        last_seq=answer.last_seq,
        log_id=answer.log_id,
    )
    if answer.substream_ids is not None:
        response.substream_ids = pack_u8(answer.substream_ids)
    return response


def read_reported(message: wire.ReportResponse) -> Reported:
    return Reported(
        outcome=Outcome.of(message.outcome),
        duplicate_units=tuple(message.duplicate_units),
        last_seq=message.last_seq,
        log_id=message.log_id,
    )


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
    Method.DEFINE_JOB: (wire.DefineJobRequest, lambda asked: commands.DefineJob(read_spec(asked.spec), asked.force)),
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
