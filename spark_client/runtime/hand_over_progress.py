"""How far a hand-over is, as a job's status tells: whether something is under way, and who is missing."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Final

from tracker.client import JobStatus, ProducerStatus

GUARD: Final = "/hand-over"  #: after a query's id: the producer that shows how far it has come


def all_have_acted(status: JobStatus) -> bool:
    """Whether the queries of all guards have acted on all that was announced, and their sources have stopped."""
    return all(_has_acted(guard, status) for guard in _guards(status))


def is_quiet(status: JobStatus) -> bool:
    """Whether all that was sent has been received, nothing is staged, and every query that runs has a guard."""
    drain = status.drain
    if drain.unbalanced_segments or drain.uncommitted_producers:
        return False
    return {producer for producer in drain.open_producers if not producer.endswith(GUARD)} <= _guarded(status)


def missing(status: JobStatus, own: Set[str], read: Set[str], interrupted: Sequence[Path]) -> list[str]:
    """What a hand-over waits for, as one application sees it, and what to do.

    Args:
        status: of the job.
        own: the queries of the application, which it hands over.
        read: the segments that those of them read which run.
        interrupted: the checkpoints of those that do not, and have a batch to complete.
    """
    found = [
        f"a batch of the query with the checkpoint {checkpoint} was interrupted: start it again"
        for checkpoint in interrupted
    ]
    found += [
        f"elements are in flight on {segment!r}, and no query that runs here reads it: start the one that does"
        for segment in status.drain.unbalanced_segments
        if segment not in read
    ]
    known = own | _guarded(status)
    for producer in status.producers:
        query = producer.producer
        if producer.closed or query in known or query.endswith(GUARD):
            continue
        staged = ", with batches whose commit is not known" if producer.staged_epochs else ""
        found.append(
            f"the run of query {query} is open{staged}, and no driver hands it over: start it, or give it up with "
            f"`tracker forget-producer {status.spec.job} {query}`"
        )
    behind = [_query_of(guard) for guard in _guards(status) if not _has_acted(guard, status)]
    found += [
        f"query {query} has not come as far: if its driver does not run, start it"
        for query in behind
        if query not in own
    ]
    return found


def _guards(status: JobStatus) -> list[ProducerStatus]:
    return [producer for producer in status.producers if not producer.closed and producer.producer.endswith(GUARD)]


def _guarded(status: JobStatus) -> set[str]:
    return set(map(_query_of, _guards(status)))


def _query_of(guard: ProducerStatus) -> str:
    return guard.producer.removesuffix(GUARD)


def _has_acted(guard: ProducerStatus, status: JobStatus) -> bool:
    return guard.committed_epoch is not None and guard.committed_epoch >= status.last_seq
