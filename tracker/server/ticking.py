"""Time for the jobs: a tick for each job that has something due.

A tick that fails is its job's alone. It is tried again, ever less often, since each try is journaled: the state would
not be what the journal adds up to otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from tracker.contract.commands import Tick
from tracker.core import Refused, Tracker
from tracker.wire.codec import Method

from .clock import Clock
from .lanes import Lanes
from .notices import Notices
from .sequencer import Sequencer

log = logging.getLogger("tracker.ticking")

_LOOK_S = 0.05  # how often time is looked at
_SHARE = 20  # and not so often that looking takes more than this part of the time
_TURN_S = 0.002  # how long jobs are looked at before others get a turn
_AGAIN_S = 1.0  # after a tick that the journal did not take
_FIRST_PAUSE_S = 1.0  # after a tick that failed; doubled each time
_LONGEST_PAUSE_S = 3600.0


@dataclass(slots=True)
class _Suspended:
    until: float
    pause: float


class Ticker:
    """Ticks until it is cancelled."""

    def __init__(self, tracker: Tracker, sequencer: Sequencer, lanes: Lanes, clock: Clock, notices: Notices) -> None:
        self._tracker = tracker
        self._sequencer = sequencer
        self._lanes = lanes
        self._clock = clock
        self._notices = notices
        self._suspended: dict[str, _Suspended] = {}
        self._under_way: set[str] = set()

    async def run(self) -> None:
        pause = _LOOK_S
        while True:
            await asyncio.sleep(pause)
            looked = 0.0
            turn = time.monotonic()
            for job in self._tracker.timed():
                if time.monotonic() - turn > _TURN_S:
                    looked += time.monotonic() - turn
                    await asyncio.sleep(0)
                    turn = time.monotonic()
                if self._is_due(job) and not self._tick(job):
                    looked = 0.0
                    await asyncio.sleep(_AGAIN_S)
                    break
            pause = max(_LOOK_S, _SHARE * (looked + time.monotonic() - turn))

    def _is_due(self, job: str) -> bool:
        if job in self._under_way or self._lanes.is_busy(job):
            return False
        suspended = self._suspended.get(job)
        if suspended is not None and time.monotonic() < suspended.until:
            return False
        try:
            due = self._tracker.next_due(job)
        except Exception as error:
            self._failed(job, error)
            return False
        return due is not None and due <= self._clock.now()

    def _tick(self, job: str) -> bool:
        """Let time pass for a job; False: the server takes nothing now."""
        seq = self._tracker.last_seq(job) or 0
        try:
            answer = self._sequencer.submit(Method.TICK, job.encode(), Tick(job))
        except Refused:
            return False
        except Exception as error:
            self._failed(job, error)
            return True
        if isinstance(answer, asyncio.Future):
            self._under_way.add(job)
            answer.add_done_callback(lambda done: self._ticked(job, seq, done.exception()))
        else:
            self._ticked(job, seq, None)
        return True

    def _ticked(self, job: str, seq: int, error: BaseException | None) -> None:
        self._under_way.discard(job)
        if error is None:
            self._suspended.pop(job, None)
            self._lanes.run(job, lambda: self._notices.ticked(job, seq), lambda: 0)
        elif isinstance(error, Refused):
            self._suspended[job] = _Suspended(time.monotonic() + _AGAIN_S, _FIRST_PAUSE_S)
        else:
            self._failed(job, error)

    def _failed(self, job: str, error: BaseException) -> None:
        before = self._suspended.get(job)
        pause = _FIRST_PAUSE_S if before is None else min(2 * before.pause, _LONGEST_PAUSE_S)
        self._suspended[job] = _Suspended(time.monotonic() + pause, pause)
        log.error(
            "a tick failed; this job's timers are tried again later, those of other jobs are not affected",
            exc_info=error,
            extra={"job": job, "again_in_s": pause},
        )
