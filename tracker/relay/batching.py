"""Who waits for whom: reports that come while another of their epoch is under way are sent together.

A report that comes alone is sent at once. Those that come before it is answered gather, and go when the answer comes
or when the first of them has waited for `max_delay`, whichever is sooner. So an idle relay adds no delay, a busy one
adds a bounded one, and the busier it is the more it combines. A caller hears only what the tracker has said; a caller
who has gone before his report was sent is forgotten. Nothing is repeated here: what the tracker did not answer is told
to the callers, who repeat it, and who know for how long they want to.
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

#: sends a report to the tracker, for so many seconds at most; its answer, or `grpc.aio.AioRpcError`
Send: TypeAlias = Callable[[bytes, float | None], Awaitable[bytes]]


_CALL_BYTES = 4096  # what a call takes beside its request


class FullError(Exception):
    """The relay holds as much as it may."""


class Budget:
    """How many bytes of requests a relay holds that the tracker has not answered, of whatever call.

    Args:
        most: so many at most. One request alone always passes: what a single message may have is another bound.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pending = 0

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """While so many bytes are held.

        Raises:
            FullError: it would be too much.
        """
        size += _CALL_BYTES
        if self._pending and self._pending + size > self._most:
            needed = self._pending + size
            raise FullError(
                f"limit max_pending_bytes={self._most} of the relay exceeded: the request needs {needed}; "
                "the tracker is slower than its callers: retry later"
            )
        self._pending += size
        try:
            yield
        finally:
            self._pending -= size


@dataclass(slots=True, eq=False)
class _Waiting:
    """A report whose caller waits."""

    data: bytes
    part: Part
    until: float | None  #: on the loop's clock
    answer: asyncio.Future[bytes]

    def tell(self, answer: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


@dataclass(slots=True)
class _Lane:
    """The reports of one key."""

    waiting: list[_Waiting] = field(default_factory=list)
    under_way: int = 0
    alarm: asyncio.TimerHandle | None = None


class Batcher:
    """Gathers, sends and answers reports.

    Args:
        send: how a report gets to the tracker.
        max_delay: seconds that a report waits at most for others.
        budget: of what is not answered; others may have a part in it.

    Attributes:
        taken: reports taken, so far.
        sent: messages sent for them.
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
        """The tracker's answer to a report.

        Args:
            data: the report as it came.
            timeout: seconds that its caller still waits; None: for ever.

        Raises:
            FullError: too much is held already.
            grpc.aio.AioRpcError: the tracker's refusal, or there is no answer.
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
        """Send all that waits, in as few messages as can be."""
        if lane.alarm is not None:
            lane.alarm.cancel()
            lane.alarm = None
        groups: list[tuple[Capacity, list[_Waiting]]] = []
        for waiting in lane.waiting:
            if waiting.answer.done():  # its caller has gone
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
        """Have the tracker's word for each of a group."""
        while len(group) > 1:
            parts = [waiting.part for waiting in group]
            combined = combine(parts)
            try:
                answer = await self._pass_on(combined.request, _time_left(group))
            except grpc.aio.AioRpcError as error:
                if refusal(error) is None:
                    # It was not the reports: each would have got the same.
                    for waiting in group:
                        waiting.fail(error)
                    return
                # Something in one of them is refused; which, it will say itself.
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
    """Seconds until nobody of a group waits any more; None: somebody waits for ever."""
    now = asyncio.get_running_loop().time()
    left = 0.0
    for waiting in group:
        if waiting.until is None:
            return None
        left = max(left, waiting.until - now)
    return left
