"""Would a command be refused? The server asks before it journals, so that a refused command leaves no record.

Each check is the one that carrying the command out begins with. Where a command would settle what earlier runs left,
only what is checked before that is checked here: what settling has changed stays, whatever follows, so the command
must be carried out. Nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from tracker.contract.bounds import bounded
from tracker.contract.commands import (
    CancelDrain,
    Command,
    DefineJob,
    DeleteJob,
    Drain,
    Recovered,
    Tick,
)
from tracker.contract.refusal import Refusal, Refused

from . import deployments, draining
from .drains import DrainRecord
from .handlers import HANDLERS
from .job import Job
from .validation import check_deployment, check_job_name, check_name, check_spec


def unknown_job(job: str) -> Refused:
    """Return the refusal of a command for a job that does not exist."""
    return Refused(Refusal.UNKNOWN_JOB, f"there is no job {job!r}; define it first")


def left_deployment(deployment: str, job: Job) -> Refused:
    """Return the refusal of a command for a deployment that is not the current one."""
    return Refused(
        Refusal.DEPLOYMENT_MISMATCH,
        f"deployment {deployment!r} is not the current deployment {job.spec.deployment!r}; name the current one",
    )


def check_drain(job: Job | None, pending: Mapping[str, DrainRecord], command: Drain) -> None:
    """Refuse a drain without proper names, of a deployment that the job has left, or beside one of another mode."""
    check_job_name(command.job)
    check_deployment(command.deployment)
    check_name("drain_id", command.drain_id)
    if job is not None and command.deployment != job.spec.deployment and command.deployment in job.past_deployments:
        raise left_deployment(command.deployment, job)
    if job is not None and command.deployment == job.spec.deployment:
        draining.check_request(job.drain, command.mode)
    elif command.deployment in pending:
        draining.check_request(pending[command.deployment], command.mode)


def check_cancel_drain(job: Job | None, pending: Mapping[str, DrainRecord], command: CancelDrain) -> None:
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
        raise unknown_job(command.job)
    if command.deployment and command.deployment != job.spec.deployment:
        raise left_deployment(command.deployment, job)
    draining.check_cancel(job, command.drain_id)


def check_delete(job: Job, command: DeleteJob) -> None:
    """Refuse to delete a job that somebody may be reporting to."""
    open_producers = job.has_open_producers()
    if open_producers and not command.force:
        raise Refused(
            Refusal.JOB_ACTIVE,
            f"producers {open_producers} have not closed their runs; close the runs first, or set force",
        )


def check(job: Job | None, pending: Mapping[str, DrainRecord], command: Command) -> int:
    """Refuse what would be refused; how many substreams the command names for the first time."""
    if isinstance(command, Tick | Recovered):
        return 0
    if isinstance(command, DefineJob):
        spec = bounded(command.spec)
        graph = check_spec(spec, job.spec if job else None, job.graph if job else None)
        if job is not None:
            deployments.check_redefine(job, spec, graph, command.force)
    elif isinstance(command, Drain):
        check_drain(job, pending, command)
    elif isinstance(command, CancelDrain):
        check_cancel_drain(job, pending, command)
    elif job is None:
        raise unknown_job(command.job)
    elif isinstance(command, DeleteJob):
        check_delete(job, command)
    else:
        return HANDLERS[type(command)].check(job, command)
    return 0
