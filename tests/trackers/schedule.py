"""A deterministic schedule: threads that run one at a time, a virtual clock, and processes that can be killed.

The product's own code runs unchanged. `installed` replaces what its modules know of time and threads: a wait of theirs
is a `pause` here, and at each pause the seed draws who goes on. A killed process goes on nowhere: each of its threads
meets `KilledError` where it waits, and at everything that it tries afterwards.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from random import Random
from types import SimpleNamespace
from typing import Any

_EPOCH_S = 1_700_000_000.0
_STUCK_S = 60.0  # seconds of real time after which a thread that gives no turn back is a fault of the tests


class KilledError(BaseException):
    """The process of the thread that meets this has ended."""


class StuckError(AssertionError):
    """Nobody can go on, or a run has no end."""


class Process:
    """Threads that are killed together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.killed = False
        self.sleeps_until = 0.0
        self.strands: list[Strand] = []


class Strand:
    """A thread that runs only when it has the turn."""

    def __init__(self, schedule: Schedule, process: Process, work: Callable[[], object]) -> None:
        self.process = process
        self.until = 0.0
        self.ready: Callable[[], bool] | None = None
        self.done = False
        self.error: BaseException | None = None
        self._schedule = schedule
        self._turn = threading.Semaphore(0)
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = False

    def _run(self) -> None:
        _HERE.strand = self
        self._turn.acquire()
        try:
            if not self.process.killed:
                self._work()
        except KilledError:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.done = True
            self._schedule.given_back()

    def take(self) -> None:
        """Let it run until it waits again."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._turn.release()

    def wait(self) -> None:
        """Give the turn back, and return with the next one."""
        self._schedule.given_back()
        self._turn.acquire()


class _Here(threading.local):
    strand: Strand | None = None


_HERE = _Here()


class Schedule:
    """Decides who runs, and what time it is.

    Args:
        random: draws.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.passed: Callable[[float], None] = lambda _: None  #: called with the seconds that pass
        self.died: Callable[[Process], None] = lambda _: None  #: called with a process that has just ended
        self._strands: list[Strand] = []
        self._back = threading.Semaphore(0)

    def start(self, process: Process, work: Callable[[], object]) -> Strand:
        """Start a thread of a process."""
        strand = Strand(self, process, work)
        process.strands = [each for each in process.strands if not each.done] + [strand]
        self._strands.append(strand)
        return strand

    def pause(self, seconds: float | None, ready: Callable[[], bool] | None = None) -> None:
        """Let others go on; return after so many seconds (None: never), or once `ready` returns True."""
        strand = _HERE.strand
        assert strand is not None, "only a thread of the simulation may wait"
        if strand.process.killed:
            raise KilledError
        strand.until = float("inf") if seconds is None else self.now + seconds
        strand.ready = ready
        strand.wait()
        if strand.process.killed:
            raise KilledError

    @property
    def process(self) -> Process:
        """The process of the thread that asks."""
        assert _HERE.strand is not None
        return _HERE.strand.process

    @property
    def is_inside(self) -> bool:
        """True if a thread of the simulation asks."""
        return _HERE.strand is not None

    def given_back(self) -> None:
        """Note that the thread that had the turn waits, or has ended."""
        self._back.release()

    def kill(self, process: Process) -> None:
        """End a process: its threads end at their next turn, which comes before anybody else's."""
        if not process.killed:
            process.killed = True
            self.died(process)

    def run(self, until: Callable[[], bool], turns: int = 200_000) -> None:
        """Let everybody run until a condition holds.

        Raises:
            StuckError: that takes too many turns, or nobody can go on.
        """
        for _ in range(turns):
            if until():
                return
            self._next()
        raise StuckError("the run has no end")

    def end(self) -> None:
        """Let every thread of a killed process end."""
        while any(strand.process.killed and not strand.done for strand in self._strands):
            with suppress(Exception):
                self._next()

    def _next(self) -> None:
        self._strands = [strand for strand in self._strands if not strand.done]
        doomed = [strand for strand in self._strands if strand.process.killed]
        awake = [strand for strand in self._strands if strand.process.sleeps_until <= self.now]
        able = doomed or [s for s in awake if s.until <= self.now or (s.ready is not None and s.ready())]
        if not able:
            soonest = min((max(s.until, s.process.sleeps_until) for s in self._strands), default=float("inf"))
            waking = [s.process.sleeps_until for s in self._strands if s.process.sleeps_until > self.now]
            soonest = min([soonest, *waking])
            if soonest == float("inf"):
                raise StuckError("nobody can go on")
            self.passed(soonest - self.now)
            self.now = soonest
            return
        strand = self.random.choice(able)
        strand.take()
        if not self._back.acquire(timeout=_STUCK_S):
            raise StuckError(f"a thread of {strand.process.name} does not give its turn back")
        if strand.error is not None:
            raise strand.error


