"""Reports that are sent together: those that come while another report of their epoch is under way.

A report that comes alone is sent at once. The reports that come before it is answered wait. They are sent together when
the answer comes, or when the first of them has waited for `max_delay`, whichever is sooner. So an idle relay adds no
delay, a busy one adds a bounded delay, and the busier it is, the more it combines.

A caller gets only the tracker's own answer. The report of a caller that has gone before it was sent is dropped. The
relay repeats nothing: if the tracker does not answer, the callers get the error, and they decide whether to repeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import grpc.aio

from tracker.client.calls import refusal

from .combining import Capacity, Key, Part, combine, shares

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
        pending: the bytes now.
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
