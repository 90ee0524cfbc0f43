"""A job that goes on is brought to rest between two epochs of its sources, for a moment.

A batch that has begun is completed. Then its sources' queries let no batch in; what they have sent passes channels and
loops; then nothing is in flight, nothing is staged, and what releases keep stands still. What is done meanwhile finds
all queries at one moment. Then the sources' batches go on where they waited.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spark_client.advice import explained
from spark_client.errors import TrackingError, UsageError
from spark_client.runtime.queries import NativeQuery, TrackedQuery
from spark_client.spark_internals.checkpoints import last_commit
from spark_client.trackers.jobclient import JobClient
from tracker.client import JobStatus, TrackerError, TrackerUnavailable

_LOOK_EVERY = 0.05  #: seconds


@contextmanager
def paused(client: JobClient, job: str, queries: Sequence[TrackedQuery], timeout: float | None) -> Iterator[JobStatus]:
    """Keep the job at rest meanwhile, and yield how it stands.

    Args:
        client: of the job.
        job: its name.
        queries: of this application: all that run of the job.
        timeout: seconds in which it has to come to rest; None: for as long as it takes.

    Raises:
        UsageError: a query of it cannot be held: it runs elsewhere, or Spark runs it by itself.
        TrackingError: a query has failed, or the tracker cannot be reached.
        TimeoutError: it does not come to rest in time; its sources go on.
    """
    until = float("inf") if timeout is None else time.monotonic() + timeout
    _check(client, job, queries)
    sources = [query for query in queries if query.only_sources]
    receivers = [query for query in queries if not query.only_sources]
    try:
        _complete(queries, until)
        _pause(sources, until)
        while True:
            for query in queries:
                _must_run(query)
            for query in receivers:
                query.settle()
            if _is_quiet(client, _status(client, job)):
                _pause(receivers, until)
                status = _status(client, job)
                if _is_quiet(client, status):
                    break
                _go_on(receivers)  # one of them had begun a batch meanwhile, and has sent something
            _in_time(until)
            time.sleep(_LOOK_EVERY)
        yield status
        for query in queries:
            _must_run(query)  # else another run of it, which nobody has paused, may have gone on meanwhile
    finally:
        _go_on(queries)


def _check(client: JobClient, job: str, queries: Sequence[TrackedQuery]) -> None:
    if native := [query for query in queries if isinstance(query, NativeQuery) and query.fronts]:
        raise UsageError(
            f"the query with the checkpoint {native[0].checkpoint} reads a source, and Spark runs it by itself, so it "
            "cannot be held between two batches: hand the job over (tracking.hand_over()), and export then"
        )
    own = {query.run.query for query in queries}
    others = [each.producer for each in _status(client, job).producers if not each.closed and each.producer not in own]
    if others:
        raise UsageError(
            f"of job {job!r} these run elsewhere, and cannot be held from here: {', '.join(others)}. Hand the job over "
            "(tracking.hand_over()), and export then"
        )


def _complete(queries: Sequence[TrackedQuery], until: float) -> None:
    """Wait for batches that have begun, be it under a driver that was killed: what these have published is out."""
    begun = {query: query.interrupted for query in queries}
    for query, epoch in begun.items():
        while epoch is not None and not _reaches(last_commit(query.checkpoint), epoch):
            _must_run(query)
            _in_time(until)
            time.sleep(_LOOK_EVERY)


def _has_committed(query: TrackedQuery) -> bool:
    """Return whether the batch in hand, if there was one, is committed by Spark and known to the tracker."""
    if query.gate.busy or query.interrupted is not None:
        return False
    last = last_commit(query.checkpoint)
    if query.gate.last_epoch is not None and not _reaches(last, query.gate.last_epoch):
        return False
    if last is not None:
        query.run.await_committed(last)
    return True


def _reaches(last: int | None, epoch: int) -> bool:
    """Return whether a batch is committed, by the number of the last one that is."""
    return last is not None and last >= epoch


def _is_quiet(client: JobClient, status: JobStatus) -> bool:
    """Return whether nothing is staged, and all that was sent has been received, but what stands for state."""
    if any(producer.staged_epochs for producer in status.producers):
        return False
    states = set(status.spec.state_segments)
    if status.in_flight and not states:
        return False  # without a look at each substream
    return all(
        account.ended or account.segment in states or account.sent == account.received
        for substream in client.substreams(status.spec.job)
        for account in substream.segments
    )


def _pause(queries: Sequence[TrackedQuery], until: float) -> None:
    """Let no batch in any more, and wait until the ones in hand are committed."""
    for query in queries:
        query.gate.pause()
    for query in queries:
        while not _has_committed(query):
            _must_run(query)
            _in_time(until)
            time.sleep(_LOOK_EVERY)


def _go_on(queries: Sequence[TrackedQuery]) -> None:
    for query in queries:
        query.gate.go_on()


def _must_run(query: TrackedQuery) -> None:
    if (failure := query.failure()) is not None:
        raise failure
    if query.query is None or not query.query.isActive:
        raise TrackingError(
            f"the query with the checkpoint {query.checkpoint} has stopped, so rows may wait for it: start it again, "
            "or hand the job over (tracking.hand_over()), and export then"
        )


def _in_time(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError("the job did not come to rest in time, and goes on: something is in flight, or staged")


def _status(client: JobClient, job: str) -> JobStatus:
    try:
        return client.job(job)
    except (TrackerError, TrackerUnavailable) as error:
        raise explained(error) from error
