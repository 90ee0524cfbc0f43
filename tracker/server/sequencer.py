"""One order for all commands: each gets its time, is made durable, is carried out, and is then answered.

Everything here runs on one event loop. The journal's syncs, snapshots and long commands (`lanes`) run in threads. With
a journal that syncs, new commands gather while the previous group is being synced, so many callers share a sync; and
a group is carried out while the next one syncs. No command is carried out, and so no caller gets an answer, before the
command is durable. If the journal fails, the state stays as it was. All timers use the time of commands, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from tracker.contract.commands import Answer, DefineJob, Tick
from tracker.contract.refusal import Refusal
from tracker.core import Prepared, Refused
from tracker.journal import Journal, JournalError, JournalFullError, JournalGoneError, Record
from tracker.wire.codec import Method

from .lanes import Lanes, settle
from .limits import Limits
from .measures import Measures
from .replayable import RecoveredState, ReplayableState

log = logging.getLogger("tracker.sequencer")

_GROUP_BYTES = 32 << 20
_LATE_S = 5.0  # seconds after which a group that is being made durable is late: then new commands are refused
_TURN_S = 0.005  # seconds for which a group is carried out before other tasks get a turn
_RECORD_COST = 4096  # bytes: the cost of a record at recovery, in addition to its own bytes
_NOTE_S = 0.05  # seconds until a note that the journal has not taken is tried again
_PROBE_S = 1.0  # seconds between attempts to use a journal that failed
_PATIENCE_S = 20.0  # seconds for which a stop waits for such a group
_NOBODY = "\0"  # not the name of a job: a tick for it changes nothing, but shows whether the journal works
_COPY_S = 0.002  # seconds of copying before other tasks get a turn
_JUMP_NS = 60 * 10**9  # a clock that is further ahead than this has jumped, not drifted
_LASTS_NS = 60 * 10**9  # the clock's new time counts once the jump has lasted so long

#: Returns the number of a record, and a copy of the state after it.
Copy: TypeAlias = Callable[[], Awaitable[tuple[int, Any]]]


class Clock:
    """The time of commands, in nanoseconds since the Unix epoch: it never goes back, and no jump stops it.

    It follows the machine's clock, with two differences. While the machine's clock is behind, even after a restart, it
    advances by elapsed time until the clock has caught up. And it follows a jump ahead only once the jump has lasted a
    while, so a clock that is wrong for a few seconds has no effect.

    Args:
        last: the last time in the journal; the clock never returns an earlier one.
        wall: the machine's clock, in ns since the Unix epoch.
        elapsed: a monotonic clock, in ns.

    >>> wall, elapsed = iter([100, 200, 50]), iter([0, 100, 130])
    >>> clock = Clock(0, lambda: next(wall), lambda: next(elapsed))
    >>> clock.now(), clock.now()
    (200, 230)
    """

    def __init__(
        self,
        last: int,
        wall: Callable[[], int] = lambda: time.time_ns(),
        elapsed: Callable[[], int] = lambda: time.monotonic_ns(),
    ) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._looked = elapsed()
        # A long stop of the server looks the same as a wrong clock, so here the clock counts.
        self._now = max(last, wall())
        self._ahead_since: int | None = None

    def now(self) -> int:
        """Return the time; it is never less than the one before."""
        elapsed, wall = self._elapsed(), self._wall()
        goes_on = self._now + max(0, elapsed - self._looked)
        self._looked = elapsed
        if wall - goes_on <= _JUMP_NS:
            self._ahead_since = None
            # A clock that was set back a little catches up; a clock that runs a little faster is followed.
            self._now = max(goes_on, wall)
        else:
            if self._ahead_since is None:
                self._ahead_since = elapsed
            self._now = wall if elapsed - self._ahead_since >= _LASTS_NS else goes_on
        return self._now


class Cut:
    """The state after record `number`, copied at one moment, job by job, while the server continues to work.

    Jobs are independent, so a job can be copied at any time between that moment and the next command that changes the
    job. It is copied when its turn comes here, or just before that command, whichever comes first. So a command waits
    at most for the copy of its own job.

    Args:
        number: the last record that was carried out or waits in a lane.
        defining: the newest definition of a job that is under way, or None.

    Attributes:
        head_pending: the future of the part that belongs to no job, if that part has to wait.
    """

    def __init__(self, state: ReplayableState, lanes: Lanes, number: int, defining: asyncio.Future[Any] | None) -> None:
        self.number = number
        self._tracker = state.tracker
        self._whole = state.dump_whole
        self._lanes = lanes
        self._head: Any = lanes.run("", self._tracker.dump_head, lambda: 0, defining)
        self.head_pending = self._head if isinstance(self._head, asyncio.Future) else None
        self._at = state.at
        self._left = dict.fromkeys([*self._tracker.timed(), *lanes.busy()])
        self._parts: list[Any] = []

    def before(self, job: str) -> None:
        """Copy a job, unless that was done: call this before a command changes the job."""
        if job in self._left:
            del self._left[job]
            try:
                part: Any = self._lanes.run(job, partial(self._tracker.copy_job, job), lambda: self._cost(job))
            except Exception as error:  # the snapshot fails, but the command must not
                part = asyncio.get_running_loop().create_future()
                part.set_exception(error)
                part.exception()
            self._parts.append(part)

    def _cost(self, job: str) -> int:
        view = self._tracker.find(job)
        return 0 if view is None else view.scan_cost

    async def gather(self) -> Any:
        """Copy the jobs that are left, and return the whole state, for `ReplayableState`."""
        turn = time.monotonic()
        while self._left:
            self.before(next(iter(self._left)))
            if isinstance(self._parts[-1], asyncio.Future):
                await asyncio.wait([self._parts[-1]])
            if time.monotonic() - turn > _COPY_S:
                await asyncio.sleep(0)
                turn = time.monotonic()
        head = await self.head_pending if self.head_pending is not None else self._head
        copies = [await part if isinstance(part, asyncio.Future) else part for part in self._parts]
        # Many rows take long, and no command has to wait for what becomes of a copy.
        return await asyncio.get_running_loop().run_in_executor(
            self._lanes.threads, self._whole, head, copies, self._at
        )


class Snapshots:
    """Snapshots in a journal, written one at a time.

    Args:
        least: bytes that are journaled between two of them, at least.
    """

    def __init__(self, journal: Journal, measures: Measures, least: int) -> None:
        self._journal = journal
        self._measures = measures
        self._least = self._due = least
        self._journaled = 0  # bytes since the last one
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "snapshot")

    def journaled(self, size: int, copy: Copy) -> None:
        """Count bytes of the journal, and begin to write a snapshot if it is due."""
        self._journaled += size
        if self._journaled >= self._due:
            self.keep(copy)

    def keep(self, copy: Copy) -> asyncio.Task[None]:
        """Begin to write a snapshot, unless one is being written; return the task that writes it."""
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(copy))
        return self._writing

    async def idle(self) -> None:
        """Wait until no snapshot is being written."""
        if self._writing is not None:
            await self._writing

    def close(self) -> None:
        """End the thread, once no snapshot is being written."""
        self._thread.shutdown()

    async def _write(self, copy: Copy) -> None:
        started = time.monotonic()
        covered, self._journaled = self._journaled, 0
        try:
            number, state = await copy()
            size = await asyncio.get_running_loop().run_in_executor(self._thread, self._journal.snapshot, number, state)
        except Exception as error:
            self._measures.snapshot_failures += 1
            fault = None if isinstance(error, JournalError) else error
            log.error("no snapshot could be kept; the journal grows until one can: %s", error, exc_info=fault)
            self._journaled += covered
            self._due = self._journaled + self._least // 4
            return
        # The next one comes after at least as many bytes of journal, so snapshots are at most half of what is written.
        self._due = max(self._least, size)
        took = time.monotonic() - started
        self._measures.snapshot(took, size, time.time())
        log.info("kept a snapshot", extra={"record": number, "bytes": size, "seconds": f"{took:.3f}"})


@dataclass(slots=True)
class _Pending:
    """A command that has its place in the order, and waits for the journal."""

    record: Record
    command: Prepared
    answer: asyncio.Future[Answer]


@dataclass(slots=True)
class _Group:
    """Commands that share a sync."""

    commands: list[_Pending] = field(default_factory=list)
    bytes: int = 0
    number: int = 0  #: the number of the last record, once the group is durable


def stopping() -> Refused:
    """Return the refusal that callers get while the server stops."""
    return Refused(Refusal.STOPPING, "the server is stopping; retry until it or its successor answers")


class JournalHealth:
    """Health of the journal, as last seen: it may fail, be late with an answer, or no longer be this server's.

    Args:
        works: called with False when the journal fails or is late, and with True when it works again.

    Attributes:
        failing: the last group was not made durable.
        late: the group that is being made durable takes long.
        gone: the journal is another server's, or whether the last group is durable will not be found out.
    """

    def __init__(self, works: Callable[[bool], None], measures: Measures) -> None:
        self._works = works
        self.measures = measures
        self.failing = False
        self.late = False
        self.gone = False

    def check(self) -> None:
        """Refuse a command that the journal could not take.

        Raises:
            Refused: the journal is late.
        """
        if self.late:
            raise Refused(Refusal.JOURNAL_FAILED, "the journal does not answer; nothing was changed; retry")

    def is_late(self) -> None:
        """Note that the journal has not answered for `_LATE_S`."""
        log.error("the journal has not answered for %g s; new commands are refused until it does", _LATE_S)
        self.late = True
        self.measures.sync_failures += 1
        self._works(False)

    def has_answered(self, error: Exception | None) -> Refused | None:
        """Note how the journal has answered.

        Args:
            error: with which; None: the group is durable.

        Returns:
            The refusal of the group's commands, if there was an error.
        """
        was_late, self.late = self.late, False
        if error is None:
            if self.failing or was_late:
                log.info("the journal works again")
                self.failing = False
                self._works(True)
            return None
        if isinstance(error, JournalGoneError):
            self.gone = True
            return Refused(Refusal.JOURNAL_GONE, f"{error}; repeat the call, it takes effect once")
        self.measures.sync_failures += 1
        if not self.failing:
            fault = None if isinstance(error, JournalError) else error
            log.error("the journal failed; commands are refused until it works again: %s", error, exc_info=fault)
            self.failing = True
            self._works(False)
        reason = Refusal.JOURNAL_FULL if isinstance(error, JournalFullError) else Refusal.JOURNAL_FAILED
        return Refused(reason, f"{error}; nothing was changed")


class Sequencer:
    """Acceptor of commands, one after the other.

    Args:
        done: called after each command with the job's name, the time of the command, and whether the job's event log
            grew or the job was deleted.
    """

    def __init__(
        self,
        recovered: RecoveredState,
        lanes: Lanes,
        limits: Limits,
        clock: Clock,
        health: JournalHealth,
        snapshots: Snapshots,
        done: Callable[[str, int, bool], None],
    ) -> None:
        self._state = recovered.state
        self._journal = recovered.journal
        self._carried_out = recovered.number
        self._lanes = lanes
        self._limits = limits
        self._clock = clock
        self._health = health
        self._snapshots = snapshots
        self._done = done
        self._defining: asyncio.Future[Any] | None = None  # the newest definition that is under way
        self._pending: list[_Pending] = []
        self._under_way: dict[int, None] = {}  # records that are being carried out in lanes
        self._held: list[tuple[_Pending, Answer, BaseException | None]] = []  # answers that may not leave yet
        self.pending_bytes = 0  #: of commands that wait for the journal, or are being carried out
        self._wanted = asyncio.Event()  # something is pending
        self._taken = asyncio.Event()  # a pending command was carried out or refused
        self._stopping = False
        self._sync_thread = ThreadPoolExecutor(1, "journal")
        self._cut: Cut | None = None
        self._copying = asyncio.Lock()  # held while the state is copied
        self._carrying = asyncio.Lock()  # held while a group is carried out
        self._writer: asyncio.Task[None] | None = None
        self._prober: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to journal what is submitted; call it on the event loop."""
        if not self._journal.instant:
            self._writer = asyncio.create_task(self._write())

    def submit(self, method: Method, payload: bytes, command: Prepared) -> Answer | asyncio.Future[Answer]:
        """Give a command its place in the order of all commands.

        Args:
            payload: the request from which the command was read; it is journaled.

        Returns:
            The answer, or a future that gives it.

        Raises:
            Refused: by the core, or because the server cannot accept the command now. Awaiting the future can
                raise it, too.
        """
        if self._stopping or self._health.gone:
            raise stopping()
        self._health.check()
        at = self._clock.now()
        if self._journal.instant:
            self._carried_out += 1
            return self._carry_out(command, at)
        wanted = self.pending_bytes + len(payload)
        if self.pending_bytes:
            self._limits.check("max_pending_bytes", wanted, "the journal is slower than the callers; retry later")
        pending = _Pending(Record(method, at, payload), command, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self.pending_bytes = wanted
        self._wanted.set()
        return pending.answer

    async def wait_for_capacity(self, size: int) -> None:
        """Wait until the server can accept a payload of `size` bytes, for callers that can wait."""
        while self.pending_bytes and self.pending_bytes + size > self._limits.max_pending_bytes:
            self._taken.clear()
            await self._taken.wait()

    def leave(self) -> None:
        """Accept nothing more: the journal is no longer this server's."""
        self._health.gone = True

    async def stop(self, keep_snapshot: bool = True) -> None:
        """Accept no more commands, finish those that were accepted, and write a snapshot.

        A journal that does not answer is given a while for the commands that were accepted. Their callers then get no
        answer, and have to repeat them.
        """
        self._stopping = True
        self._wanted.set()
        impatient = asyncio.get_running_loop().call_later(
            0.0 if self._health.gone else _PATIENCE_S, self._journal.interrupt
        )
        if self._prober is not None:
            self._prober.cancel()
            with suppress(asyncio.CancelledError):
                await self._prober
        if self._writer is not None:
            await self._writer
        await self._lanes.idle()
        for pending, _, _ in self._held:
            self._answered(pending, None, stopping())
        self._held.clear()
        await self._snapshots.idle()
        impatient.cancel()
        if keep_snapshot and not self._journal.instant and not self._health.gone:
            await self.keep_snapshot()
        self._sync_thread.shutdown()
        self._snapshots.close()

    # ---------------------------------------------------------------- carrying out

    def _carry_out(self, command: Prepared, at: int) -> Answer | asyncio.Future[Answer]:
        """Carry out a command in its job's lane, after all commands that were accepted before it."""
        job = command.job
        if self._cut is not None:
            self._cut.before(job)
        self._state.at = at
        # Definitions number the logs of new jobs, so they keep their order over all jobs.
        after = self._defining if isinstance(command.command, DefineJob) else None
        try:
            result = self._lanes.run(
                job, partial(self._state.apply, command, at), partial(self._state.tracker.reach, command.command), after
            )
        except Exception:
            self._has_done(job, at)
            raise
        if not isinstance(result, asyncio.Future):
            self._has_done(job, at)
            return result
        result.add_done_callback(lambda _: self._has_done(job, at))
        if isinstance(command.command, DefineJob):
            self._defining = result
        return result

    def _has_done(self, job: str, at: int) -> None:
        self._done(job, at, self._state.tracker.pop_changed_job(job))

    def _answer(self, pending: _Pending, number: int) -> None:
        try:
            answer = self._carry_out(pending.command, pending.record.at)
        except Exception as error:
            self._held.append((pending, None, error))
        else:
            if isinstance(answer, asyncio.Future):
                self._under_way[number] = None
                answer.add_done_callback(lambda done: self._came(pending, number, done))
            else:
                self._held.append((pending, answer, None))

    def _came(self, pending: _Pending, number: int, done: asyncio.Future[Answer]) -> None:
        del self._under_way[number]
        error = done.exception()
        self._held.append((pending, None if error is not None else done.result(), error))
        self._carries()

    def _carries(self) -> None:
        """Let answers leave once no note names their commands: what was answered ended no process."""
        if self._journal.carrying(list(self._under_way)):
            for held in self._held:
                self._answered(*held)
            self._held.clear()
        elif self._held:
            asyncio.get_running_loop().call_later(_NOTE_S, self._carries)

    def _answered(self, pending: _Pending, answer: Answer, error: BaseException | None) -> None:
        self.pending_bytes -= len(pending.record.payload)
        self._taken.set()
        if pending.answer.done() and error is not None and not isinstance(error, Refused):  # the caller has gone
            log.error("a command failed", exc_info=error, extra={"method": pending.record.method})
        settle(pending.answer, answer, error)

    # ---------------------------------------------------------------- journaling

    async def _write(self) -> None:
        durable: _Group | None = None
        while True:
            group = self._next_group()
            if group is None and durable is None:
                if self._stopping:
                    return
                self._wanted.clear()
                await self._wanted.wait()
                continue
            sync = None if group is None else asyncio.create_task(self._make_durable(group))
            if durable is not None:
                await asyncio.sleep(0)  # the sync begins now: what follows may leave the loop no turn
                async with self._carrying:
                    await self._carry_out_group(durable)
            durable = group if sync is not None and await sync else None

    def _next_group(self) -> _Group | None:
        if self._health.gone:
            for pending in self._pending:
                self._answered(pending, None, stopping())
            self._pending.clear()
        if not self._pending:
            return None
        group = _Group()
        for pending in self._pending:
            group.commands.append(pending)
            group.bytes += len(pending.record.payload)
            if group.bytes >= _GROUP_BYTES:
                break
        del self._pending[: len(group.commands)]
        return group

    async def _make_durable(self, group: _Group) -> bool:
        """Journal a group; if that fails, refuse all its commands."""
        records = [pending.record for pending in group.commands]
        loop = asyncio.get_running_loop()
        late = loop.call_later(_LATE_S, self._health.is_late)
        failed: Exception | None = None
        try:
            group.number, took = await loop.run_in_executor(self._sync_thread, self._append, records)
            self._health.measures.synced(took, len(records), group.bytes)
        except Exception as error:
            failed = error
        finally:
            late.cancel()
        refused = self._health.has_answered(failed)
        if refused is None:
            return True
        for pending in group.commands:
            self._answered(pending, None, refused)
        if self._health.failing and (self._prober is None or self._prober.done()):
            self._prober = asyncio.create_task(self._probe())
        return False

    def _append(self, records: list[Record]) -> tuple[int, float]:
        started = time.perf_counter()
        number = self._journal.append(records)
        return number, time.perf_counter() - started

    async def _probe(self) -> None:
        """Use a journal that failed: callers may stop sending commands once the server's health is NOT_SERVING."""
        while self._health.failing and not self._stopping and not self._health.gone:
            await asyncio.sleep(_PROBE_S)
            with suppress(Refused):
                answer = self.submit(Method.TICK, _NOBODY.encode(), Prepared(Tick(_NOBODY)))
                if isinstance(answer, asyncio.Future):
                    await answer

    async def _carry_out_group(self, group: _Group) -> None:
        turn = time.monotonic()
        number = group.number - len(group.commands)
        for pending in group.commands:
            number += 1
            # If this command ends the process, the next start knows which one it was, and that nobody had an answer.
            self._journal.carrying([number, *self._under_way])
            self._answer(pending, number)
            if time.monotonic() - turn > _TURN_S:
                self._carries()
                await asyncio.sleep(0)
                turn = time.monotonic()
        self._carries()
        self._carried_out = group.number
        self._snapshots.journaled(group.bytes + _RECORD_COST * len(group.commands), self.copy)

    # ---------------------------------------------------------------- copies of the state

    async def copy(self) -> tuple[int, Any]:
        """Return a record's number, and a copy of the state after it, with all that was answered before the call."""
        async with self._copying:
            async with self._carrying:
                self._cut = cut = Cut(self._state, self._lanes, self._carried_out, self._defining)
                if cut.head_pending is not None:
                    self._defining = cut.head_pending
            try:
                return cut.number, await cut.gather()
            finally:
                self._cut = None

    async def keep_snapshot(self) -> None:
        """Write a snapshot while the server goes on."""
        await self._snapshots.keep(self.copy)
