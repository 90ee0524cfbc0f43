"""Copy of the state at one moment, made job by job while the server continues to work.

Jobs are independent, so a job can be copied at any time between that moment and the next command that changes the job.
It is copied when its turn comes here, or just before that command, whichever comes first. So a command waits at most
for the copy of its own job.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from .lanes import Lanes
from .replayable import ReplayableState

_TURN_S = 0.002  # seconds of copying before other tasks get a turn


class Cut:
    """The state after record `number`.

    Args:
        lanes: where each job is copied.
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
