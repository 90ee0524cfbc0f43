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


class Strand:
    """A thread that runs only when it has the turn."""

    def __init__(self, schedule: Schedule, process: Process, work: Callable[[], object]) -> None:
        self.process = process
        self.until = 0.0
        self.ready: Callable[[], bool] | None = None
        self.done = False
        self.error: BaseException | None = None
        self._schedule = schedule
        self._work = work
        self._worker: _Worker | None = None

    def play(self) -> None:
        """Do its work, in the thread that asks, and let others go on."""
        _HERE.strand = self
        try:
            if not self.process.killed:
                self._work()
        except KilledError:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._schedule.ended(self)

    def take(self) -> None:
        """Let the strand run until it waits again."""
        if self._worker is None:
            self._worker = _IDLE.pop() if _IDLE else _Worker()
            self._worker.strand = self
        self._worker.turn.release()

    def wait(self) -> None:
        """Wait for the next turn."""
        assert self._worker is not None
        self._worker.turn.acquire()

    def leave(self) -> None:
        """Let its thread do other work: to start one takes longer than most of them run."""
        assert self._worker is not None
        _HERE.strand = self._worker.strand = None
        _IDLE.append(self._worker)


class _Worker:
    """A real thread, in which one strand runs after the other."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.turn.acquire()
        self.strand: Strand | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.turn.acquire()
            assert self.strand is not None
            self.strand.play()


_IDLE: list[_Worker] = []


class _Here(threading.local):
    strand: Strand | None = None


_HERE = _Here()


class Schedule:
    """The order in which threads run, and the time.

    Args:
        random: draws.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0.0
        self.passed: Callable[[float], None] = lambda _: None  #: called with the seconds that pass
        self.died: Callable[[Process], None] = lambda _: None  #: called with a process that has just ended
        self._strands: list[Strand] = []
        self._back = threading.Lock()  # free: the run is over, or has failed
        self._back.acquire()
        self._until: Callable[[], bool] = lambda: False
        self._turns = 0  # that are left
        self._error: BaseException | None = None

    def start(self, process: Process, work: Callable[[], object]) -> Strand:
        """Start a thread of a process."""
        strand = Strand(self, process, work)
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
        if self._hand_on() is not strand:
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

    def ended(self, strand: Strand) -> None:
        """Let others go on after a thread that has ended."""
        self._strands.remove(strand)
        strand.leave()
        self._hand_on(strand.error)

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
        self._until, self._turns, self._error = until, turns, None
        left = None
        self._hand_on()
        while not self._back.acquire(timeout=_STUCK_S):
            if left == self._turns:
                raise StuckError("a thread does not give its turn back")
            left = self._turns
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Let every thread of a killed process end."""

        def ended() -> bool:
            return not any(strand.process.killed for strand in self._strands)

        while not ended():
            with suppress(Exception):
                self.run(ended)

    def _hand_on(self, error: BaseException | None = None) -> Strand | None:
        """Give the turn to the thread that is drawn, and return that; None: the run is over, or has failed.

        The thread that had the turn draws: no other one has to wake up for that, and often the draw falls on itself.
        """
        chosen = None
        try:
            chosen = self._draw() if error is None else None
            if chosen is not None and chosen is not _HERE.strand:
                chosen.take()
        except BaseException as raised:
            chosen, error = None, raised
        if chosen is None:
            self._error = error
            self._back.release()
        return chosen

    def _draw(self) -> Strand | None:
        """Return who goes on; None: the run is over."""
        while not self._until():
            self._turns -= 1
            if self._turns < 0:
                raise StuckError("the run has no end")
            now, doomed, able = self.now, [], []
            for each in self._strands:
                if each.process.killed:
                    doomed.append(each)
                elif each.process.sleeps_until <= now and (
                    each.until <= now or (each.ready is not None and each.ready())
                ):
                    able.append(each)
            if doomed or able:
                return self.random.choice(doomed or able)
            soonest = min((max(s.until, s.process.sleeps_until) for s in self._strands), default=float("inf"))
            waking = [s.process.sleeps_until for s in self._strands if s.process.sleeps_until > now]
            soonest = min([soonest, *waking])
            if soonest == float("inf"):
                raise StuckError("nobody can go on")
            self.passed(soonest - now)
            self.now = soonest
        return None


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
        asyncio.events.set_event_loop(None)


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
