"""The numbers of all jobs, kept fresh for whoever looks from outside: metrics.

What is at hand is read each time, each job in its lane. What takes a pass over a job's open substreams is found in the
background, a part at a time, and at most for a small share of the time: the more substreams, the older it may be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from tracker.contract.figures import JobFigures
from tracker.contract.survey import Survey
from tracker.core import Refused, Tracker
from tracker.core.surveying import Surveyor

from .lanes import Lanes
from .watching import Readers

_PATIENCE_S = 1.0  # seconds that a caller waits for jobs whose lane is busy, and for surveys
_TURN_S = 0.002  # seconds of work before other tasks get a turn
_SHARE = 50  # a job is surveyed at most for one part in so many of the time
_CHEAP_S = 0.02  # seconds of CPU: a survey that takes no more is made each time
_BUDGET_S = 0.25  # seconds of surveys in a row: the jobs that are left come first the next time

_NOTHING_OPEN = Survey(0, {}, 0, {}, 0, {}, 0, 0, 0, ())


@dataclass(slots=True)
class JobNumbers:
    """What is known of one job."""

    figures: JobFigures
    survey: Survey | None = None  #: None: there was no time for it yet
    survey_due: float = 0.0  #: when to survey it again, by a monotonic clock
    behind_events: int = 0  #: of the watch that is furthest behind
    behind_since: int | None = None  #: when the first event happened that this watch has not sent (ns); None: none


class Inventory:
    """The numbers of all jobs.

    Args:
        tracker: the state.
        lanes: where each job's state is read.
        readers: the watches.
        fronts: how many fronts of each job to give the ages of.

    Attributes:
        jobs: by name, as of the last refresh.
    """

    def __init__(self, tracker: Tracker, lanes: Lanes, readers: Readers, fronts: int) -> None:
        self._tracker = tracker
        self._lanes = lanes
        self._readers = readers
        self._fronts = fronts
        self._surveying: asyncio.Task[None] | None = None
        self.jobs: dict[str, JobNumbers] = {}

    async def refresh(self) -> None:
        """Look at all jobs again. A job whose lane is busy for long keeps the numbers that it had."""
        names = self._tracker.jobs()
        for gone in self.jobs.keys() - set(names):
            del self.jobs[gone]
        places: dict[str, int] = {}
        for watch in self._readers.watches:
            places[watch.job] = min(watch.place, places.get(watch.job, watch.place))
        waiting: list[asyncio.Future[None]] = []
        turn = time.monotonic()
        for name in names:
            done = self._lanes.run(
                name, partial(self._look, name, places.get(name)), partial(self._tracker.status_cost, name)
            )
            if done is not None:
                waiting.append(done)
            if time.monotonic() - turn > _TURN_S:
                await asyncio.sleep(0)
                turn = time.monotonic()
        if waiting:
            await asyncio.wait(waiting, timeout=_PATIENCE_S)
        if self._surveying is None:
            self._surveying = asyncio.create_task(self._survey_all())
        await asyncio.wait([self._surveying], timeout=_PATIENCE_S)

    def _look(self, name: str, place: int | None) -> None:
        """Read what is at hand; call it in the job's lane."""
        figures = self._tracker.figures(name, self._fronts)
        if figures is None:
            return
        numbers = self.jobs.get(name)
        if numbers is None:
            numbers = self.jobs[name] = JobNumbers(figures)
        numbers.figures = figures
        numbers.behind_events, numbers.behind_since = 0, None
        if place is not None:
            numbers.behind_events = max(0, figures.last_seq - place)
            numbers.behind_since = self._tracker.event_at(name, place + 1)
        if not figures.open_substreams:
            numbers.survey, numbers.survey_due = _NOTHING_OPEN, 0.0

    async def _survey_all(self) -> None:
        try:
            now = started = time.monotonic()
            due = [name for name, numbers in self.jobs.items() if self._is_due(numbers, now)]
            for name in self._longest_ago_first(due):
                await self._survey(name)
                if time.monotonic() - started > _BUDGET_S:
                    break
        finally:
            self._surveying = None

    @staticmethod
    def _is_due(numbers: JobNumbers, now: float) -> bool:
        return numbers.figures.open_substreams > 0 and numbers.survey_due <= now

    def _longest_ago_first(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: self.jobs[name].survey_due)

    async def _survey(self, name: str) -> None:
        surveyor, cost = Surveyor(), 0.0

        def step() -> Survey | None:
            nonlocal cost
            started = time.thread_time()
            try:
                return self._tracker.survey(name, surveyor)
            finally:
                cost += time.thread_time() - started

        found: Survey | None = None
        while found is None:
            stepped = self._lanes.run(name, step, partial(self._tracker.search_cost, name))
            try:
                found = await stepped if isinstance(stepped, asyncio.Future) else stepped
            except Refused:  # the job was deleted
                return
            await asyncio.sleep(0)
        numbers = self.jobs.get(name)
        if numbers is not None:
            numbers.survey = found
            numbers.survey_due = time.monotonic() + (_SHARE * cost if cost > _CHEAP_S else 0.0)
