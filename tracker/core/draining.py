"""Drains of a job's current deployment: asked for, cancelled, confirmed.

To finish, every front finishes and every substream ends. To hand over, nothing is in flight any more but what segments
of state hold, and every run has closed: then the next deployment goes on with what is open.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tracker.contract.events import DrainCancelled, Drained, DrainRequested
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import DrainMode, DrainState, Mode

from . import timers
from .drains import DrainRecord
from .job import Job
from .lifecycle import ENDED, KNOWN
from .producers import FinishOf


def request(job: Job, asked: DrainRecord) -> None:
    """Begin a drain of the current deployment, unless there is one.

    Args:
        asked: its id, its mode and its deadline; of a pending one, it becomes one that is under way.
    """
    check_request(job.drain, asked.mode)
    if job.drain.under_way or job.drain.state is DrainState.DRAINED:
        return
    for front in job.fronts:
        front.drained_in = False
    job.drain = replace(asked, state=DrainState.DRAINING)
    job.announce(DrainRequested(asked.drain_id, asked.mode))


def check_request(drain: DrainRecord, mode: DrainMode) -> None:
    """Refuse a drain while there is one of the other mode."""
    if drain.mode is mode or drain.state in (DrainState.NOT_DRAINING, DrainState.CANCELLED):
        return
    what = {DrainMode.FINISH: "finishes", DrainMode.HAND_OVER: "hands over"}[drain.mode]
    if drain.state is DrainState.DRAINED:
        raise Refused(
            Refusal.DRAIN_MISMATCH,
            f"drain {drain.drain_id!r}, which {what}, is done; start the next deployment, and drain that one",
        )
    raise Refused(
        Refusal.DRAIN_MISMATCH,
        f"drain {drain.drain_id!r}, which {what}, was asked for before; wait for it, or cancel it and ask again",
    )


def cancel(job: Job, drain_id: str) -> None:
    """Cancel the drain: the deployment goes on."""
    check_cancel(job, drain_id)
    if job.drain.under_way:
        call_off(job)


def call_off(job: Job) -> None:
    """Cancel the drain under way. What a hand-over had suspended starts again."""
    suspended = job.drain.hands_over
    job.announce(DrainCancelled(job.drain.drain_id))
    job.drain = replace(job.drain, state=DrainState.CANCELLED, deadline=None)
    if suspended:
        timers.resume(job)


def check_cancel(job: Job, drain_id: str) -> None:
    """Refuse to cancel another drain, one in which a front has finished because of it, or a hand-over that is done."""
    if drain_id and job.drain.drain_id and drain_id != job.drain.drain_id:
        raise Refused(
            Refusal.DRAIN_MISMATCH,
            f"the drain under way is {job.drain.drain_id!r}, not {drain_id!r}; name that one, or leave drain_id out",
        )
    if job.drain.handed_over:
        raise Refused(
            Refusal.DRAINED,
            f"deployment {job.spec.deployment!r} was handed over by drain {job.drain.drain_id!r}, which can no longer "
            "be cancelled; define the next deployment, which goes on with what is open",
        )
    if not job.drain.finishes:
        return
    finishing = sorted(front.name for front in job.fronts if front.drained_in) + sorted(_finishes_staged(job))
    if finishing:
        raise Refused(
            Refusal.DRAIN_IN_PROGRESS,
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
    if not job.drain.under_way:
        return
    done = _nothing_is_under_way(job) if job.drain.hands_over else _everything_has_ended(job)
    if done:
        job.drain = replace(job.drain, state=DrainState.DRAINED, deadline=None)
        job.announce(Drained(job.drain.drain_id, job.drain.mode))


def _everything_has_ended(job: Job) -> bool:
    if job.is_open():
        return False
    return not (job.fronts.unfinished() if job.fronts else job.open_producers())


def _nothing_is_under_way(job: Job) -> bool:
    # The accumulators last: they are looked at when everybody has stopped, and not with each report before.
    return not uncommitted(job) and not job.open_producers() and not unbalanced(job).any()


def uncommitted(job: Job) -> list[str]:
    """Return the producers with an epoch staged; in a hand-over, also those with a revoked one that is to come
    again."""
    awaiting = job.provisional.awaiting if job.drain.hands_over else {}
    return [producer.name for producer in job.producers.values() if producer.staged or producer.name in awaiting]


def unbalanced(job: Job) -> NDArray[np.bool_]:
    """For each segment, whether an open substream does not balance there; of no segment of state."""
    open_rows = job.accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
    found = job.accounts.cells.unbalanced_segments(open_rows)
    found[[job.graph.number[name] for name in job.spec.state_segments]] = False
    return found
