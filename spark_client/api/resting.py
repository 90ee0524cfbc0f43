"""A job at rest, for as long as something is taken from it: it was handed over, or is paused for that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from spark_client.advice import explained
from spark_client.api.session import Tracking
from spark_client.errors import UsageError
from spark_client.runtime.pausing import paused
from tracker.client import DrainMode, DrainState, JobStatus, TrackerError, TrackerUnavailable


def at_rest(tracking: Tracking, timeout: float | None) -> AbstractContextManager[JobStatus]:
    """The job while nothing of it moves: it was handed over, or is paused.

    Args:
        tracking: of the deployment.
        timeout: seconds in which it has to come to rest; None: for as long as it takes.

    Raises:
        UsageError: it neither was handed over nor runs here.
        TrackingError: the tracker cannot be reached, or a query has failed.
        TimeoutError: it did not come to rest in time.
    """
    try:
        status = tracking.client.job(tracking.job)
    except (TrackerError, TrackerUnavailable) as error:
        raise explained(error) from error
    drain = status.drain
    done = drain.state is DrainState.DRAINED and drain.mode is DrainMode.HAND_OVER
    own = status.spec.deployment == tracking.deployment
    if done and own:
        return nullcontext(status)
    if not own or not any(query.query is not None and query.query.isActive for query in tracking.queries):
        raise UsageError(
            f"deployment {tracking.deployment!r} of job {tracking.job!r} has not been handed over, and does not run "
            "here, so rows may be in flight that no state has: call tracking.hand_over() first"
            + ("" if own else f"; the job is at {status.spec.deployment!r}")
        )
    return _paused(tracking, timeout)


@contextmanager
def _paused(tracking: Tracking, timeout: float | None) -> Iterator[JobStatus]:
    """One pause after the other: the end of one lets all queries go on."""
    until = None if timeout is None else time.monotonic() + timeout
    if not tracking.pausing.acquire(timeout=-1 if timeout is None else timeout):
        raise TimeoutError("another export of this job has paused its queries, and was not done in time")
    try:
        left = None if until is None else max(0.0, until - time.monotonic())
        with paused(tracking.client, tracking.job, tracking.queries, left) as status:
            yield status
    finally:
        tracking.pausing.release()
