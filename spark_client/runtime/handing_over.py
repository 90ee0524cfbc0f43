"""What an application does when its job hands over: its sources stop, what they have sent arrives, and all stop.

Nothing is finished, so windows stay open, in the releases' state. The queries that receive must not stop while
something can still come for them, whichever application sends it. So each application shows how far it has come, by a
guard for each of its queries: a producer beside the query's own, which holds the hand-over while it is open. Once the
application's sources have stopped, its committed epoch is the number of an event: the queries have acted on all that
was announced up to there. When this is the job's newest event in all guards, nothing is staged, and all that was sent
has been received, nothing is left to be done. That stays so, and every application finds it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Final

from spark_client.errors import TrackingError
from spark_client.runtime.attempts import Attempt, Queries
from spark_client.runtime.queries import TrackedQuery
from spark_client.trackers.jobclient import JobClient, JobProducer
from tracker.client import (
    DrainMode,
    DrainState,
    JobStatus,
    ProducerStatus,
    TrackerError,
    TrackerUnavailable,
)
from tracker.contract.refusal import Refusal

GUARD: Final = "/hand-over"  #: after a query's id: the producer that shows how far it has come

_log = logging.getLogger("spark_client")

_LOOK_EVERY = 0.1  #: seconds
_COMPLAIN_AFTER = 10.0  #: seconds for which it waits for the same, and logs nothing


def all_have_acted(status: JobStatus) -> bool:
    """Return whether the queries of all guards have acted on all that was announced, and their sources have stopped."""
    return all(_has_acted(guard, status) for guard in _guards(status))


def is_quiet(status: JobStatus) -> bool:
    """Return whether all that was sent has been received, nothing is staged, and every query that runs has a guard."""
    drain = status.drain
    if drain.unbalanced_segments or drain.uncommitted_producers:
        return False
    return {producer for producer in drain.open_producers if not producer.endswith(GUARD)} <= _guarded(status)


def missing(status: JobStatus, own: Set[str], read: Set[str], interrupted: Sequence[Path]) -> list[str]:
    """Return what a hand-over waits for, as one application sees it, and what to do.

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


