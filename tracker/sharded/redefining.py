"""When all trackers of a sharded job can take a new deployment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracker.client.client import TrackerClient
from tracker.client.errors import TrackerError
from tracker.contract.refusal import Refusal
from tracker.contract.spec import JobSpec
from tracker.contract.status import JobStatus
from tracker.contract.values import DrainState

UNDER_WAY: Final = frozenset({DrainState.DRAINING, DrainState.TIMED_OUT})  #: of drains that may still be confirmed


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
    if any(status.drain.state in UNDER_WAY for status in left) or 0 < drained < len(left):
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
