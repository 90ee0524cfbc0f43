"""The state as it is at one moment, gathered job by job while everything goes on.

Jobs are independent, so a job's part may be copied at any time between the moment and the next command that touches
it: whichever comes first, its turn here or that command. Nobody waits for more than the copy of one job, and only for
the job's own.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from .lanes import Lanes
from .replayable import ReplayableState

_TURN_S = 0.002  # how long jobs are copied before others get a turn


class Cut:
    """The state after record `number`, the last that was carried out or is waiting in a lane.

    Args:
        defining: the last definition of a job that is under way, or None.

    Attributes:
        head_pending: what gives the part that belongs to no job, if that has to wait.
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
        """A command is about to touch a job: its part is taken first."""
        if job in self._left:
            del self._left[job]
            try:
                part: Any = self._lanes.run(
                    job, partial(self._tracker.dump_job, job), lambda: self._tracker.scan_cost(job)
                )
            except Exception as error:  # the snapshot's fault, not that of the command
                part = asyncio.get_running_loop().create_future()
                part.set_exception(error)
                part.exception()
            self._parts.append(part)

    async def gather(self) -> Any:
        """The whole state, for `ReplayableState`."""
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
