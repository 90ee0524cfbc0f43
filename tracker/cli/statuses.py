"""The states of all jobs, for the commands that show more than one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracker.contract.refusal import Refusal

if TYPE_CHECKING:
    from tracker.client import JobStatus, TrackerClient
    from tracker.sharded import ShardedClient


def read_statuses(client: TrackerClient | ShardedClient) -> Iterator[JobStatus]:
    """Yield the states of all jobs, one call each; a job that is deleted meanwhile is left out."""
    from tracker.client import TrackerError

    for job in client.jobs():
        try:
            yield client.job(job)
        except TrackerError as refused:
            if refused.reason != Refusal.UNKNOWN_JOB:
                raise
