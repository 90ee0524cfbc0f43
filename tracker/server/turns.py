"""Fair turns for readers: those that wait go on a few at a time, so that reports are answered in between."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

from .sequencer import stopping

_AT_ONCE = 4  # readers that go on in one round of the event loop, and of which gRPC has something at a time
_STUCK_S = 0.01  # what takes longer waits for a reader that takes nothing


class Turns:
    """Turns of waiting readers, a few in each round of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def turn(self) -> asyncio.Future[None]:
        """Return a future that is done when it is the caller's turn."""
        turn = asyncio.get_running_loop().create_future()
        self.add([turn])
        return turn

    def add(self, waiting: list[asyncio.Future[None]] | set[asyncio.Future[None]]) -> None:
        """Complete each of these futures when its turn comes."""
        self._waiting.extend(waiting)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        granted = 0
        while self._waiting and granted < _AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                granted += 1
        self._scheduled = bool(self._waiting)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._grant)


class Passage:
    """Limit on how many readers gRPC works for at a time, to receive a request or send a message.

    gRPC reports finished sends and new calls in one queue. With messages on their way to very many readers, a new call
    would wait behind all of them. A message that its reader does not take is in no queue, so after a moment it no
    longer counts.

    >>> passing = await passage.enter()     # doctest: +SKIP
    ... try:
    ...     await send()
    ... finally:
    ...     passage.leave(passing)
    """

    def __init__(self) -> None:
        self._under_way: dict[object, float] = {}  # with the time when each began, the oldest first
        self._waiting: deque[asyncio.Future[object]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self) -> object:
        """Wait for a turn, and return what the caller must pass to `leave` afterwards."""
        if not self._waiting and len(self._under_way) < _AT_ONCE:
            return self._begin()
        waiting: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._grant()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.leave(waiting.result())
            raise

    def leave(self, passing: object) -> None:
        """End a turn, because the work is done or the caller gives up."""
        self._under_way.pop(passing, None)
        if self._waiting:
            self._grant()

    def _begin(self) -> object:
        passing = object()
        self._under_way[passing] = asyncio.get_running_loop().time()
        return passing

    def _grant(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            if len(self._under_way) >= _AT_ONCE:
                oldest, since = next(iter(self._under_way.items()))
                if loop.time() < since + _STUCK_S:
                    if self._timer is None:
                        self._timer = loop.call_at(since + _STUCK_S, self._look_again)
                    return
                del self._under_way[oldest]
            self._waiting.popleft().set_result(self._begin())

    def _look_again(self) -> None:
        self._timer = None
        self._grant()


class Notifier:
    """Waker of readers that wait for news of a job.

    Args:
        turns: spreads the readers that are woken over rounds of the event loop.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._stopped = False

    def notify(self, job: str) -> None:
        """Wake all that wait for news of this job."""
        if self._waiting:
            waiting = self._waiting.pop(job, None)
            if waiting:
                self._turns.add(waiting)

    def stop(self) -> None:
        """Wake all readers; from now on `wait` refuses."""
        self._stopped = True
        self.notify_all()

    def notify_all(self) -> None:
        """Wake all readers."""
        for job in list(self._waiting):
            self.notify(job)

    async def wait(self, job: str, timeout: float | None = None) -> bool:
        """Sleep until there is news of a job.

        Args:
            timeout: the most seconds to wait; None: no limit.

        Returns:
            False if there was no news in time.

        Raises:
            Refused: the server stops.
        """
        if self._stopped:
            raise stopping()
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[job].add(waiting)
        try:
            if timeout is None:
                await waiting
            else:
                await asyncio.wait_for(waiting, timeout)
        except TimeoutError:
            return False
        finally:
            if job in self._waiting:
                self._waiting[job].discard(waiting)
                if not self._waiting[job]:
                    del self._waiting[job]
        if self._stopped:
            raise stopping()
        return True