class Flag:
    """`threading.Event`, in virtual time."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._schedule.pause(timeout, self.is_set)
        return self._set


class Thread:
    """`threading.Thread`, of the process that starts it."""

    def __init__(self, schedule: Schedule, target: Callable[[], object]) -> None:
        self._schedule = schedule
        self._target = target
        self._strand: Strand | None = None

    def start(self) -> None:
        self._strand = self._schedule.start(self._schedule.process, self._target)

    def is_alive(self) -> bool:
        return self._strand is not None and not self._strand.done

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._schedule.pause(timeout, lambda: not self.is_alive())


class Pool:
    """An executor whose `map` reads in the caller's thread; `Loop` runs all else."""

    map = staticmethod(map)

    def shutdown(self, **_: Any) -> None:
        pass


class Loop(asyncio.base_events.BaseEventLoop):
    """An event loop in virtual time, with no descriptors; its executors are threads of the schedule."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule
        self._woken = False
        self._selector = self

    def select(self, timeout: float | None) -> list[Any]:
        """Wait as a selector would."""
        if timeout is None or timeout > 0 or self._schedule.random.random() < 0.05:
            self._schedule.pause(timeout, lambda: self._woken)
        elif self._schedule.process.killed:
            raise KilledError
        self._woken = False
        return []

    def time(self) -> float:
        return self._schedule.now

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        self._woken = True

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)

        def work() -> None:
            self._schedule.pause(self._schedule.random.choice((0, 0, 0.001, 0.02)))
            value, error = None, None
            try:
                value = func(*args)
            except Exception as raised:
                error = raised
            if not self.is_closed():
                self.call_soon_threadsafe(settle, value, error)

        self._schedule.start(self._schedule.process, work)
        return future


def run_loop(schedule: Schedule, main: Callable[[], Any]) -> Any:
    """Run a coroutine on a loop of its own, in the thread that calls."""
    loop = Loop(schedule)
    asyncio.events.set_event_loop(loop)
    task = None
    try:
        loop.set_exception_handler(lambda *_: None)  # a process that has ended reports nothing
        task = loop.create_task(main())
        return loop.run_until_complete(task)
    finally:
        for left in asyncio.all_tasks(loop):
            left._log_destroy_pending = False  # type: ignore[attr-defined]
        asyncio.events._set_running_loop(None)
        with suppress(BaseException):
            loop.close()


@contextmanager
def installed(schedule: Schedule, packages: tuple[str, ...]) -> Iterator[None]:
    """Give the modules of some packages the schedule's time and threads."""
    clock = SimpleNamespace(
        monotonic=lambda: schedule.now,
        perf_counter=lambda: schedule.now,
        time=lambda: _EPOCH_S + schedule.now,
        time_ns=lambda: int((_EPOCH_S + schedule.now) * 1e9),
        monotonic_ns=lambda: int(schedule.now * 1e9),
        sleep=lambda seconds: schedule.pause(seconds),
        strftime=time.strftime,
        gmtime=lambda *_: time.gmtime(_EPOCH_S + schedule.now),
    )
    threads = SimpleNamespace(
        Event=lambda: Flag(schedule),
        Thread=lambda target, name="", daemon=True: Thread(schedule, target),
        Lock=threading.Lock,
        RLock=threading.RLock,
        Condition=threading.Condition,
        local=threading.local,
    )
    new = {id(time): clock, id(threading): threads, id(ThreadPoolExecutor): lambda *_, **__: Pool()}
    before: list[tuple[Any, str, Any]] = []
    for name, module in [*sys.modules.items()]:
        if name.startswith(packages):
            for attribute in ("time", "threading", "ThreadPoolExecutor"):
                old = getattr(module, attribute, None)
                if id(old) in new:
                    before.append((module, attribute, old))
                    setattr(module, attribute, new[id(old)])
    try:
        yield
    finally:
        for module, attribute, old in before:
            setattr(module, attribute, old)
