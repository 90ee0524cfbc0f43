"""Source of the status page's jobs: the look-ups of the service, without the wire, each in its job's lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import tracker
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.status import Explained, JobStatus
from tracker.contract.survey import Found, Wanted
from tracker.contract.values import EVERY_SCOPE
from tracker.core import JobView, Tracker
from tracker.page.source import EventTail, Surveyed

from .inventory import Surveys
from .readiness import RECOVERING
from .watching import Readers

_SHARE = 20  # a job that somebody looks at is surveyed at most for one part in so many of the time

_T = TypeVar("_T")


class PageSource:
    """Source of the page. Until `attach`, while the journal is recovered, it refuses."""

    def __init__(self, journal: str) -> None:
        self.version = tracker.__version__
        self.journal = journal
        self._attached: tuple[Tracker, Readers, Surveys] | None = None

    def attach(self, state: Tracker, readers: Readers, surveys: Surveys) -> None:
        """Read from here on."""
        self._attached = state, readers, surveys

    def _parts(self) -> tuple[Tracker, Readers, Surveys]:
        if self._attached is None:
            raise Refused(Refusal.RECOVERING, RECOVERING)
        return self._attached

    async def _ask(self, job: str, work: Callable[[JobView], _T], weight: Callable[[JobView], int]) -> _T:
        state, readers, _ = self._parts()
        state.view(job)  # refuses an unknown job, which shall not have a lane
        return await readers.ask(job, lambda: work(state.view(job)), lambda: weight(state.view(job)))

    def jobs(self) -> Sequence[str]:
        return self._parts()[0].jobs()

    async def status(self, job: str, describe: Callable[[JobStatus], _T]) -> _T:
        return await self._ask(job, lambda view: describe(view.status()), lambda view: 20 * view.status_cost)

    async def survey(self, job: str) -> Surveyed:
        state, _, surveys = self._parts()
        state.view(job)  # refuses an unknown job
        made = await surveys.survey(job, _SHARE)
        return Surveyed(made.survey, made.at // 1_000_000)

    async def search(self, job: str, wanted: Wanted, limit: int, after: int) -> Found:
        return await self._ask(
            job,
            lambda view: view.search(wanted, limit, after),
            lambda view: view.search_cost + 20 * limit,
        )

    async def explain(self, job: str, scope: str, name: str) -> tuple[JobStatus, Explained]:
        def look(view: JobView) -> tuple[JobStatus, Explained]:
            explained, status = view.explained(scope, name), view.status()
            # What other scopes were promised explains nothing, and may be much.
            fronts = tuple(
                replace(
                    front, frontiers={at: front.frontiers[at] for at in (EVERY_SCOPE, scope) if at in front.frontiers}
                )
                for front in status.fronts
            )
            return replace(status, fronts=fronts), explained

        def weight(view: JobView) -> int:
            return 20 * (view.status_cost + len(view.segments)) + view.counts().staged_entries // 10

        return await self._ask(job, look, weight)

    async def tail(self, job: str, before: int, limit: int) -> EventTail:
        def look(view: JobView) -> EventTail:
            first, last = view.first_seq(), view.last_seq
            up_to = min(before - 1, last) if before else last
            after = max(first - 1, up_to - limit)
            events = view.events(after, up_to, limit, own=True)[0] if up_to > after else []
            return EventTail(first, last, events)

        return await self._ask(job, look, lambda _: 20 * limit)
