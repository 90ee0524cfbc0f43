"""Snapshots of the state: copied at one moment, job by job, and written while the server continues to work.

Jobs are independent, so a job can be copied at any time between that moment and the next command that changes the job.
It is copied when its turn comes here, or just before that command, whichever comes first. So a command waits at most
for the copy of its own job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

from tracker.journal import Journal, JournalError

from .lanes import Lanes
from .measures import Measures
from .replayable import ReplayableState

log = logging.getLogger("tracker.sequencer")

_TURN_S = 0.002  # seconds of copying before other tasks get a turn

#: Returns the number of a record, and a copy of the state after it.
Copy: TypeAlias = Callable[[], Awaitable[tuple[int, Any]]]


class Cut:
    """The state after record `number`.

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
                part: Any = self._lanes.run(job, partial(self._tracker.dump_job, job), lambda: self._cost(job))
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
            if time.monotonic() - turn > _TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()
        head = await self.head_pending if self.head_pending is not None else self._head
        parts = [await part if isinstance(part, asyncio.Future) else part for part in self._parts]
        return self._whole(head, parts, self._at)


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
