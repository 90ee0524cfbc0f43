"""Handling of each kind of command: how it is prepared, and how it is carried out.

A server prepares a command before it journals it, so that a refused one leaves no record. To prepare is to check what
carrying out begins with, and changes nothing. Where a command would settle what earlier runs left, only what is checked
before that is checked here: what settling has changed stays, whatever follows, so the command must be carried out.
Commands that make, replace or delete a job, or drain one that may not exist yet, are carried out by the tracker itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tracker.contract.answers import Answer
from tracker.contract.bounds import bounded
from tracker.contract.commands import (
    Abandon,
    Ack,
    CancelDrain,
    CloseProducer,
    Command,
    Commit,
    DefineJob,
    DeleteJob,
    Drain,
    FinishFront,
    ForgetProducer,
    OpenProducer,
    Recovered,
    Report,
    Subscribe,
    Tick,
    Unsubscribe,
)
from tracker.contract.refusal import Refusal, Refused

from . import deployments, draining, epochs, promises, reporting
from .drains import DrainRecord
from .job import Job
from .validation import Naming, check_deployment, check_job_name, check_name, check_spec


class Prepared(NamedTuple):
    """A command that would not be refused as things stood, with what was found on the way."""

    command: Command
    new: int = 0  #: how many substreams it names for the first time
    naming: Naming | None = None  #: of a report: its names, looked up

    @property
    def job(self) -> str:
        """Return the command's job."""
        return self.command.job


def prepare(job: Job | None, pending: Mapping[str, DrainRecord], command: Command) -> Prepared:
    """Check a command.

    Args:
        job: the command's; None: there is none.
        pending: drains of the job's deployments that are not defined yet.

    Raises:
        Refused: as carrying it out would, where that would have changed nothing at all.
    """
    if isinstance(command, DefineJob):
        spec = bounded(command.spec)
        graph = check_spec(spec, job.spec if job else None, job.graph if job else None)
        if job is not None:
            deployments.check_redefine(job, spec, graph, command.force)
    elif isinstance(command, Drain):
        check_drain(job, pending, command)
    elif isinstance(command, CancelDrain):
        check_cancel_drain(job, pending, command)
    elif not isinstance(command, Tick | Recovered):
        if job is None:
            raise unknown_job(command.job)
        if isinstance(command, Report):
            naming = reporting.check_report(job, command)
            return Prepared(command, len(naming.resolved.new), naming)
        if isinstance(command, Commit):
            return Prepared(command, reporting.check_commit(job, command))
        if isinstance(command, DeleteJob):
            check_delete(job, command)
        else:
            HANDLERS[type(command)].check(job, command)
    return Prepared(command)


class Handler(NamedTuple):
    """Check and execution of commands of one kind, for a job that exists."""

    check: Callable[[Job, Any], object]
    carry_out: Callable[[Job, Any], Answer]


#: Of the kinds that name no substream for the first time.
HANDLERS: Final[dict[type[Any], Handler]] = {
    OpenProducer: Handler(epochs.check_open, epochs.open_producer),
    CloseProducer: Handler(epochs.check_close, epochs.close_producer),
    ForgetProducer: Handler(
        lambda job, command: job.producer(command.producer),
        lambda job, command: epochs.forget_producer(job, command.producer),
    ),
    FinishFront: Handler(
        lambda job, command: promises.check_finish_front(job, command.front),
        lambda job, command: promises.finish_front(job, command.front),
    ),
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


def carry_out(job: Job, command: Command, naming: Naming | None) -> Answer:
    """Carry out a command for a job that exists."""
    if isinstance(command, Report):
        return reporting.report(job, command, naming)
    if isinstance(command, Commit):
        return reporting.commit(job, command)
    return HANDLERS[type(command)].carry_out(job, command)


# ---------------------------------------------------------------- checks of what the tracker itself carries out


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
    running = job.open_producers()
    if running and not command.force:
        raise Refused(
            Refusal.JOB_ACTIVE,
            f"producers {running} have not closed their runs; close the runs first, or set force",
        )
