"""The numbers of all jobs, kept fresh for whoever looks from outside: metrics.

What is at hand is read each time, each job in its lane. What takes a pass over a job's open substreams is surveyed in
the background, and at most for a small share of the time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tracker.contract.figures import JobFigures
from tracker.contract.survey import Survey
from tracker.core import Refused, Tracker

from .lanes import Lanes
from .surveys import Surveys
from .watching import Readers

_PATIENCE_S = 1.0  # seconds that a caller waits for jobs whose lane is busy, and for surveys
_TURN_S = 0.002  # seconds of work before other tasks get a turn
_SHARE = 50  # a job is surveyed at most for one part in so many of the time
_BUDGET_S = 0.25  # seconds of surveys in a row: the jobs that are left come first the next time

_NOTHING_OPEN = Survey(0, {}, 0, {}, 0, {}, 0, 0, 0, ())


@dataclass(slots=True)
class JobNumbers:
    """Numbers of one job."""

    figures: JobFigures
    survey: Survey | None = None  #: None: there was no time for it yet
    behind_events: int = 0  #: of the watch that is furthest behind
    behind_since: int | None = None  #: when the first event happened that this watch has not sent (ns); None: none


class Inventory:
    """The numbers of all jobs.

    Args:
        lanes: where each job's state is read.
        surveys: what open substreams wait for.
        fronts: how many fronts of each job to give the ages of.

    Attributes:
        jobs: by name, as of the last refresh.
    """

    def __init__(self, tracker: Tracker, lanes: Lanes, readers: Readers, surveys: Surveys, fronts: int) -> None:
        self._tracker = tracker
        self._lanes = lanes
        self._readers = readers
        self._surveys = surveys
        self._fronts = fronts
        self._surveying: asyncio.Task[None] | None = None
        self.jobs: dict[str, JobNumbers] = {}

    async def refresh(self) -> None:
        """Look at all jobs again. A job whose lane is busy for long keeps the numbers that it had."""
        names = self._tracker.jobs()
        for gone in self.jobs.keys() - set(names):
            del self.jobs[gone]
        self._surveys.keep(names)
        places: dict[str, int] = {}
        for watch in self._readers.watches:
            places[watch.job] = min(watch.place, places.get(watch.job, watch.place))
        waiting: list[asyncio.Future[None]] = []
        turn = time.monotonic()
        for name in names:
            done = self._lanes.run(name, partial(self._look, name, places.get(name)), partial(self._cost, name))
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
        for name, numbers in self.jobs.items():
            newest = self._surveys.newest(name)  # also one that was made for others
            if newest is not None:
                numbers.survey = newest.survey

    def _cost(self, name: str) -> int:
        view = self._tracker.find(name)
        return 0 if view is None else view.status_cost

    def _look(self, name: str, place: int | None) -> None:
        """Read what is at hand; call it in the job's lane."""
        view = self._tracker.find(name)
        if view is None:
            return
        figures = view.figures(self._fronts)
        numbers = self.jobs.get(name)
        if numbers is None:
            numbers = self.jobs[name] = JobNumbers(figures)
        numbers.figures = figures
        numbers.behind_events, numbers.behind_since = 0, None
        if place is not None:
            numbers.behind_events = max(0, figures.last_seq - place)
            numbers.behind_since = view.event_at(place + 1)
        if not figures.open_substreams:
            numbers.survey = _NOTHING_OPEN
            self._surveys.forget(name)

    async def _survey_all(self) -> None:
        try:
            now = started = time.monotonic()
            due = [name for name in self.jobs if self._is_due(name, now)]
            for name in sorted(due, key=lambda name: self._surveys.due(name, _SHARE)):  # longest ago first
                with suppress(Refused):  # the job was deleted
                    await self._surveys.survey(name, _SHARE)
                if time.monotonic() - started > _BUDGET_S:
                    break
        finally:
            self._surveying = None

    def _is_due(self, name: str, now: float) -> bool:
        return self.jobs[name].figures.open_substreams > 0 and self._surveys.due(name, _SHARE) <= now
