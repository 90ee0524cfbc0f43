"""The tracker: all jobs, behind one function that takes commands.

`Tracker.apply` is the whole machine: the same commands at the same times, in the same order, give the same answers
and events. `views` answers every question about a job.

A server prepares a command before it journals it, so that a refused one leaves no record. To prepare is to check what
carrying out begins with, and changes nothing. Where a command would settle what earlier runs left, only what is checked
before that is checked here: what settling has changed stays, whatever follows, so the command must be carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tracker.contract.bounds import MAX_DURATION, bounded
from tracker.contract.commands import (
    Abandon,
    Ack,
    Answer,
    CancelDrain,
    CloseProducer,
    Command,
    Commit,
    DefineJob,
    DeleteJob,
    Drain,
    FinishFront,
    ForgetProducer,
    JobDefined,
    OpenProducer,
    Recovered,
    Report,
    Subscribe,
    Tick,
    Unsubscribe,
)
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import JobSpec
from tracker.contract.status import DrainStatus
from tracker.contract.values import DrainState

from . import codec, deployments, reports, timers, views
from .job import DrainRecord, Job
from .validation import Resolved, check_deployment, check_job_name, check_name, check_spec
from .views import JobView

DAY = 24 * 3600 * 10**9


class Prepared(NamedTuple):
    """A command that would not be refused as things stood, with what was found on the way."""

    command: Command
    new: int = 0  #: how many substreams it names for the first time
    found: Resolved | None = None  #: of a report: its names, looked up

    @property
    def job(self) -> str:
        return self.command.job


class Tracker:
    """The state of a tracking agent.

    Args:
        log_prefix: what the ids of its jobs' logs begin with; another for each journal.
        retention: how long ended substreams and events are kept for jobs that set no retention (ns).

    >>> from tracker.core import DefineJob, Spec, Tracker
    >>> tracker = Tracker("log")
    >>> tracker.apply(DefineJob(Spec("j", "d1", (("a", ()),))), now=1).created
    True
    """

    def __init__(self, log_prefix: str, retention: int = DAY) -> None:
        self._retention = retention
        self._jobs: dict[str, Job] = {}
        self._pending: dict[str, dict[str, DrainRecord]] = {}  # drains, by job and deployment
        self._log_prefix = log_prefix
        self._logs = 0
        self._changed_jobs: set[str] = set()
        self._due: dict[str, int | None] = {}  # of jobs that no command has touched since

    # ------------------------------------------------------------ commands

    def apply(self, command: Command | Prepared, now: int) -> Answer:
        """Carry out a command.

        Args:
            command: what to do, prepared or not; whatever has happened since it was prepared, the outcome is the same.
            now: when it was taken, in nanoseconds since the Unix epoch; never less than before.

        Raises:
            Refused: the command changed nothing (but settling, if it came to that).
        """
        command, _, found = command if isinstance(command, Prepared) else Prepared(command)
        try:
            return self._apply(command, found, now)
        finally:
            if command.job:
                self._due.pop(command.job, None)
            else:
                self._due.clear()

    def _apply(self, command: Command, found: Resolved | None, now: int) -> Answer:
        if isinstance(command, Tick):
            self._tick(command, now)
            return None
        if isinstance(command, Recovered):
            self._recover(command, now)
            return None
        job = self._jobs.get(command.job)
        last_seq = 0
        if job is not None:
            job.changes.now = now
            last_seq = job.log.last_seq
        try:
            return self._dispatch(command, found, job, now)
        finally:
            job = self._jobs.get(command.job)
            if job is not None:
                # A front resumed, and what it promised takes effect later, or was refused; or a revoked epoch has
                # taken a number back, without which a substream is closed and balances.
                if job.fronts_resumed or job.changes.pending:
                    job.evaluate()
                deployments.confirm(job)
                if job.subscriptions.pop_ended() or job.log.last_seq != last_seq:
                    self._changed_jobs.add(command.job)

    def _dispatch(self, command: Command, found: Resolved | None, job: Job | None, now: int) -> Answer:
        if isinstance(command, DefineJob):
            return self._define(command, now)
        if isinstance(command, Drain):
            return self._drain(command, now)
        if isinstance(command, CancelDrain):
            return self._cancel_drain(command)
        assert not isinstance(command, Tick | Recovered)
        if job is None:
            raise _unknown_job(command.job)
        if isinstance(command, DeleteJob):
            self._delete(command, job)
            return None
        if isinstance(command, Report):
            return reports.report(job, command, found)
        if isinstance(command, Commit):
            return reports.commit(job, command)
        return HANDLERS[type(command)].carry_out(job, command)

    def _recover(self, command: Recovered, now: int) -> None:
        if command.lost_tail:
            self._log_prefix = command.lost_tail

        def recover(name: str) -> None:
            job = self._jobs[name]
            job.changes.now = now
            timers.restart_timers(job)
            if command.lost_tail:
                job.log.log_id = self._next_log_id()
            if command.fences:
                reports.fence_all(job, f"lost-{command.lost_tail}")

        _for_each("Recovered", list(self._jobs), recover)

    def _tick(self, command: Tick, now: int) -> None:
        """Let time pass for one job or for all; a fault in one must not stop time for the others."""
        _for_each("Tick", [command.job] if command.job else self.timed(), lambda name: self._tick_job(name, now))

    def _tick_job(self, name: str, now: int) -> None:
        for drain in self._pending.get(name, {}).values():
            if drain.deadline is not None and now >= drain.deadline:
                drain.state = DrainState.TIMED_OUT  # the event comes when there is a log for it
        job = self._jobs.get(name)
        if job is None:
            return
        job.changes.now = now
        last_seq = job.log.last_seq
        try:
            timers.tick(job, self._retention_of(job))
            deployments.confirm(job)
        finally:
            if job.subscriptions.pop_ended() or job.log.last_seq != last_seq:
                self._changed_jobs.add(name)

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
            deployments.request(job, pending)
        deployments.confirm(job)
        log = job.log
        return JobDefined(
            created, log.last_seq, log.log_id, job.incarnation, JobView(job).drain_status(), JobSpec.of(job.spec)
        )

    def _delete(self, command: DeleteJob, job: Job) -> None:
        _check_delete(job, command)
        del self._jobs[command.job]
        self._pending.pop(command.job, None)
        self._changed_jobs.add(command.job)

    def _drain(self, command: Drain, now: int) -> DrainStatus:
        job = self._jobs.get(command.job)
        _check_drain(job, self._pending.get(command.job, {}), command)
        deadline = None if command.timeout is None else now + min(command.timeout, MAX_DURATION)
        asked = DrainRecord(DrainState.PENDING, command.drain_id, deadline, command.mode)
        if job is not None and command.deployment == job.spec.deployment:
            deployments.request(job, asked)
            deployments.confirm(job)
            return JobView(job).drain_status()
        self._pending.setdefault(command.job, {}).setdefault(command.deployment, asked)
        return self._pending_status(command.job, command.deployment)

    def _forget_empty(self, job: str) -> None:
        if not self._pending[job]:
            del self._pending[job]

    def _cancel_drain(self, command: CancelDrain) -> DrainStatus:
        pending = self._pending.get(command.job, {})
        _check_cancel_drain(self._jobs.get(command.job), pending, command)
        drain = pending.get(command.deployment)
        if drain is not None:
            del pending[command.deployment]
            self._forget_empty(command.job)
            return DrainStatus(DrainState.CANCELLED, drain.drain_id, command.deployment, mode=drain.mode)
        job = self._job(command.job)
        deployments.cancel(job, command.drain_id)
        return JobView(job).drain_status()

    # ------------------------------------------------------------ questions, which change nothing

    def view(self, job: str) -> JobView:
        """Return a job, to be asked about."""
        return JobView(self._job(job))

    def find(self, job: str) -> JobView | None:
        """Return a job, to be asked about; None: there is no such job."""
        found = self._jobs.get(job)
        return None if found is None else JobView(found)

    def jobs(self) -> list[str]:
        """Return the names of all jobs, sorted."""
        return sorted(self._jobs)

    def count_jobs(self) -> int:
        """Return how many jobs there are."""
        return len(self._jobs)

    def timed(self) -> list[str]:
        """Return the names that `next_due` may be asked for: the jobs, and those that do not exist yet but are to
        drain."""
        return list({**self._jobs, **self._pending})

    def next_due(self, job: str = "") -> int | None:
        """Return when a `Tick` would do something at the earliest (ns), for one job or all; None: never."""
        if not job:
            all_due = (self.next_due(name) for name in {**self._jobs, **self._pending})
            return min((each for each in all_due if each is not None), default=None)
        if job not in self._due:
            self._due[job] = self._find_due(job)
        return self._due[job]

    def _find_due(self, job: str) -> int | None:
        found = self._jobs.get(job)
        due = [] if found is None else [timers.next_due(found, self._retention_of(found))]
        due += [drain.deadline for drain in self._pending.get(job, {}).values() if drain.state is DrainState.PENDING]
        return min((each for each in due if each is not None), default=None)

    def waiting_drains(self, job: str, deployment: str) -> int:
        """Return how many drains would wait for deployments to be defined if this one were asked for; 0: it would not
        wait."""
        found = self._jobs.get(job)
        if deployment in self._pending.get(job, {}) or (found and found.spec.deployment == deployment):
            return 0
        return sum(map(len, self._pending.values())) + 1

    def drain_status(self, job: str, deployment: str = "") -> DrainStatus:
        """Return how far a deployment's drain is; the current deployment's by default."""
        if deployment in self._pending.get(job, {}):
            return self._pending_status(job, deployment)
        found = self._job(job)
        if deployment and deployment != found.spec.deployment:
            raise _left_deployment(deployment, found)
        return JobView(found).drain_status()

    def prepare(self, command: Command) -> Prepared:
        """Check a command as things stand. Changes nothing.

        Raises:
            Refused: as `apply` would, where it would have changed nothing at all.
        """
        job, pending = self._jobs.get(command.job), self._pending.get(command.job, {})
        if isinstance(command, DefineJob):
            spec = bounded(command.spec)
            graph = check_spec(spec, job.spec if job else None, job.graph if job else None)
            if job is not None:
                deployments.check_redefine(job, spec, graph, command.force)
        elif isinstance(command, Drain):
            _check_drain(job, pending, command)
        elif isinstance(command, CancelDrain):
            _check_cancel_drain(job, pending, command)
        elif not isinstance(command, Tick | Recovered):
            if job is None:
                raise _unknown_job(command.job)
            if isinstance(command, Report):
                found = reports.check_report(job, command)
                return Prepared(command, len(found.new), found)
            if isinstance(command, Commit):
                return Prepared(command, reports.check_commit(job, command))
            if isinstance(command, DeleteJob):
                _check_delete(job, command)
            else:
                HANDLERS[type(command)].check(job, command)
        return Prepared(command)

    def reach(self, command: Command) -> int:
        """Return how many rows a command may touch, at most or nearly so: quick to find, for who shares out time."""
        return views.reach(self._jobs.get(command.job), command)

    def _job(self, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None:
            raise _unknown_job(name)
        return job

    def _retention_of(self, job: Job) -> int:
        return self._retention if job.spec.retention is None else job.spec.retention

    def _pending_status(self, job: str, deployment: str) -> DrainStatus:
        drain = self._pending[job][deployment]
        return DrainStatus(drain.state, drain.drain_id, deployment, mode=drain.mode)

    # ------------------------------------------------------------ what has changed

    def pop_changed_jobs(self) -> set[str]:
        """Return the jobs whose log has grown, or that were deleted, since the last call."""
        changed, self._changed_jobs = self._changed_jobs, set()
        return changed

    def pop_changed_job(self, job: str) -> bool:
        """Return whether this job is one of `pop_changed_jobs`, once. Safe beside commands of other jobs."""
        if job in self._changed_jobs:
            self._changed_jobs.discard(job)
            return True
        return False

    # ------------------------------------------------------------ dump and load

    def dump(self) -> dict[str, Any]:
        """Return the whole state as plain values and numpy columns, sharing nothing with it."""
        return self.dump_whole(self.dump_head(), (self.copy_job(name)() for name in self.timed()))

    def dump_head(self) -> dict[str, Any]:
        """Return the state that belongs to no job."""
        return {"log_prefix": self._log_prefix, "logs": self._logs, "retention": self._retention}

    def copy_job(self, name: str) -> Callable[[], dict[str, Any]]:
        """Copy the state of one job, or of a name without a job whose drain is waiting.

        Returns:
            a function that makes a part of a dump from the copy; the job may change meanwhile.
        """
        jobs = [codec.copy_job(self._jobs[name])] if name in self._jobs else []
        pending = self._pending.get(name, {})
        drains = [[name, deployment, codec.dump_drain(drain)] for deployment, drain in pending.items()]
        return lambda: {"jobs": [made() for made in jobs], "pending": drains}

    @staticmethod
    def dump_whole(head: dict[str, Any], parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """Return the parts as one dump. Jobs are independent, so each may be dumped when its own turn comes."""
        whole: dict[str, Any] = {**head, "jobs": [], "pending": []}
        for part in parts:
            whole["jobs"] += part["jobs"]
            whole["pending"] += part["pending"]
        return whole

    @classmethod
    def load(cls, dump: dict[str, Any]) -> Tracker:
        """Return the tracker that gave `dump`, also after its lists, tuples and columns went through a file."""
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


# ---------------------------------------------------------------- commands for a job that exists


class Handler(NamedTuple):
    """Check and execution of commands of one kind, for a job that exists."""

    check: Callable[[Job, Any], object]
    carry_out: Callable[[Job, Any], Answer]


#: Of the kinds that name no substream for the first time.
HANDLERS: Final[dict[type[Any], Handler]] = {
    OpenProducer: Handler(reports.check_open, reports.open_producer),
    CloseProducer: Handler(reports.check_close, reports.close_producer),
    ForgetProducer: Handler(lambda job, command: job.producer(command.producer), reports.forget_producer),
    FinishFront: Handler(reports.check_finish_front, reports.finish_front),
    Abandon: Handler(
        lambda job, command: job.known_row(command.scope, command.name),
        lambda job, command: job.abandon(command.scope, command.name),
    ),
    Subscribe: Handler(
        lambda job, command: job.subscriptions.check_subscribe(command, job.graph),
        lambda job, command: job.subscriptions.subscribe(command, job.graph, job.now),
    ),
    Ack: Handler(
        lambda job, command: job.subscriptions.check_acknowledge(command),
        lambda job, command: job.subscriptions.acknowledge(command, job.now),
    ),
    Unsubscribe: Handler(
        lambda job, command: job.subscriptions.check_unsubscribe(command.name),
        lambda job, command: job.subscriptions.unsubscribe(command.name),
    ),
}


# ---------------------------------------------------------------- checks of what the tracker itself carries out


def _unknown_job(job: str) -> Refused:
    """Return the refusal of a command for a job that does not exist."""
    return Refused(Refusal.UNKNOWN_JOB, f"there is no job {job!r}; define it first")


def _left_deployment(deployment: str, job: Job) -> Refused:
    """Return the refusal of a command for a deployment that is not the current one."""
    return Refused(
        Refusal.DEPLOYMENT_MISMATCH,
        f"deployment {deployment!r} is not the current deployment {job.spec.deployment!r}; name the current one",
    )


def _check_drain(job: Job | None, pending: Mapping[str, DrainRecord], command: Drain) -> None:
    """Refuse a drain without proper names, of a deployment that the job has left, or beside one of another mode."""
    check_job_name(command.job)
    check_deployment(command.deployment)
    check_name("drain_id", command.drain_id)
    if job is not None and command.deployment != job.spec.deployment and command.deployment in job.past_deployments:
        raise _left_deployment(command.deployment, job)
    if job is not None and command.deployment == job.spec.deployment:
        deployments.check_request(job.drain, command.mode)
    elif command.deployment in pending:
        deployments.check_request(pending[command.deployment], command.mode)


def _check_cancel_drain(job: Job | None, pending: Mapping[str, DrainRecord], command: CancelDrain) -> None:
    """Refuse to cancel a drain that is another, or cannot be cancelled any more."""
    drain = pending.get(command.deployment)
    if drain is not None:
        if command.drain_id and command.drain_id != drain.drain_id:
            raise Refused(
                Refusal.DRAIN_MISMATCH,
                f"the drain under way is {drain.drain_id!r}, not {command.drain_id!r}; name that one, or leave "
                "drain_id out",
            )
        return
    if job is None:
        raise _unknown_job(command.job)
    if command.deployment and command.deployment != job.spec.deployment:
        raise _left_deployment(command.deployment, job)
    deployments.check_cancel(job, command.drain_id)


def _check_delete(job: Job, command: DeleteJob) -> None:
    """Refuse to delete a job that somebody may be reporting to."""
    running = job.open_producers()
    if running and not command.force:
        raise Refused(
            Refusal.JOB_ACTIVE,
            f"producers {running} have not closed their runs; close the runs first, or set force",
        )
