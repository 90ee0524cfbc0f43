"""Fair turns: each job has a lane, where its commands and look-ups are carried out one after the other.

Jobs know nothing of one another, so what is done in one lane never waits for another. What is quick is done at once,
on the event loop; what may take long is done in a thread, and only its own job waits for it. Python's threads take
turns of `TURN_S`, so that the event loop always gets the next one.

A thread makes large reports up to twice as expensive: numpy gives the turn away at each step, and has to wait for the
next. So a job that is alone pays it only for what takes very long.

The order of a lane is the order of `run`, and that of the journal; so the same journal, replayed one command after the
other, gives the same state. A job's state must be touched in its lane alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

TURN_S = 0.0005  #: how long one thread runs while another wants to: for `sys.setswitchinterval`
_LOOP_S = 0.005  # how long a lane that catches up works before others get a turn
_THREADS = 4
LONG = 3_000  #: rows: what may touch more than so many is done in a thread, if there are other jobs to wait for it
_VERY_LONG = 32_000  # rows: and this if there are none; some 6 ms
_ALONE_S = 1.0  # how long nothing was done for other jobs, when a job is alone


@dataclass(slots=True)
class _Item(Generic[_T]):
    work: Callable[[], _T]
    weight: Callable[[], int]
    done: asyncio.Future[_T]
    after: asyncio.Future[Any] | None  #: nothing of it may happen before this is done
    optional: bool  #: it need not be done if its caller has gone


@dataclass(slots=True)
class _Lane:
    """A job with something under way."""

    waiting: deque[_Item[Any]] = field(default_factory=deque)
    running: asyncio.Future[Any] | None = None


class Lanes:
    """The lanes of all jobs; for one event loop.

    >>> async def example() -> list[str]:
    ...     lanes, said = Lanes(), []
    ...     slow = lanes.run("a", lambda: said.append("long"), lambda: LONG + 1)
    ...     after = lanes.run("a", lambda: said.append("after it"), lambda: 1)
    ...     lanes.run("b", lambda: said.append("meanwhile"), lambda: 1)
    ...     await asyncio.gather(slow, after)
    ...     lanes.close()
    ...     return said if said[0] == "long" else sorted(said)
    >>> len(asyncio.run(example()))
    3
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._newest = ""  # the job that something was done for last
        self._changed = -_ALONE_S  # when that was another one
        self.threads = ThreadPoolExecutor(_THREADS, "lane")

    def busy(self) -> list[str]:
        """The jobs with something under way."""
        return list(self._lanes)

    def is_busy(self, job: str) -> bool:
        return job in self._lanes

    def run(
        self,
        job: str,
        work: Callable[[], _T],
        weight: Callable[[], int],
        after: asyncio.Future[Any] | None = None,
        optional: bool = False,
    ) -> _T | asyncio.Future[_T]:
        """Do something in a job's lane; what it returned, or what will give it.

        Args:
            weight: how many rows it may touch, asked when its turn has come.
            after: another item's future that must be done first, whatever comes of it.
            optional: it need not be done if the caller has gone before its turn: a look-up.

        Raises:
            Exception: what `work` raised. So may awaiting do.
        """
        lane = self._lanes.get(job)
        if lane is None and (after is None or after.done()):
            rows = weight()
            if rows <= self._long(job):
                return work()
            lane = self._lanes[job] = _Lane()
            item = _Item(work, lambda: _VERY_LONG + 1, asyncio.get_running_loop().create_future(), None, optional)
            lane.waiting.append(item)
            self._go_on(job, lane)
            return item.done
        item = _Item(work, weight, asyncio.get_running_loop().create_future(), after, optional)
        if lane is None:
            lane = self._lanes[job] = _Lane()
            lane.waiting.append(item)
            self._go_on(job, lane)
        else:
            lane.waiting.append(item)
        return item.done

    def _long(self, job: str) -> int:
        """How many rows of a job are too many to be touched on the event loop."""
        if job != self._newest:
            self._newest = job
            self._changed = time.monotonic()
            return LONG
        return _VERY_LONG if time.monotonic() - self._changed > _ALONE_S else LONG

    async def idle(self) -> None:
        """Wait until no lane has anything under way."""
        while self._lanes:
            lane = next(iter(self._lanes.values()))
            waiting = [lane.running] if lane.running is not None else []
            waiting += [item.done for item in lane.waiting]
            if waiting:
                await asyncio.wait(waiting)
            await asyncio.sleep(0)

    def close(self) -> None:
        """Give the threads up, when nothing is under way."""
        self.threads.shutdown(wait=False)

    def _go_on(self, job: str, lane: _Lane) -> None:
        """Do what waits in a lane, as far as it goes now."""
        turn = time.monotonic()
        while lane.waiting:
            item = lane.waiting[0]
            if item.after is not None and not item.after.done():
                item.after.add_done_callback(lambda _: self._go_on(job, lane))
                lane.running = item.after
                return
            if time.monotonic() - turn > _LOOP_S:
                lane.running = None
                asyncio.get_running_loop().call_soon(self._go_on, job, lane)
                return
            lane.waiting.popleft()
            if item.optional and item.done.done():
                continue
            try:
                weight = item.weight()
            except Exception as error:
                _settle(item.done, None, error)
                continue
            if weight > self._long(job):
                running = asyncio.get_running_loop().run_in_executor(self.threads, _outcome, item.work)
                lane.running = running
                running.add_done_callback(lambda done, item=item: self._came(job, lane, item, done))  # type: ignore[misc]
                return
            _settle(item.done, *_outcome(item.work))
        lane.running = None
        del self._lanes[job]

    def _came(
        self, job: str, lane: _Lane, item: _Item[Any], done: asyncio.Future[tuple[Any, Exception | None]]
    ) -> None:
        _settle(item.done, *done.result())
        self._go_on(job, lane)


def _outcome(work: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _settle(done: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if done.done():  # its caller is gone
        return
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)
        done.exception()  # nobody may be waiting; that is no fault
