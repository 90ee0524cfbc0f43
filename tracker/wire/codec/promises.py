"""Promises: of a report, which names substreams by number, and of a commit, which names each by itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tracker.contract.promises import Close, CommitPromise, Expect, Expected, Finish, Frontier, Promise
from tracker.contract.refusal import Refusal, Refused
from tracker.wire.gen import tracker_pb2 as wire

from .fields import optional


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
            return Expect(number.front, number.segment, number.substream_index, number.elements, number.revise)
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
                frontier = wire.Frontier(front=front, scope=scope, time=time)
                messages.append(wire.Promise(frontier=frontier))
            case Finish(front):
                messages.append(wire.Promise(finish=front))
            case Close(front, substream, only):
                close = wire.Close(front=front, substream_index=places[substream], only_without_fronts=only)
                messages.append(wire.Promise(close=close))
            case Expect(front, segment, substream, elements, revise):
                expect = wire.Expect(front=front, segment=segment, elements=elements, revise=revise)
                expect.substream_index = places[substream]
                messages.append(wire.Promise(expect=expect))
            case Expected(front, segment, scope, name, elements, end_time, revise):
                if elements < 0:
                    raise ValueError(f"elements={elements} is not valid; a front expects 0 elements or more")
                expect = wire.Expect(front=front, segment=segment, elements=elements, revise=revise)
                expect.substream.CopyFrom(wire.SubstreamName(scope=scope, name=name, end_time=end_time))
                messages.append(wire.Promise(expect=expect))
    return messages
