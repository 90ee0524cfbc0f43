"""One order for all commands: each gets its time, is made durable, is applied, and is then answered.

Everything here runs on one event loop and owns the state; only the journal's syncs and snapshots run in threads. With
a journal that syncs, commands gather while the group before them is being synced, so many callers share a sync; and a
group is applied while the next one syncs. Nothing is applied, and so nothing is told to anyone, before it is durable:
a journal that fails leaves the state as it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from tracker.core import Refused
from tracker.core.commands import Answer, Command, Tick
from tracker.journal import Journal, JournalError, JournalFullError, Record

from .limits import Limits
from .replica import Replica
from .translation import Method

log = logging.getLogger("tracker.sequencer")

_TICK_S = 0.05  # how often time is looked at
_TICK_SHARE = 20  # and not so often that looking takes more than this part of the time
_TICK_AGAIN_S = 1.0  # after a tick that the journal did not take
_GROUP_BYTES = 32 << 20
_TURN_S = 0.005  # how long groups are applied before others get a turn
_RECORD_COST = 4096  # what a record costs at recovery beside its bytes, as bytes


@dataclass(slots=True)
class _Pending:
    """A command that has its place, and waits for the journal."""

    record: Record
    command: Command
    answer: asyncio.Future[Answer]


@dataclass(slots=True)
class _Group:
    """Commands that share a sync."""

    commands: list[_Pending] = field(default_factory=list)
    bytes: int = 0
    number: int = 0  #: of its last record, once it is durable


def stopping() -> Refused:
    """What callers are told when the server stops."""
    return Refused("UNAVAILABLE", "STOPPING", "the server is stopping; try again, it or its successor will answer")


class Sequencer:
    """Takes commands, one after the other.

    Args:
        replica: the recovered state.
        number: the journal's last record.
        woken: called with the jobs whose event logs grew, or that were deleted, each time some did.
        snapshot_bytes: how much is journaled between snapshots, at least.
    """

    def __init__(
        self,
        replica: Replica,
        journal: Journal,
        number: int,
        limits: Limits,
        woken: Callable[[set[str]], None],
        snapshot_bytes: int,
    ) -> None:
        self._replica = replica
        self._journal = journal
        self._applied = number
        self._limits = limits
        self._woken = woken
        self._at = replica.at
        self._pending: list[_Pending] = []
        self._pending_bytes = 0
        self._wanted = asyncio.Event()  # something is pending
        self._taken = asyncio.Event()  # something is pending no more
        self._stopping = False
        self._failing = False
        self._sync_thread = ThreadPoolExecutor(1, "journal")
        self._snapshot_thread = ThreadPoolExecutor(1, "snapshot")
        self._snapshot_bytes = self._snapshot_at = snapshot_bytes
        self._since_snapshot = 0
        self._snapshot: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.create_task(self._tick()))
        if not self._journal.instant:
            self._tasks.append(asyncio.create_task(self._write()))

    def take(self, method: Method, payload: bytes, command: Command) -> Answer | asyncio.Future[Answer]:
        """Put a command in its place among all; its answer, or what will give it.

        Args:
            payload: the request that the command was read from.

        Raises:
            Refused: by the core, or because the server cannot take it now. So may awaiting do.
        """
        at = self._at = max(self._at, time.time_ns())
        if self._stopping:
            raise stopping()
        if self._journal.instant:
            return self._apply(command, at)
        wanted = self._pending_bytes + len(payload)
        if self._pending:
            self._limits.check("max_pending_bytes", wanted, "the journal is slower than the callers; try again later")
        pending = _Pending(Record(method, at, payload), command, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._pending_bytes = wanted
        self._wanted.set()
        return pending.answer

    async def room(self, size: int) -> None:
        """Wait until a payload of so many bytes can be taken, for callers who can wait."""
        while self._pending and self._pending_bytes + size > self._limits.max_pending_bytes:
            self._taken.clear()
            await self._taken.wait()

    async def stop(self) -> None:
        """Finish what was taken, take nothing more, and keep a snapshot."""
        self._stopping = True
        self._wanted.set()
        ticker, *writer = self._tasks
        ticker.cancel()
        with suppress(asyncio.CancelledError):
            await ticker
        await asyncio.gather(*writer)
        if self._snapshot is not None:
            await self._snapshot
        if not self._journal.instant:
            await self._keep_snapshot()
        self._sync_thread.shutdown()
        self._snapshot_thread.shutdown()

    # ---------------------------------------------------------------- applying

    def _apply(self, command: Command, at: int) -> Answer:
        try:
            return self._replica.apply(command, at)
        finally:
            woken = self._replica.tracker.take_woken()
            if woken:
                self._woken(woken)

    def _answer(self, pending: _Pending) -> None:
        try:
            answer = self._apply(pending.command, pending.record.at)
        except Exception as error:
            if not pending.answer.done():  # else: the caller has gone
                pending.answer.set_exception(error)
                pending.answer.exception()  # nobody may be waiting; that is no fault
            elif not isinstance(error, Refused):
                log.exception("a command failed", extra={"method": pending.record.method})
        else:
            if not pending.answer.done():
                pending.answer.set_result(answer)

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
            sync = None if group is None else self._sync(group)
            if durable is not None:
                await self._apply_group(durable)
            durable = group if sync is not None and await sync else None

    def _next_group(self) -> _Group | None:
        if not self._pending:
            return None
        group = _Group()
        for pending in self._pending:
            group.commands.append(pending)
            group.bytes += len(pending.record.payload)
            if group.bytes >= _GROUP_BYTES:
                break
        del self._pending[: len(group.commands)]
        self._pending_bytes -= group.bytes
        self._taken.set()
        return group

    def _sync(self, group: _Group) -> asyncio.Task[bool]:
        return asyncio.create_task(self._make_durable(group))

    async def _make_durable(self, group: _Group) -> bool:
        """Journal a group; if that fails, refuse it whole."""
        records = [pending.record for pending in group.commands]
        try:
            group.number = await asyncio.get_running_loop().run_in_executor(
                self._sync_thread, self._journal.append, records
            )
        except Exception as error:
            if not self._failing:
                fault = None if isinstance(error, JournalError) else error
                log.error("the journal failed; commands are refused until it works again: %s", error, exc_info=fault)
            self._failing = True
            reason = "JOURNAL_FULL" if isinstance(error, JournalFullError) else "JOURNAL_FAILED"
            refused = Refused("UNAVAILABLE", reason, f"{error}; nothing was changed")
            for pending in group.commands:
                if not pending.answer.done():
                    pending.answer.set_exception(refused)
                    pending.answer.exception()  # its caller may be gone; that is no fault
            return False
        if self._failing:
            log.info("the journal works again")
        self._failing = False
        return True

    async def _apply_group(self, group: _Group) -> None:
        turn = time.monotonic()
        for pending in group.commands:
            self._answer(pending)
            if time.monotonic() - turn > _TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()
        self._applied = group.number
        self._since_snapshot += group.bytes + _RECORD_COST * len(group.commands)
        if self._since_snapshot >= self._snapshot_at and (self._snapshot is None or self._snapshot.done()):
            self._snapshot = asyncio.create_task(self._keep_snapshot())

    async def _keep_snapshot(self) -> None:
        started = time.monotonic()
        number, state, covered = self._applied, self._replica.dump(), self._since_snapshot
        dumped = time.monotonic()
        self._since_snapshot = 0
        try:
            size = await asyncio.get_running_loop().run_in_executor(
                self._snapshot_thread, self._journal.snapshot, number, state
            )
        except Exception as error:
            fault = None if isinstance(error, JournalError) else error
            log.error("no snapshot could be kept; the journal grows until one can: %s", error, exc_info=fault)
            self._since_snapshot += covered
            self._snapshot_at = self._since_snapshot + self._snapshot_bytes // 4
            return
        # Not more often than it takes to journal as much again: writing snapshots stays in proportion.
        self._snapshot_at = max(self._snapshot_bytes, size)
        took = time.monotonic() - started
        log.info(
            "kept a snapshot",
            extra={"record": number, "bytes": size, "seconds": f"{took:.3f}", "held_up": f"{dumped - started:.3f}"},
        )

    # ---------------------------------------------------------------- time

    async def _tick(self) -> None:
        pause = _TICK_S
        while True:
            await asyncio.sleep(pause)
            looked = time.monotonic()
            due = self._replica.tracker.next_due()
            pause = max(_TICK_S, _TICK_SHARE * (time.monotonic() - looked))
            if due is None or due > time.time_ns():
                continue
            try:
                answer = self.take(Method.TICK, b"", Tick())
                if isinstance(answer, asyncio.Future):
                    await answer
            except Refused:
                await asyncio.sleep(_TICK_AGAIN_S)
            except Exception:
                log.exception("a tick failed")
                await asyncio.sleep(_TICK_AGAIN_S)
