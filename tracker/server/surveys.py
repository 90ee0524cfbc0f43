"""Waits of each job's open substreams: counted once for all who ask, metrics and pages.

A survey passes over all open substreams of a job, a part at a time, each in a turn of its own in the job's lane. One
that took little is made anew for each who asks. One that took long is given to all who ask in the meantime, and is made
again only after many times as long: the more substreams, the older it may be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from tracker.contract.survey import Survey
from tracker.core import Refused, Tracker
from tracker.core.surveying import Surveyor

from .lanes import Lanes

CHEAP_S = 0.02  #: seconds of CPU: a survey that takes no more is made for each who asks


@dataclass(frozen=True, slots=True)
class Made:
    """A survey of a job."""

    survey: Survey
    log_id: str  #: of the job: another job may come to have the name
    at: int  #: when it was made (ns since the Unix epoch)
    ended: float  #: the same by a monotonic clock (s)
    cost: float  #: seconds of CPU


class Surveys:
    """The surveys of all jobs.

    Args:
        lanes: where each job's state is read.

    Attributes:
        begun: how many surveys were begun.
    """

    def __init__(self, tracker: Tracker, lanes: Lanes) -> None:
        self._tracker = tracker
        self._lanes = lanes
        self._made: dict[str, Made] = {}
        self._making: dict[str, asyncio.Task[Made]] = {}
        self.begun = 0

    def newest(self, job: str) -> Made | None:
        """Return the newest survey of a job; None: there was no time for one yet."""
        made = self._made.get(job)
        try:
            return None if made is None or made.log_id != self._tracker.view(job).log_id else made
        except Refused:  # the job was deleted
            return None

    def due(self, job: str, share: int) -> float:
        """Return when a job may be surveyed again, by a monotonic clock; 0: it never was.

        Args:
            share: it is surveyed at most for one part in so many of the time, unless it is cheap.
        """
        made = self._made.get(job)
        if made is None:
            return 0.0
        return made.ended + (share * made.cost if made.cost > CHEAP_S else 0.0)

    async def survey(self, job: str, share: int) -> Made:
        """Return a survey: a new one if it is due, else the newest, or the one that is being made.

        Args:
            share: as for `due`.

        Raises:
            Refused: there is no such job.
        """
        making = self._making.get(job)
        if making is not None:
            made = await asyncio.shield(making)
            if made.cost > CHEAP_S:  # else a new one costs less than to ask how old this one is
                return made
        newest = self.newest(job)
        if newest is not None and self.due(job, share) > time.monotonic():
            return newest
        making = self._making.get(job)
        if making is None:
            making = self._making[job] = asyncio.create_task(self._make(job))
            making.add_done_callback(partial(self._done, job))
        return await asyncio.shield(making)

    def forget(self, job: str) -> None:
        """Drop a job's survey: the next one is due at once. Any thread may call it."""
        self._made.pop(job, None)

    def keep(self, jobs: Collection[str]) -> None:
        """Forget the surveys of all other jobs."""
        for gone in self._made.keys() - set(jobs):
            self.forget(gone)

    def _done(self, job: str, making: asyncio.Task[Made]) -> None:
        del self._making[job]
        if not making.cancelled() and making.exception() is None:  # asking for it marks it as seen
            self._made[job] = making.result()

    async def _make(self, job: str) -> Made:
        self.begun += 1
        surveyor, cost = Surveyor(), 0.0

        def step() -> Survey | None:
            nonlocal cost
            started = time.thread_time()
            try:
                return self._tracker.view(job).survey(surveyor)
            finally:
                cost += time.thread_time() - started

        log_id = self._tracker.view(job).log_id
        while True:
            stepped = self._lanes.run(job, step, lambda: self._tracker.view(job).search_cost)
            survey = await stepped if isinstance(stepped, asyncio.Future) else stepped
            if survey is not None:
                return Made(survey, log_id, time.time_ns(), time.monotonic(), cost)
            await asyncio.sleep(0)
