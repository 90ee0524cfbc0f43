"""Reports that are sent together: those that come while another report of their epoch is under way.

A report that comes alone is sent at once. The reports that come before it is answered wait. They are sent together when
the answer comes, or when the first of them has waited for `max_delay`, whichever is sooner. So an idle relay adds no
delay, a busy one adds a bounded delay, and the busier it is, the more it combines.

A caller gets only the tracker's own answer. The report of a caller that has gone before it was sent is dropped. The
relay repeats nothing: if the tracker does not answer, the callers get the error, and they decide whether to repeat.

`combine` and `shares` are pure: they make several reports of one epoch one, and split its answer. The tracker's state
is the same: reports are combined only while none of them is answered, so no caller can tell in
which order they would have been applied. They belong to one (job, producer, run, epoch), hold only entries, and have no
unit in common. Entries of an epoch commute and add up. Promises and commits do not, so a report with one of these is
sent alone; so is a report that its sender wants kept apart. A report that does not follow the contract is sent alone,
too: the tracker has to refuse it.

There is one thing that the tracker cannot do with a combined report: accept a part of it. So `shares` passes an answer
that names some units as duplicates to the callers that reported these units, and the other reports are sent again. For
the same reason, reports of which an engine may drop single units are kept apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from tracker.client.calls import refusal
from tracker.client.report import Rows, combined
from tracker.contract.commands import Report
from tracker.contract.values import I8, NO_END_TIME, U4
from tracker.wire import codec
from tracker.wire.codec import pack_i8, pack_u4, pack_u8, unpack_u8
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire

_MOST_COUNTED = 2**32 - 1  # the largest count of one entry
_MOST_BYTES = 2 << 20  # of the reports in a combined one: more would save next to nothing, and delay others
_SEGMENT_BITS = np.uint64(32)


class Key(NamedTuple):
    """Values that reports must share to be combined."""

    job: str
    producer: str
    run: str
    epoch: int


class Part(NamedTuple):
    """A report that may be combined with others of its key."""

    key: Key
    report: Report
    end_times: I8  #: one for each name
    size: int  #: bytes on the wire

    @classmethod
    def read(cls, data: bytes) -> Part | None:
        """Parse a report; return None if it must not be combined, so that the relay passes its bytes on unchanged."""
        try:
            request = wire.ReportRequest.FromString(data)
        except DecodeError:
            return None
        units = request.units
        apart = request.keep_apart or request.commit or len(request.promises) > 0
        # An unknown field may be important, so it must not get lost.
        if apart or not units or len(set(units)) < len(units) or len(UnknownFieldSet(request)):
            return None
        report = codec.read_report(request)
        key = Key(report.job, report.producer, report.run, report.epoch)
        end_times = report.end_times if len(report.end_times) else np.full(len(report.names), NO_END_TIME, np.int64)
        return cls(key, report, end_times, len(data)) if _is_whole(report, end_times) else None

    @property
    def log_id(self) -> str:
        """The log that its ids are of; empty without ids."""
        return self.report.log_id if len(self.report.substream_ids) else ""


def _is_whole(report: Report, end_times: I8) -> bool:
    columns = (report.substream_index, report.segment_index, report.xor, report.sent, report.received)
    return (
        all(len(column) == report.entry_count for column in columns)
        and len(report.scope_index) == len(end_times) == len(report.names)
        and _below(report.scope_index, len(report.scopes))
        and _below(report.substream_index, len(report.names) + len(report.substream_ids))
        and _below(report.segment_index, len(report.segments))
        and (bool(report.log_id) or not len(report.substream_ids))
    )


def _below(indexes: U4, size: int) -> bool:
    return not len(indexes) or int(indexes.max()) < size


class Capacity:
    """Room for more reports in one combined report of a key."""

    def __init__(self) -> None:
        self._units: set[str] = set()
        self._log_id = ""
        self._sent = self._received = self._bytes = 0

    def take(self, part: Part) -> bool:
        """Add a report; return False if it needs another combined report.

        Two reports of the same unit cannot be in one message, nor can ids of two logs. No count may overflow, and the
        number of bytes is bounded.
        """
        sent, received = self._sent + int(part.report.sent.sum()), self._received + int(part.report.received.sum())
        size = self._bytes + part.size
        if self._bytes and (
            size > _MOST_BYTES
            or max(sent, received) > _MOST_COUNTED
            or (self._log_id and part.log_id and self._log_id != part.log_id)
            or not self._units.isdisjoint(part.report.units)
        ):
            return False
        self._units.update(part.report.units)
        self._log_id = self._log_id or part.log_id
        self._sent, self._received, self._bytes = sent, received, size
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """One report with the entries of several."""

    request: bytes
    places: Sequence[NDArray[np.int64]]  #: for each part, the positions of its names among the request's


def combine(parts: Sequence[Part]) -> Combined:
    """Combine reports into one.

    Args:
        parts: reports of one key that fit into one `Capacity`.
    """
    scopes: dict[str, int] = {}
    segments: dict[str, int] = {}
    named: dict[tuple[int, str, int], int] = {}
    places = [_enter_names(part, scopes, named) for part in parts]
    ids, of_ids = np.unique(np.concatenate([part.report.substream_ids for part in parts]), return_inverse=True)
    entries: list[Rows] = []
    first_id = 0
    for part, names in zip(parts, places, strict=True):
        report = part.report
        past_id = first_id + len(report.substream_ids)
        substreams = np.concatenate([names, of_ids[first_id:past_id] + len(named)]).astype(np.uint64)
        first_id = past_id
        numbers = np.array([segments.setdefault(segment, len(segments)) for segment in report.segments], np.uint64)
        if len(report.xor):
            cells = substreams[report.substream_index] << _SEGMENT_BITS | numbers[report.segment_index]
            entries.append((cells, report.xor, report.sent.astype(np.int64), report.received.astype(np.int64)))
    cell, xor, sent, received = combined(entries)
    end_times = np.array([end_time for _, _, end_time in named], np.int64)
    key = parts[0].key
    request = columns_pb2.ReportRequest(
        job=key.job,
        producer=key.producer,
        run=key.run,
        epoch=key.epoch,
        units=[unit for part in parts for unit in part.report.units],
        scopes=list(scopes),
        names=[name for _, name, _ in named],
        scope_index=pack_u4([scope for scope, _, _ in named]),
        end_times=pack_i8(end_times) if (end_times != NO_END_TIME).any() else b"",
        substream_ids=pack_u8(ids),
        log_id=next((part.log_id for part in parts if part.log_id), ""),
        want_ids=any(part.report.want_ids for part in parts),
        segments=list(segments),
        substream_index=pack_u4(cell >> _SEGMENT_BITS),
        segment_index=pack_u4(cell & np.uint64(2**32 - 1)),
        xor=pack_u8(xor),
        sent=pack_u4(sent),
        received=pack_u4(received),
        entry_count=len(cell),
    )
    return Combined(request.SerializeToString(), places)


def _enter_names(part: Part, scopes: dict[str, int], named: dict[tuple[int, str, int], int]) -> NDArray[np.int64]:
    """Enter a part's names into the tables and return their positions there.

    A name with two end times gets two positions, so that the tracker notices the conflict.
    """
    numbers = [scopes.setdefault(scope, len(scopes)) for scope in part.report.scopes]
    rows = zip(part.report.scope_index.tolist(), part.report.names, part.end_times.tolist(), strict=True)
    return np.fromiter(
        (named.setdefault((numbers[scope], name, end_time), len(named)) for scope, name, end_time in rows),
        np.int64,
        len(part.end_times),
    )


def shares(parts: Sequence[Part], together: Combined, answer: bytes) -> list[bytes | None]:
    """Return the answer for each part's caller: the same that the caller would have got for its report alone.

    Returns:
        An answer for each part, or None for a part that has to be sent again: after PARTIAL_DUPLICATE the tracker has
        applied nothing, and this part is not a duplicate.
    """
    response = wire.ReportResponse.FromString(answer)
    if response.outcome == wire.ReportResponse.PARTIAL_DUPLICATE:
        duplicates = frozenset(response.duplicate_units)
        return [_share_of_duplicates(part, duplicates, response) for part in parts]
    ids = unpack_u8(response.substream_ids)
    own: list[bytes | None] = []
    for part, places in zip(parts, together.places, strict=True):
        share = columns_pb2.ReportResponse(outcome=response.outcome, last_seq=response.last_seq, log_id=response.log_id)
        if part.report.want_ids and len(ids):
            share.substream_ids = pack_u8(ids[places])
        own.append(share.SerializeToString())
    return own


def _share_of_duplicates(part: Part, duplicates: frozenset[str], whole: wire.ReportResponse) -> bytes | None:
    own = [unit for unit in part.report.units if unit in duplicates]
    if not own:
        return None
    share = columns_pb2.ReportResponse(
        outcome=wire.ReportResponse.DUPLICATE, last_seq=whole.last_seq, log_id=whole.log_id
    )
    if len(own) < len(part.report.units):
        share.outcome = wire.ReportResponse.PARTIAL_DUPLICATE
        share.duplicate_units.extend(own)
    return share.SerializeToString()


#: Sends a report to the tracker within a number of seconds; returns the answer, or raises `grpc.aio.AioRpcError`.
Send: TypeAlias = Callable[[bytes, float | None], Awaitable[bytes]]


_CALL_BYTES = 4096  # bytes that a call takes in addition to its request


class FullError(Exception):
    """The relay's limit of pending bytes is reached."""