class HandingOver(Attempt):
    """One attempt to hand a deployment over.

    Args:
        client: to the tracker.
        job: that hands over.
        deployment: of it.
        running: the queries of this application.
    """

    mode = DrainMode.HAND_OVER

    def __init__(self, client: JobClient, job: str, deployment: str, running: Queries) -> None:
        super().__init__(job)
        self._client = client
        self._deployment = deployment
        self._running = running
        self._guards: dict[str, JobProducer] = {}  # by query id
        self._halted: set[TrackedQuery] = set()
        self._handed_over: set[TrackedQuery] = set()  # nothing is left to be done of these
        self._missing: list[str] = []
        self._complain_at = time.monotonic() + _COMPLAIN_AFTER

    @property
    def missing(self) -> str:
        return "; ".join(self._missing)

    def _drain(self) -> None:
        for status in self._looks():
            if status.drain.state is DrainState.DRAINED:
                return
            try:
                self._take_a_step(status)
            except TrackerUnavailable as error:
                _log.warning("the hand-over of job %s waits for the tracker: %s", self._job, error)
            except TrackerError as error:
                if error.reason != Refusal.DRAINED:  # else it was done before this look
                    raise

    def _take_a_step(self, status: JobStatus) -> None:
        """Do what can be done as the job stands. May be repeated."""
        queries = self._guarded(status)
        unwell = self._stop_sources(queries)
        read = {segment for query in queries if _runs(query) for segment in query.segments}
        self._note(missing(status, set(self._guards), read, [query.checkpoint for query in unwell]))
        if unwell or not is_quiet(status):
            return
        if all_have_acted(status):
            self._stop(queries)
        elif self._settle(queries):
            for guard in self._guards.values():
                guard.commit(status.last_seq)

    def _looks(self) -> Iterator[JobStatus]:
        """Yield how the job stands, again and again.

        Raises:
            TrackingError: the hand-over was cancelled, another deployment has taken over, or the queries were stopped.
        """
        while True:
            if self.stopped:
                raise TrackingError(
                    "the queries were stopped while their job was handed over: start them again under the same "
                    "deployment=, and the hand-over goes on"
                )
            try:
                status = self._client.job(self._job)
            except TrackerUnavailable as error:
                _log.warning("the hand-over of job %s waits for the tracker: %s", self._job, error)
            else:
                if status.drain.deployment != self._deployment:
                    raise TrackingError(f"deployment {status.drain.deployment!r} has taken over")
                if status.drain.state is DrainState.CANCELLED or status.drain.mode is not self.mode:
                    self._release_guards()
                    raise TrackingError(
                        "the hand-over was cancelled when the queries that read sources had stopped: start them again"
                    )
                yield status
            self._stopped.wait(_LOOK_EVERY)

    # ---------------------------------------------------------------- guards

    def _guarded(self, status: JobStatus) -> list[TrackedQuery]:
        """Return the queries of this application that it has to hand over yet. Each has a guard from now on."""
        newest = {(producer.producer, producer.run) for producer in status.producers}
        waiting = [query for query in self._running.queries if query not in self._handed_over]
        queries = [query for query in waiting if (query.run.query, query.run.run) in newest]
        own = {query.run.query for query in queries}
        for lost in self._guards.keys() - own:
            del self._guards[lost]
        for query in own - self._guards.keys():
            run = f"{self._deployment}/{uuid.uuid4().hex[:8]}"
            self._guards[query] = self._client.open_producer(self._job, f"{query}{GUARD}", run)
        return queries

    def _release_guards(self) -> None:
        """Nothing is held from here any more."""
        for query, guard in list(self._guards.items()):
            try:
                guard.close()
            except TrackerError as error:
                if error.reason != Refusal.FENCED:  # another driver has it now
                    raise
            del self._guards[query]

    # ---------------------------------------------------------------- queries

    def _stop_sources(self, queries: Sequence[TrackedQuery]) -> list[TrackedQuery]:
        """Stop the queries that only read sources, each after the batch in hand.

        Returns:
            Those that have to be started again, as a batch of theirs was interrupted.
        """
        sources = [query for query in queries if query.only_sources and query not in self._halted]
        for query in sources:
            query.rest()
        for query in sources:
            self._await_the_batch_that_has_begun(query)
            if not self.stopped:
                self._halt(query)
        return [query for query in queries if not _runs(query) and query.interrupted is not None]

    def _halt(self, query: TrackedQuery) -> None:
        query.halt()
        query.close()
        self._halted.add(query)

    def _settle(self, queries: Sequence[TrackedQuery]) -> bool:
        """Wait until all have acted on what has been announced, and tell whether they have."""
        for query in queries:
            if query.has_operators:
                continue  # nothing waits for what it sends, and its source may never be at rest
            try:
                query.settle()
            except Exception as error:
                if query.failure() is None:
                    raise
                _log.info("query %s failed while its job was handed over: %s", query.run.query, error)
                return False
        return True

    def _stop(self, queries: Sequence[TrackedQuery]) -> None:
        for query in queries:
            if query not in self._halted:
                self._halt(query)
        self._release_guards()
        self._handed_over.update(queries)

    def _note(self, found: list[str]) -> None:
        """Note what is waited for, and logs it once it has been the same for some time."""
        if found != self._missing:
            self._complain_at = time.monotonic() + _COMPLAIN_AFTER
            self._missing = found
        elif found and time.monotonic() > self._complain_at:
            self._complain_at = float("inf")
            _log.warning("the hand-over of job %s waits: %s", self._job, self.missing)


def _runs(query: TrackedQuery) -> bool:
    return query.query is not None and query.query.isActive
