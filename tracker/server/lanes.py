"""Fair turns: each job has a lane, in which its commands and look-ups are carried out one after the other.

Jobs are independent of each other, so work in one lane never waits for another lane. Quick work runs at once, on the
event loop. Work that may take long runs in a thread, and delays only its own job. Python's threads take turns of
`TURN_S`, so the event loop always gets the next turn.

A thread makes large reports up to twice as expensive: numpy releases the interpreter's lock at each step and has to
wait for it again. So while only one job is active, only very long work uses a thread.

Work in a thread must not look rows up one by one in arrays of several dimensions. Numpy then releases the lock for
each row, for less time than another thread needs to wake up, and each release starts that thread's wait of `TURN_S`
again: the event loop can wait for a tenth of a second. Looked up many at a time, or as plain numbers, rows do no harm.

The order of a lane is the order of the calls of `run`, which is the journal's order. So the same journal, replayed one
command after the other, gives the same state. A job's state must be read and changed in its lane only.
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

TURN_S = 0.0005  #: seconds that a thread runs while another one waits: for `sys.setswitchinterval`
_LOOP_S = 0.005  # seconds that a lane which catches up works before other tasks get a turn
_THREADS = 4
LONG = 3_000  #: rows: work that may touch more runs in a thread, if other jobs would have to wait for it
_VERY_LONG = 32_000  # rows: the same, if no other job would have to wait; some 6 ms
_ALONE_S = 1.0  # seconds without work for any other job after which a job counts as alone


@dataclass(slots=True)
class _Item(Generic[_T]):
    work: Callable[[], _T]
    weight: Callable[[], int]
    done: asyncio.Future[_T]
    after: asyncio.Future[Any] | None  #: the item may not start before this is done
    optional: bool  #: the item may be skipped if its caller has gone


@dataclass(slots=True)
class _Lane:
    """The lane of a job with work under way."""

    waiting: deque[_Item[Any]] = field(default_factory=deque)
    running: asyncio.Future[Any] | None = None


class Lanes:
    """The lanes of all jobs, for one event loop.

    >>> async def example() -> list[str]:
    ...     lanes, done = Lanes(), []
    ...     slow = lanes.run("a", lambda: done.append("long"), lambda: LONG + 1)
    ...     after = lanes.run("a", lambda: done.append("after it"), lambda: 1)
    ...     lanes.run("b", lambda: done.append("meanwhile"), lambda: 1)
    ...     await asyncio.gather(slow, after)
    ...     lanes.close()
    ...     return done if done[0] == "long" else sorted(done)
    >>> len(asyncio.run(example()))
    3
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._newest = ""  # the job that had work last
        self._changed = -_ALONE_S  # when another job had work last
        self.threads = ThreadPoolExecutor(_THREADS, "lane")

    def busy(self) -> list[str]:
        """Return the jobs with work under way."""
        return list(self._lanes)

    def is_busy(self, job: str) -> bool:
        """Return whether a job has work under way."""
        return job in self._lanes

    def run(
        self,
        job: str,
        work: Callable[[], _T],
        weight: Callable[[], int],
        after: asyncio.Future[Any] | None = None,
        optional: bool = False,
    ) -> _T | asyncio.Future[_T]:
        """Run work in a job's lane.

        Args:
            job: the job's name; "" for what belongs to no job.
            weight: returns how many rows `work` may touch; called when the turn has come.
            after: the future of other work that must be done first, whether it succeeds or fails.
            optional: skip the work if the caller has gone before its turn, as for a look-up.

        Returns:
            The result of `work`, or a future that gives it.

        Raises:
            Exception: what `work` raised. Awaiting the future can raise it, too.
        """
        lane = self._lanes.get(job)
        if lane is None and (after is None or after.done()):
            if weight() <= self._long(job):
                return work()
            weight, after = lambda: _VERY_LONG + 1, None
        item = _Item(work, weight, asyncio.get_running_loop().create_future(), after, optional)
        if lane is None:
            lane = self._lanes[job] = _Lane()
            lane.waiting.append(item)
            self._go_on(job, lane)
        else:
            lane.waiting.append(item)
        return item.done

    def _long(self, job: str) -> int:
        """Return how many rows of a job are too many for the event loop."""
        if job != self._newest:
            self._newest = job
            self._changed = time.monotonic()
            return LONG
        return _VERY_LONG if time.monotonic() - self._changed > _ALONE_S else LONG

    async def idle(self) -> None:
        """Wait until no lane has work under way."""
        while self._lanes:
            lane = next(iter(self._lanes.values()))
            waiting = [lane.running] if lane.running is not None else []
            waiting += [item.done for item in lane.waiting]
            if waiting:
                await asyncio.wait(waiting)
            await asyncio.sleep(0)

    def close(self) -> None:
        """Stop the threads; call it when no work is under way."""
        self.threads.shutdown(wait=False)

    def _go_on(self, job: str, lane: _Lane) -> None:
        """Run the waiting work of a lane, as far as possible now."""
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
                settle(item.done, None, error)
                continue
            if weight > self._long(job):
                running = asyncio.get_running_loop().run_in_executor(self.threads, _outcome, item.work)
                lane.running = running
                running.add_done_callback(lambda done, item=item: self._came(job, lane, item, done))  # type: ignore[misc]
                return
            settle(item.done, *_outcome(item.work))
        lane.running = None
        del self._lanes[job]

    def _came(
        self, job: str, lane: _Lane, item: _Item[Any], done: asyncio.Future[tuple[Any, Exception | None]]
    ) -> None:
        settle(item.done, *done.result())
        self._go_on(job, lane)


def _outcome(work: Callable[[], _T]) -> tuple[_T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def settle(done: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    """Give a future its result, unless its caller has gone."""
    if done.done():
        return
    if error is None:
        done.set_result(value)
    else:
        done.set_exception(error)
        done.exception()  # marks it as seen: if no caller waits any more, asyncio would log it
