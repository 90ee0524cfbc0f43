"""Waits for a substream of another job: in a batch job, or in a function of ``foreachBatch``.

A function that waits holds its batch, and so its job, back. A wait for something that can only come when the batch has
ended is refused.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from spark_client.advice import explaining
from spark_client.errors import TrackingError, UsageError
from spark_client.fronts.results_of import Incomplete, ReceiptCounts, ResultsOf
from spark_client.runtime.batches import batch_in_hand
from tracker.client import Credentials, Ended, TrackerClient

_LOOK_EVERY: Final = 0.2  #: seconds between two looks at receipts


def wait_for_end(
    job: str,
    segment: str,
    scope: str,
    name: str,
    *,
    timeout: float,
    server: str = "127.0.0.1:7654",
    end_time: int | None = None,
    accept: Sequence[Incomplete] = (),
    credentials: Credentials | None = None,
) -> Ended:
    """Wait until a substream of a job has ended: trusts the tracker, and not that results are written yet.

    Where the results are read, wait for them: `wait_for_results`.

    Args:
        job: the name of the other job, as the tracker has it.
        segment: on which the substream has to end.
        scope: the substream's; ``""`` if the source has none.
        name: the substream's; of a window the interval, such as ``2026-03-01T00:00:00Z/2026-03-02T00:00:00Z``.
        timeout: seconds. In ``foreachBatch`` the whole query waits as long.
        server: the tracker's address, or several.
        end_time: of a window, in microseconds since 1970: then a window that has ended and is forgotten is not waited
            for until the timeout.
        accept: ends that are not complete, and pass for it: as in `ResultsOf`.
        credentials: for a tracker with TLS or tokens; None: those that the environment names.

    Returns:
        How it has ended.

    Raises:
        UsageError: the call is in a batch of the same job, and the end may need that batch.
        TimeoutError: the substream is still open after that time.
        TrackingError: it has ended, but not completely, and `accept` does not name how; or the tracker refuses, or
            cannot be reached.

    >>> wait_for_end("orders", "clean", "berlin", "2026-03-01", timeout=3600)                   # doctest: +SKIP
    """
    _refuse_own(job, segment)
    given = Credentials.from_environment() if credentials is None else credentials
    with explaining(job), TrackerClient(server, credentials=given) as client:
        ended = client.wait_for_end(job, segment, scope, name, end_time, timeout)
    how = "drained" if ended.by_drain and str(ended.reason) == "COMPLETE" else str(ended.reason)
    if how != "COMPLETE" and how not in accept:
        raise TrackingError(
            f"{name!r} of scope {scope!r} has ended on {segment!r} of job {job!r}, but not completely: {how}, with "
            f"{ended.holds}. Give accept=[{how!r}] if that will do"
        )
    return ended


def wait_for_results(results: ResultsOf, scope: str, name: str, *, timeout: float) -> int:
    """Wait until another job has written all results of a substream: trusts its receipts.

    Args:
        results: of the other job: where its receipts are, and what of them is accepted.
        scope: the substream's; ``""`` if the other job's source has none.
        name: the substream's; of a window the interval.
        timeout: seconds to wait, in which a batch that calls this stands still.

    Returns:
        How many result rows there are.

    Raises:
        UsageError: the call is in a batch of the same job, and the results may need that batch; or the receipts
            contradict each other.
        TimeoutError: not in time; with a note if the substream has ended otherwise than `accept` allows.

    >>> hourly = ResultsOf("/data/receipts", job="hourly", segment="orders")
    >>> wait_for_results(hourly, "berlin", "2026-03-01T00:00:00Z/2026-03-01T01:00:00Z", timeout=600)   # doctest: +SKIP
    """
    _refuse_own(results.job, results.segment)
    receipts = ReceiptCounts(results, None)
    until = time.monotonic() + timeout
    while (count := receipts.results(scope, name)) is None:
        if time.monotonic() >= until:
            how = receipts.outcome(scope, name)
            why = f": it has ended there, but {how}; give accept=[{how!r}] if that will do" if how else ""
            raise TimeoutError(f"{name!r} of scope {scope!r} has no results by {results!r} within {timeout} s{why}")
        time.sleep(max(0.0, min(_LOOK_EVERY, until - time.monotonic())))
    return count


def _refuse_own(job: str, segment: str) -> None:
    """Refuse to wait, in a batch, for what may need that batch to end."""
    batch = batch_in_hand()
    if batch is not None and batch.job == job and segment in batch.connected:
        raise UsageError(
            f"this is batch {batch.epoch} of a query of job {job!r} that reads {batch.segment!r}, and {segment!r} is "
            "connected with it: what has to end there may wait for this batch, and this batch would wait for that. "
            "Wait in a job of its own, or use a source with front=ResultsOf(…), which does not hold a batch back"
        )
