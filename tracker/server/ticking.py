"""Timers: a tick for each job with something due.

While nothing happens, a tracker sleeps until something is due. Only commands change what that is.

A tick that fails affects only its own job. The server tries it again, less and less often, since it has to journal each
try: only then does the journal give the same state again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass

from tracker.contract.commands import Tick
from tracker.core import Prepared, Refused, Tracker
from tracker.wire.codec import Method

from .lanes import Lanes
from .notices import Notices
from .sequencer import Clock, Sequencer

log = logging.getLogger("tracker.ticking")

_LOOK_S = 0.05  # seconds between two checks for due jobs, at least
_SLEEP_S = 1.0  # seconds until it looks without any command, as the machine's clock may have been set
_SHARE = 20  # checks may take at most one part in so many of the time
_TURN_S = 0.002  # seconds of checks before other tasks get a turn
_AGAIN_S = 1.0  # the pause after a tick that was refused, in seconds
_FIRST_PAUSE_S = 1.0  # the pause after a tick that failed; it doubles each time
_LONGEST_PAUSE_S = 3600.0


@dataclass(slots=True)
class _Suspended:
    until: float
    pause: float


class Ticker:
    """Sender of ticks to the jobs until it is cancelled.

    Args:
        lanes: a job whose lane is busy gets its tick later.
    """

    def __init__(self, tracker: Tracker, sequencer: Sequencer, lanes: Lanes, clock: Clock, notices: Notices) -> None:
        self._tracker = tracker
        self._sequencer = sequencer
        self._lanes = lanes
        self._clock = clock
        self._notices = notices
        self._suspended: dict[str, _Suspended] = {}
        self._under_way: set[str] = set()
        self._changed = asyncio.Event()

    def look(self) -> None:
        """Look soon again: a command was carried out, which may have changed when something is due."""
        self._changed.set()

    async def run(self) -> None:
        """Run until the task is cancelled."""
        pause = _LOOK_S
        while True:
            await asyncio.sleep(pause)
            self._changed.clear()
            looked = 0.0
            next_due: float = math.inf
            turn = time.monotonic()
            for job in self._tracker.timed():
                if time.monotonic() - turn > _TURN_S:
                    looked += time.monotonic() - turn
                    await asyncio.sleep(0)
                    turn = time.monotonic()
                next_due = min(next_due, due := self._due(job))
                if 0 < due <= self._clock.now() and not self._tick(job):
                    looked = 0.0
                    await asyncio.sleep(_AGAIN_S)
                    break
            pause = max(_LOOK_S, _SHARE * (looked + time.monotonic() - turn))
            await self._sleep(next_due, pause)

    async def _sleep(self, until: float, pause: float) -> None:
        """Sleep until a pause before something is due, or a command is carried out."""
        left = (until - self._clock.now()) / 1e9 - pause
        if left > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, _SLEEP_S)):
                    await self._changed.wait()

    async def tick_due(self) -> int | None:
        """Tick every job with something due, now, and wait until that has taken effect.

        Returns:
            When the next timer is due, in ns since the Unix epoch; None: never, as things stand.

        Raises:
            Refused: the server accepts no commands now.
        """
        now = self._clock.now()
        for job in self._tracker.timed():
            due = self._tracker.next_due(job)
            if due is not None and due <= now:
                answer = self._sequencer.submit(Method.TICK, job.encode(), Prepared(Tick(job)))
                if isinstance(answer, asyncio.Future):
                    await answer
        return self._tracker.next_due()

    def _due(self, job: str) -> float:
        """Return when a job is to be ticked (ns): infinity: never, as things stand; 0: that cannot be found out yet."""
        if job in self._under_way or self._lanes.is_busy(job):
            return 0
        suspended = self._suspended.get(job)
        if suspended is not None and time.monotonic() < suspended.until:
            return 0
        try:
            due = self._tracker.next_due(job)
        except Exception as error:
            self._failed(job, error)
            return 0
        return math.inf if due is None else max(1, due)

    def _tick(self, job: str) -> bool:
        """Send a tick to a job; return False if the server accepts no commands now."""
        before = self._tracker.find(job)
        seq = 0 if before is None else before.last_seq
        try:
            answer = self._sequencer.submit(Method.TICK, job.encode(), Prepared(Tick(job)))
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
