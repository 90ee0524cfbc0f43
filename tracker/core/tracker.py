"""The tracker: all jobs, behind one function that takes commands.

`Tracker.apply` is the whole machine: the same commands at the same times, in the same order, give the same answers
and events. Everything else here only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import dumps, timers, views
from .commands import (
    Abandon,
    Answer,
    CancelDrain,
    CloseProducer,
    Command,
    Commit,
    DefineJob,
    DeleteJob,
    Drain,
    DrainState,
    DrainStatus,
    FinishFront,
    ForgetProducer,
    JobDefined,
    OpenProducer,
    Recovered,
    Report,
    Tick,
)
from .drains import DrainRecord
from .events import Ended, Event
from .job import Job
from .messages import check_deployment, check_job_name, check_name, check_spec
from .refusal import Refused
from .status import JobStatus, SubstreamStatus

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
        if isinstance(command, Tick | Recovered):
            self._apply_to_all(command, now)
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
                job.confirm_drain()
                if job.log.last_seq != last_seq:
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
            raise self._unknown(command.job)
        if isinstance(command, Report):
            return job.report(command)
        if isinstance(command, Commit):
            return job.commit(command)
        if isinstance(command, OpenProducer):
            return job.open_producer(command)
        if isinstance(command, CloseProducer):
            job.close_producer(command)
        elif isinstance(command, ForgetProducer):
            job.forget_producer(command.producer)
        elif isinstance(command, FinishFront):
            job.finish_front(command.front)
        elif isinstance(command, Abandon):
            job.abandon(command.scope, command.name)
        else:
            self._delete(command, job)
        return None

    def _apply_to_all(self, command: Tick | Recovered, now: int) -> None:
        if isinstance(command, Recovered) and command.lost_tail:
            self._log_prefix = command.lost_tail
        for name, job in self._jobs.items():
            job.take(now)
            last_seq = job.log.last_seq
            if isinstance(command, Tick):
                timers.tick(job, self._retention_of(job))
                job.confirm_drain()
            else:
                timers.restart_timers(job)
                if command.lost_tail:
                    job.log.log_id = self._next_log_id()
            if job.log.last_seq != last_seq:
                self._woken.add(name)
        if isinstance(command, Tick):
            for pending in self._pending.values():
                for drain in pending.values():
                    if drain.deadline is not None and now >= drain.deadline:
                        drain.state = DrainState.TIMED_OUT  # the event comes when there is a log for it

    def _retention_of(self, job: Job) -> int:
        return self._retention if job.spec.retention is None else job.spec.retention

    def _unknown(self, job: str) -> Refused:
        return Refused.unknown("UNKNOWN_JOB", f"there is no job {job!r}; define it first")

    def _job(self, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None:
            raise self._unknown(name)
        return job

    def _next_log_id(self) -> str:
        self._logs += 1
        return f"{self._log_prefix}-{self._logs}"

    def _define(self, command: DefineJob, now: int) -> JobDefined:
        spec = command.spec
        graph = check_spec(spec)
        job = self._jobs.get(spec.job)
        created = job is None
        if job is None:
            job = self._jobs[spec.job] = Job(spec, graph, self._next_log_id(), now)
        else:
            job.redefine(spec, graph, command.force)
        pending = self._pending.get(spec.job, {}).pop(spec.deployment, None)
        if pending is not None:
            job.request_drain(pending.drain_id, pending.deadline)
        job.confirm_drain()
        return JobDefined(job.spec, created, job.log.last_seq, views.drain_status(job), job.log.log_id, job.incarnation)

    def _delete(self, command: DeleteJob, job: Job) -> None:
        open_producers = job.has_open_producers()
        if open_producers and not command.force:
            raise Refused.precondition(
                "JOB_ACTIVE", f"producers {open_producers} have not closed their runs; close them first, or force"
            )
        del self._jobs[command.job]
        self._pending.pop(command.job, None)
        self._woken.add(command.job)

    def _drain(self, command: Drain, now: int) -> DrainStatus:
        check_job_name(command.job)
        check_deployment(command.deployment)
        check_name("drain_id", command.drain_id)
        deadline = None if command.timeout is None else now + command.timeout
        job = self._jobs.get(command.job)
        if job is not None and command.deployment == job.spec.deployment:
            job.request_drain(command.drain_id, deadline)
            job.confirm_drain()
            return views.drain_status(job)
        if job is not None and command.deployment in job.left:
            raise self._left(command.deployment, job)
        pending = self._pending.setdefault(command.job, {})
        pending.setdefault(command.deployment, DrainRecord(DrainState.PENDING, command.drain_id, deadline))
        return self._pending_status(command.job, command.deployment)

    def _left(self, deployment: str, job: Job) -> Refused:
        return Refused.precondition(
            "DEPLOYMENT_MISMATCH",
            f"deployment {deployment!r} is not the current one, which is {job.spec.deployment!r}",
        )

    def _pending_status(self, job: str, deployment: str) -> DrainStatus:
        drain = self._pending[job][deployment]
        return DrainStatus(drain.state, drain.drain_id, deployment)

    def _cancel_drain(self, command: CancelDrain) -> DrainStatus:
        pending = self._pending.get(command.job, {})
        drain = pending.get(command.deployment)
        if drain is not None:
            if command.drain_id and command.drain_id != drain.drain_id:
                raise Refused.precondition(
                    "DRAIN_MISMATCH", f"the drain is {drain.drain_id!r}, not {command.drain_id!r}; name it, or none"
                )
            del pending[command.deployment]
            return DrainStatus(DrainState.CANCELLED, drain.drain_id, command.deployment)
        job = self._job(command.job)
        if command.deployment and command.deployment != job.spec.deployment:
            raise self._left(command.deployment, job)
        job.cancel_drain(command.drain_id)
        return views.drain_status(job)

    # ------------------------------------------------------------ questions

    def next_due(self) -> int | None:
        """When a `Tick` would do something at the earliest (ns); None: never, as things stand."""
        due = [timers.next_due(job, self._retention_of(job)) for job in self._jobs.values()]
        due += [
            drain.deadline
            for pending in self._pending.values()
            for drain in pending.values()
            if drain.state is DrainState.PENDING
        ]
        return min((each for each in due if each is not None), default=None)

    def take_woken(self) -> set[str]:
        """The jobs whose log has grown, or that were deleted, since the last call."""
        woken, self._woken = self._woken, set()
        return woken

    def jobs(self) -> list[str]:
        """The names of all jobs, sorted."""
        return sorted(self._jobs)

    def open_substreams(self, job: str) -> int:
        """How many of a job's substreams have not ended on every segment; 0 if there is no such job."""
        return self._jobs[job].accounts.open if job in self._jobs else 0

    def job_status(self, job: str) -> JobStatus:
        """A job at a glance."""
        return views.status(self._job(job))

    def drain_status(self, job: str, deployment: str = "") -> DrainStatus:
        """How far a deployment's drain is; the current deployment's by default."""
        if deployment in self._pending.get(job, {}):
            return self._pending_status(job, deployment)
        found = self._job(job)
        if deployment and deployment != found.spec.deployment:
            raise self._left(deployment, found)
        return views.drain_status(found)

    def events(
        self, job: str, after_seq: int, up_to_seq: int = 0, limit: int = 1000, log_id: str = ""
    ) -> tuple[list[Event], int]:
        """Kept events after a seq, in order, and the seq that was last looked at.

        Args:
            job: whose log.
            after_seq: 0 starts at the oldest kept.
            up_to_seq: 0 is the last.
            limit: at most so many.
            log_id: the log that the seqs are of; empty: any.

        Raises:
            Refused: ``UNKNOWN_JOB``; ``LOG_CHANGED``; ``EVENTS_EXPIRED`` if retention has dropped some of them.
        """
        found = self._job(job)
        if log_id and log_id != found.log.log_id:
            raise Refused.precondition(
                "LOG_CHANGED",
                f"the log of job {job!r} is {found.log.log_id!r}, not {log_id!r}: it was deleted, or its journal lost "
                "its tail; start anew from seq 0",
            )
        return found.log.read(after_seq, up_to_seq, limit)

    def ended(self, job: str, segment: str, scope: str, name: str, end_time: int | None = None) -> Ended | None:
        """The end of a substream on a segment, if it has come."""
        return views.ended(self._job(job), segment, scope, name, end_time)

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
        return {
            "log_prefix": self._log_prefix,
            "logs": self._logs,
            "retention": self._retention,
            "jobs": [dumps.dump(job) for job in self._jobs.values()],
            "pending": [
                [job, deployment, drain.dump()]
                for job, drains in self._pending.items()
                for deployment, drain in drains.items()
            ],
        }

    @classmethod
    def load(cls, dump: dict[str, Any]) -> Tracker:
        """The tracker that gave `dump`, also after its lists, tuples and columns went through a file."""
        tracker = cls(dump["log_prefix"], dump["retention"])
        tracker._logs = dump["logs"]
        for each in dump["jobs"]:
            job = dumps.load(each)
            tracker._jobs[job.spec.job] = job
        for name, deployment, drain in dump["pending"]:
            tracker._pending.setdefault(name, {})[deployment] = DrainRecord.load(drain)
        return tracker
