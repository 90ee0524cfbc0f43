"""The numbers of all jobs, kept fresh for whoever looks from outside: metrics.

Numbers at hand are read each time, each job in its lane. Those that take a pass over a job's open substreams are
surveyed in the background, and at most for a small share of the time.

A survey passes over all open substreams of a job, a part at a time, each in a turn of its own in the job's lane. One
that took little is made anew for each who asks, metrics and pages. One that took long is given to all who ask in the
meantime, and is made again only after many times as long: the more substreams, the older it may be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tracker.contract.status import JobFigures, Survey
from tracker.core import Refused, Tracker
from tracker.core.surveys import Surveyor

from .lanes import Lanes
from .watching import Readers

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
        names: how many segments and fronts of a job have series of their own.

    Attributes:
        jobs: by name, as of the last refresh.
    """

    def __init__(self, tracker: Tracker, lanes: Lanes, readers: Readers, surveys: Surveys, names: int) -> None:
        self._tracker = tracker
        self._lanes = lanes
        self._readers = readers
        self._surveys = surveys
        self.names = names
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
        figures = view.figures(self.names + 1)
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
            busy = [name for name, numbers in self.jobs.items() if numbers.figures.open_substreams]
            due = [name for name in busy if self._surveys.due(name, _SHARE) <= now]
            for name in sorted(due, key=lambda name: self._surveys.due(name, _SHARE)):  # longest ago first
                with suppress(Refused):  # the job was deleted
                    await self._surveys.survey(name, _SHARE)
                if time.monotonic() - started > _BUDGET_S:
                    break
        finally:
            self._surveying = None
