"""One tracked query while it runs: its batches, its run at the tracker, and how it is stopped between two batches."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.advice import explained
from spark_client.counting.continuing import Ledger, forget_shared
from spark_client.counting.livefronts import LiveFront
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError
from spark_client.plan.streams import Stream
from spark_client.runtime.failures import QueryFailedError, sentence_of
from spark_client.runtime.gate import Gate
from spark_client.spark_internals.checkpoints import clear_unfinished, last_begun, last_commit

_log = logging.getLogger("spark_client")

_LIVES_EVERY = 0.25  #: seconds between two looks at whether a query has ended

_INTERRUPTING = 5.0  #: seconds in which a query that is interrupted has to stop
_OPENING = 300.0  #: seconds in which a query that starts has to be able to open its run


class Read(NamedTuple):
    """A stream that a query reads.

    Attributes:
        stream: it.
        front: of its source, while the query runs; None: it receives from a channel.
    """

    stream: Stream
    front: LiveFront | None


class TrackedQuery:
    """What all tracked queries have in common.

    Args:
        reads: the streams it takes its rows from.
        checkpoint: its own.
        open_run: opens a run at the tracker: (query id, run id, resume epoch).

    Attributes:
        has_operators: Spark's own operators keep its state: while its job drains it goes on until what they hold has
            come out.
    """

    has_operators = False

    def __init__(self, reads: Sequence[Read], checkpoint: Path, open_run: Callable[[str, str, int], Run]) -> None:
        self.reads = reads
        self.checkpoint = checkpoint
        self.query: StreamingQuery | None = None
        self.gate = Gate()
        self.cancelled = False  #: it is to be stopped as soon as Spark has started it
        self.failed: Exception | None = None  #: what has ended its last batch
        self._open_run = open_run
        self._opened = threading.Event()
        self._opening = threading.Lock()
        self._run: Run | None = None
        self._refused: Exception | None = None
        self._closed = False
        self._look_again = 0.0

    @property
    def fronts(self) -> list[LiveFront]:
        """The fronts of its sources."""
        return [read.front for read in self.reads if read.front is not None]

    @property
    def segments(self) -> list[str]:
        """The segments that it reads."""
        return [read.stream.segment for read in self.reads]

    @property
    def only_sources(self) -> bool:
        """Whether nothing comes to it but from sources."""
        return all(read.front is not None for read in self.reads)

    @property
    def outlives_its_sources(self) -> bool:
        """Whether it has something to do when all that its sources have sent has ended."""
        return not self.fronts

    @property
    def run(self) -> Run:
        """Its run; waits until it is open.

        Raises:
            TrackingError: it could not be opened.
        """
        self._opened.wait(_OPENING)
        if self._refused is not None:
            raise explained(self._refused) from self._refused
        if self._run is None:
            raise TrackingError("the query's run was not opened: start it with the tracked writer's start()")
        return self._run

    def open(self, query: str, run: str, *, begun: bool = False) -> None:
        """Open the run; what goes wrong is raised by `run`.

        Args:
            query: its id.
            run: the run's.
            begun: whether Spark may have begun its first batch.
        """
        with self._opening:
            if self._opened.is_set():
                return
            last = last_commit(self.checkpoint)
            try:
                self._run = self._open_run(query, run, 0 if last is None else last + 1)
                if last is None and not begun:
                    clear_unfinished(self.checkpoint)  # before Spark looks, and the tracker has no batch of it either
                self.resumed(self._run)
            except Exception as error:
                self._refused = error
            self._opened.set()

    def resumed(self, run: Run) -> None:
        """Make the promises that are known before any batch.

        Raises:
            TrackingError: the tracker has lost what it knew, or refuses a promise.
        """
        run.check_log(self.checkpoint / "tracker" / "log.json")
        for number, (stream, front) in enumerate(self.reads):
            if front is not None:
                if front.front.counts:
                    front.begin(Ledger(self.checkpoint / "tracker" / "counts" / str(number), run, stream.segment))
                run.announce(front)
        if any(front.front.counts for front in self.fronts):
            forget_shared(run)

    def follow(self) -> bool:
        """Tell the tracker what Spark has committed since the last look, and close the run if the query has ended.

        Returns:
            Whether there is something left to follow.

        Raises:
            TrackerError: the tracker refuses it.
            TrackerUnavailable: no answer; to be called again.
        """
        if self._closed or self._run is None or self.query is None:
            return not self._closed
        self._committed(self._run)
        if self._run.failure is None:
            self._announce(self._run)
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + _LIVES_EVERY
            if not self.query.isActive:
                return not self.close(patient=False)
        return True

    def _announce(self, run: Run) -> None:
        """Make the promises that have become known meanwhile."""
        try:
            for front in self.fronts:
                front.committed(self.checkpoint, run.last_epoch)
                front.look()
                run.announce(front, patient=False)
        except TrackingError as error:
            run.failure = error  # the next batch fails with it

    def _committed(self, run: Run) -> None:
        if run.owes:
            last = last_commit(self.checkpoint)
            if last is not None:
                run.committed(last)

    def abandon(self) -> None:
        """The tracker has refused this run: its query must not go on untracked."""
        self._closed = True

    def close(self, patient: bool = True) -> bool:
        """Close the run of a query that has stopped, for whatever reason.

        Args:
            patient: whether a tracker that is away is waited for.

        Returns:
            Whether the tracker knows.
        """
        last = last_commit(self.checkpoint)
        known = self._run is None or self._run.close(0 if last is None else last + 1, patient)
        if known or patient:
            self._closed = True
            self.release_resources()
        return known

    def release_resources(self) -> None:
        """Give back what the query needed while it ran."""

    def drain(self, spark: SparkSession) -> None:
        """Publish what is left when no other batch will come: the query has stopped.

        Args:
            spark: the session.
        """

    def begun(self, epoch: int) -> bool:  # noqa: ARG002 - others have
        """Return whether an attempt of a batch may have published something, so that no other batch may take its
        place."""
        return False

    @property
    def interrupted(self) -> int | None:
        """The batch that has begun and is not committed, here or by a driver before; None: there is none."""
        last, committed = last_begun(self.checkpoint), last_commit(self.checkpoint)
        if last is None or (committed is not None and last <= committed):
            return None
        return last if self.begun(last) else None

    def rest(self) -> None:
        """Let no batch in any more but the one that has begun: what its sources have is for the next deployment."""
        self.gate.admit(self.interrupted)

    def failure(self) -> TrackingError | None:
        """Return what has gone wrong, as a user reads it; None: nothing."""
        query = self.query
        if query is None:
            return None
        cause: BaseException | None = query.exception()
        if cause is None:
            cause = self._run.failure if self._run is not None and query.isActive else None
            if cause is None:
                return None
        sentence = sentence_of(self.failed or cause) or sentence_of(cause)
        text = f"query {query.id} has failed: {cause}" if sentence is None else f"{sentence} (query {query.id})"
        failure = QueryFailedError(text)
        failure.__cause__ = self.failed or cause
        return failure

    def stop(self, patience: float | None = None) -> None:
        """Stop the query after the batch in hand, once that is committed, and before the next.

        Args:
            patience: seconds after which the batch in hand is interrupted; it will be read again. None: it is waited
                for as long as it takes.
        """
        until = float("inf") if patience is None else time.monotonic() + patience
        if patience is not None and self._run is not None:
            self._run.hurry(patience)
        idle = self.gate.close(patience)
        query = self.query
        if query is None:
            self.cancelled = True
            return
        while idle and query.isActive and self.gate.last_epoch is not None:
            last = last_commit(self.checkpoint)
            if (last is not None and last >= self.gate.last_epoch) or time.monotonic() > until:
                break
            time.sleep(0.01)
        stopping = threading.Thread(target=query.stop, name="tracking-stop", daemon=True)
        stopping.start()
        stopping.join(0.3)  # a batch that waits at the gate must find the query marked as stopped
        self.gate.release()
        stopping.join(None if patience is None else max(_INTERRUPTING, until - time.monotonic()))
        if stopping.is_alive():
            _log.warning(
                "query %s: its batch does not end although it was interrupted; the query stops when it does", query.id
            )

    def halt(self) -> None:
        """Stop the query for good, between two batches: the next deployment goes on from there."""
        self.stop()

    def settle(self) -> None:
        """Wait until everything that is there has been processed, and the tracker knows of it."""
        if self.query is not None and self.query.isActive:
            self.query.processAllAvailable()
            last = last_commit(self.checkpoint)
            if last is not None:
                self.run.await_committed(last)
