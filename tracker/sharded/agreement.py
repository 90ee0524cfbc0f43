"""Calls to all trackers of a sharded job: what they do together, and refusals of what only some would accept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from tracker.client.client import TrackerClient
from tracker.client.errors import TrackerError
from tracker.contract.merging import merged
from tracker.contract.refusal import Refusal
from tracker.contract.spec import JobSpec
from tracker.contract.status import DrainStatus, JobStatus
from tracker.contract.values import DrainMode, DrainState

Answer = TypeVar("Answer")


def at_once(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make all calls in parallel, waits for all, and return their results in order.

    Raises:
        Exception: that of the first call in order that failed; the other calls were made nevertheless.
    """
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(len(calls), "tracker-shard") as pool:
        answers = [pool.submit(call) for call in calls]
    return [answer.result() for answer in answers]


def first_decides(calls: Sequence[Callable[[], Answer]]) -> list[Answer]:
    """Make the first call and, if it succeeds, all others in parallel, and return their results in order.

    Some calls exclude each other: a run and its successor, a finish and the cancellation of a drain. This way the same
    one of them comes first at all servers: a caller that the first server refuses does not call the others.

    Raises:
        Exception: as `at_once`; if it is the first call's, the others were not made.
    """
    first, *others = calls
    answer = first()
    return [answer, *at_once(others)] if others else [answer]


_UNDER_WAY: Final = frozenset({DrainState.DRAINING, DrainState.TIMED_OUT})  #: of drains that may still be confirmed


def status_of(client: TrackerClient, job: str) -> JobStatus | None:
    """Return a shard's part of a job's status; None if it does not know the job."""
    try:
        return client.job(job)
    except TrackerError as refused:
        if refused.reason != Refusal.UNKNOWN_JOB:
            raise
        return None


def refuse_in_parts(spec: JobSpec, found: Sequence[JobStatus]) -> None:
    """Refuse a new deployment that only some shards could accept: the job's shards would differ afterwards."""
    left = [status for status in found if status.spec.deployment != spec.deployment]
    drained = sum(status.drain.state is DrainState.DRAINED for status in left)
    if any(status.drain.state in _UNDER_WAY for status in left) or 0 < drained < len(left):
        raise TrackerError(
            "FAILED_PRECONDITION",
            "DRAIN_IN_PROGRESS",
            f"DRAIN_IN_PROGRESS: {drained} of the {len(left)} shards of job {spec.job!r} that run another deployment "
            "are drained: wait until all are (tracker drain JOB DEPLOYMENT --wait), or force",
        )
    if not drained and any(_graph(status.spec) != _graph(spec) for status in left):
        raise TrackerError(
            "FAILED_PRECONDITION",
            "INCOMPATIBLE_GRAPH",
            f"INCOMPATIBLE_GRAPH: deployment {spec.deployment!r} of job {spec.job!r} has other segments or fronts than "
            f"{left[0].spec.deployment!r}: a sharded job changes them when it is drained. Drain it first, or force",
        )


def _graph(spec: JobSpec) -> object:
    return {segment: set(feeds) for segment, feeds in spec.segments.items()}, set(spec.fronts)


_ASKED_FOR: Final = _UNDER_WAY | {DrainState.PENDING}
_TOO_LATE: Final = ("DRAIN_IN_PROGRESS", "DRAINED")


def cancel_drain(job: str, shards: Sequence[tuple[TrackerClient, str]], drain_id: str, deployment: str) -> DrainStatus:
    """Cancel a drain on all shards, or on none.

    Args:
        shards: its trackers, each with the name of its shard there.
        drain_id: cancel only this drain; empty: the one that is under way.
        deployment: the deployment that is drained; empty: the current one.
    """
    before = at_once([partial(client.get_drain, name, deployment) for client, name in shards])
    _refuse_if_some_are_drained(job, before, drain_id)
    try:
        after = first_decides([partial(client.cancel_drain, name, drain_id, deployment) for client, name in shards])
        _refuse_if_some_are_drained(job, after, drain_id)
    except TrackerError as refused:
        if refused.reason in _TOO_LATE:  # a shard had come further meanwhile, or has a front that has finished
            at_once([partial(_ask_again, *shard, drain) for shard, drain in zip(shards, before, strict=True)])
        raise
    whole = merged(after)
    cancelled = any(drain.state is DrainState.CANCELLED for drain in after)
    return replace(whole, state=DrainState.CANCELLED) if cancelled else whole


def _refuse_if_some_are_drained(job: str, drains: Sequence[DrainStatus], drain_id: str) -> None:
    done = sum(drain.state is DrainState.DRAINED for drain in drains)
    if 0 < done < len(drains) and drain_id in ("", *(drain.drain_id for drain in drains)):
        raise TrackerError(
            "FAILED_PRECONDITION",
            "DRAINED",
            f"DRAINED: {done} of the {len(drains)} shards of job {job!r} are drained, so the drain can no longer be "
            f"cancelled: wait until all are (tracker drain {job} {drains[0].deployment} --wait), and define the next "
            "deployment",
        )


def _ask_again(client: TrackerClient, name: str, drain: DrainStatus) -> None:
    """Ask for a drain that was cancelled; one that was not goes on as it is."""
    if drain.state in _ASKED_FOR:
        hands_over = drain.mode is DrainMode.HAND_OVER
        client.drain(name, drain.deployment, drain.drain_id, hand_over=hands_over)
