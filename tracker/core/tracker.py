"""The tracker: all jobs, behind one function that takes commands.

`Tracker.apply` is the whole machine: the same commands at the same times, in the same order, give the same answers
and events. Everything else here only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tracker.contract.answers import Answer, JobDefined
from tracker.contract.bounds import MAX_DURATION, bounded
from tracker.contract.commands import (
    CancelDrain,
    Command,
    DefineJob,
    DeleteJob,
    Drain,
    Recovered,
    Tick,
)
from tracker.contract.events import Ended, Event
from tracker.contract.refusal import Refused
from tracker.contract.status import Counts, DrainStatus, Explained, JobStatus, SubscriptionStatus, SubstreamStatus
from tracker.contract.values import DrainState

from . import checking, codec, deployments, draining, reach, timers, views
from .drains import DrainRecord
from .filters import EVERYTHING, EventFilter
from .handlers import HANDLERS
from .job import Job
from .messages import check_spec

DAY = 24 * 3600 * 10**9


class Tracker:
    """The state of a tracking agent.

    Args:
        log_prefix: what the ids of its jobs' logs begin with; another for each journal.
        retention: how long ended substreams and events are kept where a job does not say, in nanoseconds.

    >>> from tracker.core import DefineJob, Spec, Tracker
    >>> tracker = Tracker("log")
    >>> tracker.apply(DefineJob(Spec("j", "d1", (("a", ()),))), now=1).created
    True
    """

    def __init__(self, log_prefix: str, retention: int = DAY) -> None:
        self._log_prefix = log_prefix
        self._logs = 0
        self._retention = retention
        self._jobs: dict[str, Job] = {}
        self._pending: dict[str, dict[str, DrainRecord]] = {}  # by job and deployment
        self._woken: set[str] = set()

    # ------------------------------------------------------------ commands

    def apply(self, command: Command, now: int) -> Answer:
        """Carry out a command.

        Args:
            command: what to do.
            now: when it was taken, in nanoseconds since the Unix epoch; never less than before.

        Raises:
            Refused: the command changed nothing (but settling, if it came to that).
        """
        if isinstance(command, Tick):
            self._tick(command, now)
            return None
        if isinstance(command, Recovered):
            self._recover(command, now)
            return None
        job = self._jobs.get(command.job)
        last_seq = 0
        if job is not None:
            job.take(now)
            last_seq = job.log.last_seq
        try:
            return self._dispatch(command, job, now)
        finally:
            job = self._jobs.get(command.job)
            if job is not None:
                if job.turned_back:  # a front that was idle, and what it promised takes effect later, or was refused
                    job.evaluate()
                draining.confirm(job)
                if job.subscriptions.take_ended() or job.log.last_seq != last_seq:
                    self._woken.add(command.job)

    def _dispatch(self, command: Command, job: Job | None, now: int) -> Answer:
        if isinstance(command, DefineJob):
            return self._define(command, now)
        if isinstance(command, Drain):
            return self._drain(command, now)
        if isinstance(command, CancelDrain):
            return self._cancel_drain(command)
        assert not isinstance(command, Tick | Recovered)
        if job is None:
            raise checking.unknown_job(command.job)
        if isinstance(command, DeleteJob):
            self._delete(command, job)
            return None
        return HANDLERS[type(command)].carry_out(job, command, now)

    def _recover(self, command: Recovered, now: int) -> None:
        if command.lost_tail:
            self._log_prefix = command.lost_tail

        def recover(name: str) -> None:
            job = self._jobs[name]
            job.take(now)
            timers.restart_timers(job)
            if command.lost_tail:
                job.log.log_id = self._next_log_id()

        _for_each("Recovered", list(self._jobs), recover)

    def _tick(self, command: Tick, now: int) -> None:
        """Time passes for one job or for all; a fault in one must not stop time for the others."""
        _for_each("Tick", [command.job] if command.job else self.timed(), lambda name: self._tick_job(name, now))

    def _tick_job(self, name: str, now: int) -> None:
        for drain in self._pending.get(name, {}).values():
            if drain.deadline is not None and now >= drain.deadline:
                drain.state = DrainState.TIMED_OUT  # the event comes when there is a log for it
        job = self._jobs.get(name)
        if job is None:
            return
        job.take(now)
        last_seq = job.log.last_seq
        try:
            timers.tick(job, self._retention_of(job))
            draining.confirm(job)
        finally:
            if job.subscriptions.take_ended() or job.log.last_seq != last_seq:
                self._woken.add(name)

    def _retention_of(self, job: Job) -> int:
        return self._retention if job.spec.retention is None else job.spec.retention

    def _job(self, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None:
            raise checking.unknown_job(name)
        return job

    def _next_log_id(self) -> str:
        self._logs += 1
        return f"{self._log_prefix}-{self._logs}"

    def _define(self, command: DefineJob, now: int) -> JobDefined:
        spec = bounded(command.spec)
        job = self._jobs.get(spec.job)
        graph = check_spec(spec, job.spec if job else None, job.graph if job else None)
        created = job is None
        if job is None:
            job = self._jobs[spec.job] = Job(spec, graph, self._next_log_id(), now)
        else:
            deployments.redefine(job, spec, graph, command.force)
        pending = self._pending.get(spec.job, {}).pop(spec.deployment, None)
        if pending is not None:
            self._forget_empty(spec.job)
            draining.request(job, pending.drain_id, pending.deadline)
        draining.confirm(job)
        return JobDefined(job.spec, created, job.log.last_seq, views.drain_status(job), job.log.log_id, job.incarnation)

    def _delete(self, command: DeleteJob, job: Job) -> None:
        checking.check_delete(job, command)
        del self._jobs[command.job]
        self._pending.pop(command.job, None)
        self._woken.add(command.job)

    def _drain(self, command: Drain, now: int) -> DrainStatus:
        job = self._jobs.get(command.job)
        checking.check_drain(job, command)
        deadline = None if command.timeout is None else now + min(command.timeout, MAX_DURATION)
        if job is not None and command.deployment == job.spec.deployment:
            draining.request(job, command.drain_id, deadline)
            draining.confirm(job)
            return views.drain_status(job)
        pending = self._pending.setdefault(command.job, {})
        pending.setdefault(command.deployment, DrainRecord(DrainState.PENDING, command.drain_id, deadline))
        return self._pending_status(command.job, command.deployment)

    def _forget_empty(self, job: str) -> None:
        if not self._pending[job]:
            del self._pending[job]

    def _pending_status(self, job: str, deployment: str) -> DrainStatus:
        drain = self._pending[job][deployment]
        return DrainStatus(drain.state, drain.drain_id, deployment)

    def _cancel_drain(self, command: CancelDrain) -> DrainStatus:
        pending = self._pending.get(command.job, {})
        checking.check_cancel_drain(self._jobs.get(command.job), pending, command)
        drain = pending.get(command.deployment)
        if drain is not None:
            del pending[command.deployment]
            self._forget_empty(command.job)
            return DrainStatus(DrainState.CANCELLED, drain.drain_id, command.deployment)
        job = self._job(command.job)
        draining.cancel(job, command.drain_id)
        return views.drain_status(job)

    # ------------------------------------------------------------ questions

    def next_due(self, job: str = "") -> int | None:
        """When a `Tick` would do something at the earliest (ns), for one job or all; None: never, as things stand."""
        if not job:
            all_due = (self.next_due(name) for name in {**self._jobs, **self._pending})
            return min((each for each in all_due if each is not None), default=None)
        found = self._jobs.get(job)
        due = [] if found is None else [timers.next_due(found, self._retention_of(found))]
        due += [drain.deadline for drain in self._pending.get(job, {}).values() if drain.state is DrainState.PENDING]
        return min((each for each in due if each is not None), default=None)

    def timed(self) -> list[str]:
        """The names that `next_due` may be asked for: the jobs, and those that do not exist yet but are to drain."""
        return list({**self._jobs, **self._pending})

    def last_seq(self, job: str) -> int | None:
        """The number of a job's newest event; None: there is no such job."""
        found = self._jobs.get(job)
        return None if found is None else found.log.last_seq

    def deployment(self, job: str) -> str | None:
        """A job's current deployment; None: there is no such job."""
        found = self._jobs.get(job)
        return None if found is None else found.spec.deployment

    def current_run(self, job: str, producer: str) -> str | None:
        """A producer's current run; None: it has closed, or there is no such producer."""
        found = self._jobs.get(job)
        known = None if found is None else found.producers.get(producer)
        return None if known is None else known.run

    def drain_state(self, job: str) -> DrainState | None:
        """How far the drain of a job's current deployment is; None: there is no such job."""
        found = self._jobs.get(job)
        return None if found is None else found.drain.state

    def count_segments(self, job: str) -> int:
        """How many segments a job has; 0 if there is no such job."""
        found = self._jobs.get(job)
        return 0 if found is None else len(found.graph)

    def count_jobs(self) -> int:
        """How many jobs there are."""
        return len(self._jobs)

    def count_producers(self, job: str) -> int:
        """How many producers a job has; 0 if there is no such job."""
        return len(self._jobs[job].producers) if job in self._jobs else 0

    def has_producer(self, job: str, producer: str) -> bool:
        """Whether a job has this producer."""
        return job in self._jobs and producer in self._jobs[job].producers

    def reach(self, command: Command) -> int:
        """How many rows a command may touch, at most or nearly so: quick to find, for who shares out time."""
        return reach.of_command(self._jobs.get(command.job), command)

    def scan_cost(self, job: str) -> int:
        """What a look over all that a job holds costs, in rows."""
        found = self._jobs.get(job)
        return 0 if found is None else reach.of_scan(found)

    def status_cost(self, job: str) -> int:
        """What it costs to describe a job or its drain, in rows."""
        found = self._jobs.get(job)
        return 0 if found is None else reach.of_status(found)

    def scan_cells(self, job: str) -> int:
        """How many (substream, segment) pairs a look at all known substreams would describe."""
        found = self._jobs.get(job)
        return 0 if found is None else (found.accounts.open + found.accounts.ended) * len(found.graph)

    def check(self, command: Command) -> int:
        """Would a command be refused as things stand? Changes nothing.

        Returns:
            how many substreams it names for the first time.

        Raises:
            Refused: as `apply` would, where it would have changed nothing at all.
        """
        return checking.check(self._jobs.get(command.job), self._pending.get(command.job, {}), command)

    def take_woken(self) -> set[str]:
        """The jobs whose log has grown, or that were deleted, since the last call."""
        woken, self._woken = self._woken, set()
        return woken

    def take_woken_job(self, job: str) -> bool:
        """Whether this job is one of `take_woken`; it is not any more then. Safe beside commands of other jobs."""
        if job in self._woken:
            self._woken.discard(job)
            return True
        return False

    def jobs(self) -> list[str]:
        """The names of all jobs, sorted."""
        return sorted(self._jobs)

    def open_substreams(self, job: str) -> int:
        """How many of a job's substreams have not ended on every segment; 0 if there is no such job."""
        return self._jobs[job].accounts.open if job in self._jobs else 0

    def counts(self, job: str) -> Counts | None:
        """How much a job takes up, in no time; None if there is no such job."""
        return views.counts(self._jobs[job]) if job in self._jobs else None

    def new_scopes(self, job: str, scopes: Iterable[str]) -> int:
        """How many of these scopes no frontier has named yet."""
        found = self._jobs.get(job)
        return len(set(scopes) - found.fronts.scoped) if found else 0

    def waiting_drains(self, job: str, deployment: str) -> int:
        """How many drains would wait for deployments to be defined if this one were asked for; 0: it would not wait."""
        found = self._jobs.get(job)
        if deployment in self._pending.get(job, {}) or (found and found.spec.deployment == deployment):
            return 0
        return sum(map(len, self._pending.values())) + 1

    def job_status(self, job: str) -> JobStatus:
        """A job at a glance."""
        return views.status(self._job(job))

    def drain_status(self, job: str, deployment: str = "") -> DrainStatus:
        """How far a deployment's drain is; the current deployment's by default."""
        if deployment in self._pending.get(job, {}):
            return self._pending_status(job, deployment)
        found = self._job(job)
        if deployment and deployment != found.spec.deployment:
            raise checking.left_deployment(deployment, found)
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

        The filter is not applied: it only says whose absence matters.

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
            raise Refused.precondition(
                "LOG_CHANGED",
                f"the log of job {job!r} is {found.log.log_id!r}, not {log_id!r}: the job was deleted, or its journal "
                "lost its tail; start again from seq 0",
            )
        if subscription:
            reader = found.subscriptions.find(subscription)
            wanted, own, after_seq = reader.wanted, True, after_seq or reader.acknowledged
            if after_seq >= reader.acknowledged:
                # Nothing of it was dropped; what is known of the drops may be more careful than that.
                return found.log.read_kept(after_seq, up_to_seq, limit)
        return found.log.read(after_seq, up_to_seq, limit, wanted, own)

    def log_id(self, job: str) -> str:
        """Names a job's log."""
        return self._job(job).log.log_id

    def first_seq(self, job: str, wanted: EventFilter = EVERYTHING, subscription: str = "") -> int:
        """From which event on nothing is missing that a filter, or a subscription, asks for."""
        found = self._job(job)
        if subscription:
            return found.subscriptions.find(subscription).acknowledged + 1
        return found.log.dropped.last_passing(wanted) + 1

    def subscription_names(self, job: str) -> list[str]:
        """The names of a job's subscriptions, expired ones too; none if there is no such job."""
        return list(self._jobs[job].subscriptions) if job in self._jobs else []

    def names_subscribed_to(self, job: str, besides: str) -> int:
        """How many segments and scopes the filters of a job's subscriptions name, but for one of them."""
        return self._jobs[job].subscriptions.names_asked_for(besides) if job in self._jobs else 0

    def filter_of(self, job: str, subscription: str) -> EventFilter:
        """What a subscription asks for.

        Raises:
            Refused: ``UNKNOWN_JOB``; ``UNKNOWN_SUBSCRIPTION``; ``SUBSCRIPTION_EXPIRED``.
        """
        return self._job(job).subscriptions.find(subscription).wanted

    def subscriptions(self, job: str) -> list[SubscriptionStatus]:
        """A job's subscriptions, by name, expired ones too."""
        return self._job(job).subscriptions.statuses()

    def ended(self, job: str, segment: str, scope: str, name: str, end_time: int | None = None) -> Ended | None:
        """The end of a substream on a segment, if it has come."""
        return views.ended(self._job(job), segment, scope, name, end_time)

    def explained(self, job: str, scope: str, name: str) -> Explained:
        """One substream as it stands, and every epoch that has reported something of it and is not committed."""
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
        """A page of a job's known substreams, in the order of their creation.

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

    # ------------------------------------------------------------ dump and load

    def dump(self) -> dict[str, Any]:
        """The whole state as plain values and numpy columns, sharing nothing with it."""
        return self.dump_whole(self.dump_head(), map(self.dump_job, self.timed()))

    def dump_head(self) -> dict[str, Any]:
        """What belongs to no job."""
        return {"log_prefix": self._log_prefix, "logs": self._logs, "retention": self._retention}

    def dump_job(self, name: str) -> dict[str, Any]:
        """What belongs to one job, or to a name that has none yet but is to drain."""
        job = self._jobs.get(name)
        pending = self._pending.get(name, {})
        return {
            "jobs": [] if job is None else [codec.dump_job(job)],
            "pending": [[name, deployment, codec.dump_drain(drain)] for deployment, drain in pending.items()],
        }

    @staticmethod
    def dump_whole(head: dict[str, Any], parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """The parts as one dump. Jobs are independent, so each may be dumped when its own turn comes."""
        whole: dict[str, Any] = {**head, "jobs": [], "pending": []}
        for part in parts:
            whole["jobs"] += part["jobs"]
            whole["pending"] += part["pending"]
        return whole

    @classmethod
    def load(cls, dump: dict[str, Any]) -> Tracker:
        """The tracker that gave `dump`, also after its lists, tuples and columns went through a file."""
        tracker = cls(dump["log_prefix"], dump["retention"])
        tracker._logs = dump["logs"]
        for each in dump["jobs"]:
            job = codec.load_job(each)
            tracker._jobs[job.spec.job] = job
        for name, deployment, drain in dump["pending"]:
            tracker._pending.setdefault(name, {})[deployment] = codec.load_drain(drain)
        return tracker


def _for_each(what: str, jobs: Sequence[str], work: Callable[[str], None]) -> None:
    """Do something for each job, whatever becomes of the others.

    Raises:
        ExceptionGroup: the faults, each with its job.
    """
    faults: list[Exception] = []
    for name in jobs:
        try:
            work(name)
        except Exception as fault:
            fault.add_note(f"in job {name!r}")
            faults.append(fault)
    if faults:
        raise ExceptionGroup(f"{what} failed in {len(faults)} of {len(jobs)} jobs", faults)
