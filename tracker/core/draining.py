"""Drains of a job's current deployment: asked for, cancelled, confirmed."""

from __future__ import annotations

from tracker.contract.events import DrainCancelled, Drained, DrainRequested
from tracker.contract.refusal import Refused
from tracker.contract.values import DrainState, Mode

from .drains import DrainRecord
from .job import Job
from .producers import FinishOf


def request(job: Job, drain_id: str, deadline: int | None) -> None:
    """Begin a drain of the current deployment."""
    if job.drain.under_way or job.drain.state is DrainState.DRAINED:
        return
    for front in job.fronts:
        front.drained_in = False
    job.drain = DrainRecord(DrainState.DRAINING, drain_id, deadline)
    job.announce(DrainRequested(drain_id))


def cancel(job: Job, drain_id: str) -> None:
    """Cancel the drain: the deployment goes on."""
    check_cancel(job, drain_id)
    if not job.drain.under_way:
        return
    job.announce(DrainCancelled(job.drain.drain_id))
    job.drain = DrainRecord(DrainState.CANCELLED, job.drain.drain_id)


def check_cancel(job: Job, drain_id: str) -> None:
    """Refuse to cancel another drain, or one in which a front has finished."""
    if drain_id and job.drain.drain_id and drain_id != job.drain.drain_id:
        raise Refused.precondition(
            "DRAIN_MISMATCH",
            f"the drain under way is {job.drain.drain_id!r}, not {drain_id!r}; name that one, or leave drain_id out",
        )
    if not job.drain.under_way:
        return
    finishing = sorted(front.name for front in job.fronts if front.drained_in) + sorted(_finishes_staged(job))
    if finishing:
        raise Refused.precondition(
            "DRAIN_IN_PROGRESS",
            f"fronts {finishing} have finished in the drain, so it can no longer be cancelled; let it complete and "
            "define a new deployment",
        )


def _finishes_staged(job: Job) -> set[str]:
    return {
        pledge.front
        for producer in job.producers.values()
        if producer.mode is Mode.STAGED
        for epoch in producer.staged.values()
        for piece in epoch.pieces
        for pledge in piece.pledges
        if isinstance(pledge, FinishOf)
    }


def confirm(job: Job) -> None:
    """Announce the end of the drain under way if it is done."""
    if not job.drain.under_way or job.is_open():
        return
    if job.fronts:
        if job.fronts.unfinished():
            return
    elif job.has_open_producers():
        return
    job.drain = DrainRecord(DrainState.DRAINED, job.drain.drain_id)
    job.announce(Drained(job.drain.drain_id))
