"""Questions about jobs: nothing here changes anything."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from tracker.contract.commands import Command
from tracker.contract.events import Ended, Event
from tracker.contract.figures import FrontAge, JobFigures, Tally
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.status import Counts, DrainStatus, Explained, JobStatus, SubscriptionStatus, SubstreamStatus
from tracker.contract.survey import Found, Survey, Wanted
from tracker.contract.values import DrainState, Reason

from . import handlers, reach, surveying, timers, views
from .drains import DrainRecord
from .filters import EVERYTHING, EventFilter
from .frontgroups import Front
from .handlers import Prepared
from .job import Job


def tally_of(job: Job) -> Tally:
    """Return what the job has announced since the process started, and how much was late in all."""
    ends = job.ends_announced
    return Tally(
        ends[Reason.COMPLETE.number], ends[Reason.EXPIRED.number], ends[Reason.ABANDONED.number], job.late_reports
    )


def figures_of(job: Job, most_fronts: int) -> JobFigures:
    """Return a job's numbers, with the ages of at most so many fronts."""
    accounts = job.accounts
    unfinished = job.fronts.unfinished()
    oldest = heapq.nsmallest(most_fronts, unfinished, key=_since)
    return JobFigures(
        open_substreams=accounts.open,
        incomplete_substreams=job.closing.expectations.shortfall()[0] if job.closing.expectations else 0,
        staged_substreams=accounts.staged,
        staged_epochs=job.count_staged(),
        cells=accounts.cell_count,
        tombstones=len(job.tombstones),
        events=job.log.kept,
        retained_events=len(job.log.retained),
        last_seq=job.log.last_seq,
        segments=job.graph.names,
        drain=job.drain.state,
        producers=len(job.producers),
        idle_fronts=sum(front.idle for front in unfinished),
        fronts=tuple(FrontAge(front.name, _since(front)) for front in oldest),
        other_fronts=len(unfinished) - len(oldest),
    )


def _since(front: Front) -> int:
    return front.last_contact if front.last_promise is None else front.last_promise