class Budget:
    """Bound on the bytes of the requests, of all calls, that the tracker has not answered yet.

    Args:
        most: the most bytes. A request always passes if it is the only one: the size of a message has its own limit.

    Attributes:
        pending: bytes of the requests that wait for an answer now.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.pending = 0

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count a request's bytes as pending while the context lasts.

        Raises:
            FullError: the limit is reached.
        """
        size += _CALL_BYTES
        if self.pending and self.pending + size > self.most:
            needed = self.pending + size
            raise FullError(
                f"limit max_pending_bytes={self.most} of the relay exceeded: the request needs {needed}; "
                "the tracker is slower than its callers: retry later"
            )
        self.pending += size
        try:
            yield
        finally:
            self.pending -= size


@dataclass(slots=True, eq=False)
class _Waiting:
    """A report whose caller waits."""

    data: bytes
    part: Part
    until: float | None  #: when the caller gives up, on the loop's clock; None: never
    answer: asyncio.Future[bytes]

    def tell(self, answer: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True)
class _Lane:
    """The reports of one key, which may be combined."""

    waiting: list[_Waiting] = field(default_factory=list)
    under_way: int = 0
    alarm: asyncio.TimerHandle | None = None


class Batcher:
    """Collector and sender of reports, which passes the answers on.

    Args:
        max_delay: the most seconds that a report waits for others.
        budget: bounds the bytes that are pending, together with other calls.

    Attributes:
        taken: the number of reports accepted so far.
        sent: the number of messages sent for them.
    """

    def __init__(self, send: Send, max_delay: float, budget: Budget) -> None:
        self._send = send
        self._max_delay = max_delay
        self._budget = budget
        self._lanes: dict[Key, _Lane] = {}
        self._deliveries: set[asyncio.Task[None]] = set()
        self.taken = 0
        self.sent = 0

    async def report(self, data: bytes, timeout: float | None) -> bytes:
        """Send a report, alone or together with others, and return the tracker's answer.

        Args:
            timeout: seconds that the caller still waits; None: for ever.

        Raises:
            FullError: too many bytes are pending.
            grpc.aio.AioRpcError: the tracker refuses the report, or does not answer.
        """
        with self._budget.holding(len(data)):
            self.taken += 1
            part = Part.read(data)
            if part is None:
                return await self._pass_on(data, timeout)
            loop = asyncio.get_running_loop()
            until = None if timeout is None else loop.time() + timeout
            waiting = _Waiting(data, part, until, loop.create_future())
            self._join(waiting)
            return await waiting.answer

    async def _pass_on(self, data: bytes, timeout: float | None) -> bytes:
        self.sent += 1
        return await self._send(data, timeout)

    def _join(self, waiting: _Waiting) -> None:
        key = waiting.part.key
        lane = self._lanes.setdefault(key, _Lane())
        lane.waiting.append(waiting)
        if not lane.under_way:
            self._dispatch(key, lane)
        elif lane.alarm is None:
            lane.alarm = asyncio.get_running_loop().call_later(self._max_delay, self._dispatch, key, lane)

    def _dispatch(self, key: Key, lane: _Lane) -> None:
        """Send all waiting reports, in as few messages as possible."""
        if lane.alarm is not None:
            lane.alarm.cancel()
            lane.alarm = None
        groups: list[tuple[Capacity, list[_Waiting]]] = []
        for waiting in lane.waiting:
            if waiting.answer.done():  # the caller has gone
                continue
            for capacity, group in groups:
                if capacity.take(waiting.part):
                    group.append(waiting)
                    break
            else:
                capacity = Capacity()
                capacity.take(waiting.part)
                groups.append((capacity, [waiting]))
        lane.waiting.clear()
        for _, group in groups:
            lane.under_way += 1
            delivery = asyncio.create_task(self._deliver(key, lane, group))
            self._deliveries.add(delivery)
            delivery.add_done_callback(self._deliveries.discard)
        if not lane.under_way:
            self._lanes.pop(key, None)

    async def _deliver(self, key: Key, lane: _Lane, group: Sequence[_Waiting]) -> None:
        try:
            await self._settle(group)
        except Exception as fault:
            for waiting in group:
                waiting.fail(fault)
            raise
        finally:
            lane.under_way -= 1
            self._dispatch(key, lane)

    async def _settle(self, group: Sequence[_Waiting]) -> None:
        """Get the tracker's answer to each report of a group."""
        while len(group) > 1:
            parts = [waiting.part for waiting in group]
            combined = combine(parts)
            try:
                answer = await self._pass_on(combined.request, _time_left(group))
            except grpc.aio.AioRpcError as error:
                if refusal(error) is None:
                    # The cause is not in the reports: each of them would get the same error.
                    for waiting in group:
                        waiting.fail(error)
                    return
                # The tracker refuses something in one of them. Sent one by one, that one gets the refusal.
                await asyncio.gather(*(self._settle_one(waiting) for waiting in group))
                return
            again = []
            for waiting, share in zip(group, shares(parts, combined, answer), strict=True):
                if share is None:
                    again.append(waiting)
                else:
                    waiting.tell(share)
            group = again
        for waiting in group:
            await self._settle_one(waiting)

    async def _settle_one(self, waiting: _Waiting) -> None:
        try:
            waiting.tell(await self._pass_on(waiting.data, _time_left([waiting])))
        except grpc.aio.AioRpcError as error:
            waiting.fail(error)


def _time_left(group: Sequence[_Waiting]) -> float | None:
    """Return the seconds until the last caller of a group gives up; None if one of them waits for ever."""
    now = asyncio.get_running_loop().time()
    left = 0.0
    for waiting in group:
        if waiting.until is None:
            return None
        left = max(left, waiting.until - now)
    return left