class Questions:
    """The jobs of a tracker, to be asked about.

    Args:
        retention: how long ended substreams and events are kept for jobs that set no retention (ns).
    """

    def __init__(self, retention: int) -> None:
        self._retention = retention
        self._jobs: dict[str, Job] = {}
        self._pending: dict[str, dict[str, DrainRecord]] = {}  # drains, by job and deployment

    def _job(self, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None:
            raise handlers.unknown_job(name)
        return job

    def _retention_of(self, job: Job) -> int:
        return self._retention if job.spec.retention is None else job.spec.retention

    def _pending_status(self, job: str, deployment: str) -> DrainStatus:
        drain = self._pending[job][deployment]
        return DrainStatus(drain.state, drain.drain_id, deployment, mode=drain.mode)

    def next_due(self, job: str = "") -> int | None:
        """Return when a `Tick` would do something at the earliest (ns), for one job or all; None: never."""
        if not job:
            all_due = (self.next_due(name) for name in {**self._jobs, **self._pending})
            return min((each for each in all_due if each is not None), default=None)
        found = self._jobs.get(job)
        due = [] if found is None else [timers.next_due(found, self._retention_of(found))]
        due += [drain.deadline for drain in self._pending.get(job, {}).values() if drain.state is DrainState.PENDING]
        return min((each for each in due if each is not None), default=None)

    def timed(self) -> list[str]:
        """Return the names that `next_due` may be asked for: the jobs, and those that do not exist yet but are to
        drain."""
        return list({**self._jobs, **self._pending})

    def last_seq(self, job: str) -> int | None:
        """Return the number of a job's newest event; None: there is no such job."""
        found = self._jobs.get(job)
        return None if found is None else found.log.last_seq

    def deployment(self, job: str) -> str | None:
        """Return a job's current deployment; None: there is no such job."""
        found = self._jobs.get(job)
        return None if found is None else found.spec.deployment

    def current_run(self, job: str, producer: str) -> str | None:
        """Return a producer's current run; None: it has closed, or there is no such producer."""
        found = self._jobs.get(job)
        known = None if found is None else found.producers.get(producer)
        return None if known is None else known.run

    def drain_state(self, job: str) -> DrainState | None:
        """Return how far the drain of a job's current deployment is; None: there is no such job."""
        found = self._jobs.get(job)
        return None if found is None else found.drain.state

    def count_segments(self, job: str) -> int:
        """Return how many segments a job has; 0 if there is no such job."""
        found = self._jobs.get(job)
        return 0 if found is None else len(found.graph)

    def count_jobs(self) -> int:
        """Return how many jobs there are."""
        return len(self._jobs)

    def count_producers(self, job: str) -> int:
        """Return how many producers a job has; 0 if there is no such job."""
        return len(self._jobs[job].producers) if job in self._jobs else 0

    def has_producer(self, job: str, producer: str) -> bool:
        """Return whether a job has this producer."""
        return job in self._jobs and producer in self._jobs[job].producers

    def reach(self, command: Command) -> int:
        """Return how many rows a command may touch, at most or nearly so: quick to find, for who shares out time."""
        return reach.of_command(self._jobs.get(command.job), command)

    def scan_cost(self, job: str) -> int:
        """Return what a look over all that a job holds costs, in rows."""
        found = self._jobs.get(job)
        return 0 if found is None else reach.of_scan(found)

    def status_cost(self, job: str) -> int:
        """Return what it costs to describe a job or its drain, in rows."""
        found = self._jobs.get(job)
        return 0 if found is None else reach.of_status(found)

    def scan_cells(self, job: str) -> int:
        """Return how many (substream, segment) pairs a look at all known substreams would describe."""
        found = self._jobs.get(job)
        return 0 if found is None else (found.accounts.open + found.accounts.ended) * len(found.graph)

    def prepare(self, command: Command) -> Prepared:
        """Check a command as things stand. Changes nothing.

        Raises:
            Refused: as `apply` would, where it would have changed nothing at all.
        """
        return handlers.prepare(self._jobs.get(command.job), self._pending.get(command.job, {}), command)

    def jobs(self) -> list[str]:
        """Return the names of all jobs, sorted."""
        return sorted(self._jobs)

    def open_substreams(self, job: str) -> int:
        """Return how many of a job's substreams have not ended on every segment; 0 if there is no such job."""
        return self._jobs[job].accounts.open if job in self._jobs else 0

    def counts(self, job: str) -> Counts | None:
        """Return how much a job takes up, in no time; None if there is no such job."""
        return views.counts(self._jobs[job]) if job in self._jobs else None

    def tally(self, job: str) -> Tally | None:
        """Return what a job has announced since the process started; None if there is no such job."""
        return tally_of(self._jobs[job]) if job in self._jobs else None

    def figures(self, job: str, most_fronts: int) -> JobFigures | None:
        """Return a job's numbers, with the ages of at most so many fronts; None if there is no such job."""
        return figures_of(self._jobs[job], most_fronts) if job in self._jobs else None

    def event_at(self, job: str, seq: int) -> int | None:
        """Return when a job's first kept event from `seq` on happened (ns); None: there is no such event or job."""
        return self._jobs[job].log.at(seq) if job in self._jobs else None

    def new_scopes(self, job: str, scopes: Iterable[str]) -> int:
        """Return how many of these scopes no frontier has named yet."""
        found = self._jobs.get(job)
        return len(set(scopes) - found.fronts.scoped) if found else 0

    def waiting_drains(self, job: str, deployment: str) -> int:
        """Return how many drains would wait for deployments to be defined if this one were asked for; 0: it would not
        wait."""
        found = self._jobs.get(job)
        if deployment in self._pending.get(job, {}) or (found and found.spec.deployment == deployment):
            return 0
        return sum(map(len, self._pending.values())) + 1

    def job_status(self, job: str) -> JobStatus:
        """Return a job at a glance."""
        return views.status(self._job(job))

    def drain_status(self, job: str, deployment: str = "") -> DrainStatus:
        """Return how far a deployment's drain is; the current deployment's by default."""
        if deployment in self._pending.get(job, {}):
            return self._pending_status(job, deployment)
        found = self._job(job)
        if deployment and deployment != found.spec.deployment:
            raise handlers.left_deployment(deployment, found)
        return views.drain_status(found)

    def events(
        self,
        job: str,
        after_seq: int,
        up_to_seq: int = 0,
        limit: int = 1000,
        log_id: str = "",
        wanted: EventFilter = EVERYTHING,
        own: bool = False,
        subscription: str = "",
    ) -> tuple[list[Event], int]:
        """Kept events after a seq, in order, and the seq that was last looked at.

        The filter is not applied: it only decides which missing events matter.

        Args:
            job: whose log.
            after_seq: 0 starts at the oldest from which on nothing is missing that the filter lets through.
            up_to_seq: 0 is the last.
            limit: at most so many.
            log_id: the log that the seqs are of; empty: any.
            wanted: what the reader asks for.
            own: `after_seq` is a position of the reader's own, also if it is 0.
            subscription: read as this one, by its filter, and after what it has acknowledged if `after_seq` is 0.

        Raises:
            Refused: ``UNKNOWN_JOB``; ``LOG_CHANGED``; ``EVENTS_EXPIRED`` if retention has dropped some of those that
                were asked for; ``UNKNOWN_SUBSCRIPTION``; ``SUBSCRIPTION_EXPIRED``.
        """
        found = self._job(job)
        if log_id and log_id != found.log.log_id:
            raise Refused(
                Refusal.LOG_CHANGED,
                f"the log of job {job!r} is {found.log.log_id!r}, not {log_id!r}: the job was deleted, "
                "its journal has lost its tail, or a backup was restored; start again from seq 0",
            )
        if subscription:
            reader = found.subscriptions.find(subscription)
            wanted, own, after_seq = reader.wanted, True, after_seq or reader.acknowledged
            if after_seq >= reader.acknowledged:
                # Nothing of it was dropped; what is known of the drops may be more careful than that.
                return found.log.read_kept(after_seq, up_to_seq, limit)
        return found.log.read(after_seq, up_to_seq, limit, wanted, own)

    def log_id(self, job: str) -> str:
        """Name a job's log."""
        return self._job(job).log.log_id

    def first_seq(self, job: str, wanted: EventFilter = EVERYTHING, subscription: str = "") -> int:
        """From which event on nothing is missing that a filter, or a subscription, asks for."""
        found = self._job(job)
        if subscription:
            return found.subscriptions.find(subscription).acknowledged + 1
        return found.log.dropped.last_passing(wanted) + 1

    def subscription_names(self, job: str) -> list[str]:
        """Return the names of a job's subscriptions, expired ones too; none if there is no such job."""
        return list(self._jobs[job].subscriptions) if job in self._jobs else []

    def names_subscribed_to(self, job: str, besides: str) -> int:
        """Return how many segments and scopes the filters of a job's subscriptions name, but for one of them."""
        return self._jobs[job].subscriptions.names_asked_for(besides) if job in self._jobs else 0

    def filter_of(self, job: str, subscription: str) -> EventFilter:
        """Return what a subscription asks for.

        Raises:
            Refused: ``UNKNOWN_JOB``; ``UNKNOWN_SUBSCRIPTION``; ``SUBSCRIPTION_EXPIRED``.
        """
        return self._job(job).subscriptions.find(subscription).wanted

    def subscriptions(self, job: str) -> list[SubscriptionStatus]:
        """Return a job's subscriptions, by name, expired ones too."""
        return self._job(job).subscriptions.statuses()

    def ended(self, job: str, segment: str, scope: str, name: str, end_time: int | None = None) -> Ended | None:
        """Return the end of a substream on a segment, if it has come."""
        return views.ended(self._job(job), segment, scope, name, end_time)

    def explained(self, job: str, scope: str, name: str) -> Explained:
        """Return one substream as it stands, and every epoch that has reported something of it and is not committed."""
        return views.explained(self._job(job), scope, name)

    def substreams(
        self,
        job: str,
        scopes: Sequence[str] = (),
        include_ended: bool = False,
        only_stalled: bool = False,
        limit: int = 100,
        after: int = -1,
    ) -> tuple[list[SubstreamStatus], int | None]:
        """Return a page of a job's known substreams, in the order of their creation.

        Args:
            job: whose.
            scopes: of these scopes only; empty: of all.
            include_ended: those, too, that have ended on every segment and are still remembered.
            only_stalled: only those announced as stalled.
            limit: at most so many.
            after: what an earlier page gave; -1 for the first.

        Returns:
            the substreams, and the `after` of the next page (None: there is none).
        """
        return views.substreams(self._job(job), scopes, include_ended, only_stalled, limit, after)

    def survey(self, job: str, surveyor: surveying.Surveyor) -> Survey | None:
        """Let a surveyor look at the next substreams of a job; the survey, once it has looked at all."""
        found = self._job(job)
        return None if surveyor.step(found) else surveyor.survey(found)

    def search(self, job: str, wanted: Wanted, limit: int = 50, after: int = -1) -> Found:
        """Some open substreams that are wanted, by creation, and where to go on. What one call looks at is bounded.

        Args:
            job: whose.
            wanted: which.
            limit: at most so many.
            after: the `following` of an earlier answer; -1 for the first.
        """
        return surveying.found(self._job(job), wanted, limit, after)

    def search_cost(self, job: str) -> int:
        """Return what one call of `survey` or `search` costs, in rows."""
        found = self._jobs.get(job)
        return 0 if found is None else min(surveying.STEP, found.accounts.open) + found.staged_entries // 50
