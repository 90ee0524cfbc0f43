"""Tracked queries while they run: their runs at the tracker, how they stop between two batches, and why they fail."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.advice import explained
from spark_client.counting.batch import BatchResult, StateSize
from spark_client.counting.given_counts import RecordedCounts, check_identified, forget_shared
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError
from spark_client.fronts.front import Front, LiveFront
from spark_client.plan.streams import Stream
from spark_client.runtime.gate import Gate, Stopped
from spark_client.runtime.metrics import QueryMetrics
from spark_client.spark_internals.checkpoints import clear_unfinished, last_begun, last_commit
from spark_client.spark_internals.errors import of_two_drivers, sentence_in
from spark_client.spark_internals.kafka import ask_for_latest_offsets
from spark_client.spark_internals.observations import observation_name
from spark_client.storage.directories import PARQUET
from spark_client.storage.folder import Folder
from tracker.client import Frontier, Outcome, TrackerError, TrackerUnavailable
from tracker.contract.refusal import Refusal

_log = logging.getLogger("spark_client")

_LIVES_EVERY = 0.25  #: seconds between two looks at whether a query has ended

_SEE_FIRST: Final = 0.03  #: seconds after a batch between two looks at whether it is committed, in a store of objects
_SEE_LAST: Final = 0.5  #: seconds between two looks long after it
_INTERRUPTING = 5.0  #: seconds in which a query that is interrupted has to stop
_OPENING = 300.0  #: seconds in which a query that starts has to be able to open its run


class Read(NamedTuple):
    """A stream that a query reads.

    Attributes:
        front: of the stream's source, while the query runs; None: its rows come from a channel.
    """

    stream: Stream
    front: LiveFront | None

    @classmethod
    def of(cls, stream: Stream, spark: SparkSession) -> Read:
        """Return a stream with a live front of its own.

        Args:
            spark: the session, in which the front reads times.
        """
        return cls(stream, None if stream.input.front is None else stream.input.front.live(spark))


class TrackedQuery:
    """Base of all tracked queries.

    Args:
        reads: the streams it takes its rows from.
        open_run: opens a run at the tracker: (query id, run id, resume epoch).
        received_beside: the segments that its application receives, each by a query that holds a drain.

    Attributes:
        has_operators: Spark's own operators keep its state: while its job drains it goes on until what they hold has
            come out.
    """

    has_operators = False

    def __init__(
        self,
        reads: Sequence[Read],
        checkpoint: Folder,
        open_run: Callable[[str, str, int], Run],
        received_beside: Set[str] = frozenset(),
    ) -> None:
        self.reads = reads
        self.checkpoint = checkpoint
        self.received_beside = received_beside
        self.query: StreamingQuery | None = None
        self.gate = Gate()
        self.cancelled = False  #: it is to be stopped as soon as Spark has started it
        self.stopped = False  #: its user has stopped it
        self.failed: Exception | None = None  #: what has ended its last batch
        self.broken: Exception | None = None  #: what has ended it between two batches
        self._open_run = open_run
        self._opened = threading.Event()
        self._opening = threading.Lock()
        self._run: Run | None = None
        self._refused: Exception | None = None
        self._closed = False
        self._look_again = 0.0
        self._seen: int | None = None
        self._seen_after: tuple[int | None, int | None] | None = None
        self._see_at = 0.0
        self._see_every = _SEE_FIRST

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
        """Return whether nothing comes to it but from sources."""
        return all(read.front is not None for read in self.reads)

    @property
    def outlives_its_sources(self) -> bool:
        """Return whether the query has something to do when all that its sources have sent has ended."""
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
            begun: whether Spark may have begun its first batch.
        """
        with self._opening:
            if self._opened.is_set():
                return
            last = last_commit(self.checkpoint)
            try:
                opened = self._open_run(query, run, 0 if last is None else last + 1)
                # Once more: no driver before can report a batch from here on, and some may have until now.
                opened.resume(last_commit(self.checkpoint), last_begun(self.checkpoint))
                self._run = opened
                if last is None and not begun:
                    clear_unfinished(self.checkpoint)  # before Spark looks, and the tracker has no batch of it either
                self.resumed(self._run)
            except Exception as error:
                self._refused = error
            self._opened.set()

    @property
    def kept(self) -> int:
        """Return how many of its batches have not been reported to the tracker."""
        return 0 if self._run is None else len(self._run.outbox)

    @property
    def progress(self) -> tuple[int | None, int]:
        """The last batch that Spark has committed, and how often it has done something between two."""
        return self.run.last_epoch, 0

    def look(self) -> None:
        """Let the fronts of its sources learn what is there before it starts.

        Raises:
            UsageError: what is there can be promised by nobody.
        """
        for front in self.fronts:
            front.look(self.checkpoint, last_commit(self.checkpoint), at_once=True)

    def resumed(self, run: Run) -> None:
        """Make the promises that are known before any batch.

        Raises:
            TrackingError: the tracker has lost what it knew, or refuses a promise.
        """
        run.check_log(self.checkpoint)
        for number, (stream, front) in enumerate(self.reads):
            if front is not None:
                run.news.require(front.front.needs, repr(front.front))
                folder = self.checkpoint / "tracker" / "counts" / str(number)
                check_identified(folder, run, stream.segment, front.front)
                if front.front.counts:
                    front.begin(RecordedCounts(folder, self.checkpoint, run, stream.segment))
                front.resume(run.news.frontiers)
                run.announce(front)
        if any(front.front.counts for front in self.fronts):
            forget_shared(run)
        if self.fronts and run.drains() is not None:
            self.rest()

    @property
    def last_commit(self) -> int | None:
        """The last batch that Spark has committed; None: none yet."""
        known = None if self._run is None else self._run.last_epoch
        if known is not None and self.gate.last_epoch == known:
            return known  # no later one was let in
        return last_commit(self.checkpoint, known, self.gate.last_epoch)

    @property
    def last_seen_commit(self) -> int | None:
        """The last batch that Spark is known to have committed, for a caller who asks again soon: a store of objects,
        where each look is a request, is looked at the more rarely the longer nothing changes.
        """
        if self.checkpoint.path is not None:
            return self.last_commit
        after = (None if self._run is None else self._run.last_epoch, self.gate.last_epoch)
        if after != self._seen_after:
            self._seen_after, self._see_at, self._see_every = after, 0.0, _SEE_FIRST
        if time.monotonic() >= self._see_at:
            self._seen = self._look()
            self._see_at = time.monotonic() + self._see_every
            self._see_every = min(2 * self._see_every, _SEE_LAST)
        return self._seen

    def _look(self) -> int | None:
        """Return the last batch that Spark has committed, which costs requests where the checkpoint is in a store."""
        newest = None if self.query is None else self.query.lastProgress
        # Spark's progress costs none, and comes after the commit.
        return self.last_commit if self._may_show(newest) else self._seen

    def _may_show(self, newest: Mapping[str, Any] | None) -> bool:
        """Return whether the batch that is looked for may be committed.

        Args:
            newest: Spark's progress; None: there is none.
        """
        awaited = self.gate.last_epoch
        return newest is None or awaited is None or newest["batchId"] >= awaited

    def keep_up(self) -> bool:
        """Report what Spark has committed since the last call, and close the run if the query has ended.

        Returns:
            True while there is something left to keep up with.

        Raises:
            TrackerError: the tracker refuses it.
            TrackerUnavailable: no answer; to be called again.
        """
        if self._closed or self._run is None:
            return not self._closed
        self.report_commits()
        self.catch_up()
        if self._run.failure is None:
            self._announce(self._run)
        now = time.monotonic()
        if self.query is not None and now >= self._look_again:
            self._look_again = now + _LIVES_EVERY
            if not self.query.isActive:
                if self.query.exception() is None:
                    self.ended()
                return not self.close(patient=False)
        return True

    def catch_up(self) -> None:
        """Tell a tracker that is back what was kept for it meanwhile.

        Raises:
            TrackerError: the tracker refuses it.
            TrackerUnavailable: no answer; to be called again.
        """
        while self.run.away and not self.run.deliver_next():
            pass

    def ended(self) -> None:
        """Do what is left when Spark's query has ended by itself, or was stopped."""

    def _announce(self, run: Run) -> None:
        """Make the promises that have become known meanwhile."""
        try:
            for front in self.fronts:
                front.look(self.checkpoint, run.last_epoch)
                run.announce(front, patient=False)
        except TrackingError as error:
            run.failure = error  # the next batch fails with it

    def report_commits(self, proven: int | None = None, *, patient: bool = False) -> None:
        """Report to the tracker what Spark has committed. Only this does, whoever finds out first.

        Args:
            proven: a batch that is committed, as the next one has begun; None: Spark's log is read.
            patient: whether a tracker that is away is waited for.

        Raises:
            TrackerError: the tracker refuses; the run has failed then.
            TrackerUnavailable: no answer; to be called again.
        """
        run = self.run
        last = proven
        if proven is None and (patient or run.owes):
            last = self.last_commit if patient else self.last_seen_commit
        if last is not None:
            (run.await_committed if patient else run.committed)(last)

    def abandon(self) -> None:
        """Follow the query no longer, as the tracker has refused its run: it must not go on untracked."""
        self._closed = True

    def break_off(self, error: Exception) -> None:
        """End the query, as what it had to do between two batches has failed. Spark's own query just stops; where it is
        in another process, its next batch fails.
        """
        self.broken = error
        _log.error("query %s ends, as what it had to do between two batches failed: %s", self.run.query, error)
        if self.query is None:
            self.run.failure = error
        else:
            threading.Thread(target=self.query.stop, name="tracking-stop", daemon=True).start()

    def close(self, patient: bool = True) -> bool:
        """Close the run of a query that has stopped, for whatever reason.

        Args:
            patient: whether a tracker that is away is waited for.

        Returns:
            True if the run is closed at the tracker; False: the tracker is away.
        """
        last = self.last_commit
        known = self._run is None or self._run.close(0 if last is None else last + 1, patient)
        if known or patient:
            self._closed = True
            self.release_resources()
        return known

    def release_resources(self) -> None:
        """Give back what the query needed while it ran."""

    def drain(self) -> None:
        """Publish what is left when no other batch will come: the query has stopped."""

    def begun(self, epoch: int) -> bool:  # noqa: ARG002 - others have
        """Return whether an attempt of a batch may have published something, so that no other batch may take its
        place."""
        return False

    @property
    def interrupted(self) -> int | None:
        """The batch that has begun and is not committed, here or by a driver before; None: there is none."""
        last, committed = last_begun(self.checkpoint), self.last_commit
        if last is None or (committed is not None and last <= committed):
            return None
        return last if self.begun(last) else None

    def rest(self) -> None:
        """Let no batch in any more but the one that has begun: what its sources have is for the next deployment."""
        self.gate.admit(self.interrupted)

    def finish(self, front: Front) -> None:
        """Promise that a source will send nothing more, between two batches of the query, which runs.

        Raises:
            TrackerError: the tracker refuses the promise, as in `Run.promise`.
        """
        between_batches(lambda: self.run.promise(front.finish()))

    def failure(self) -> TrackingError | None:
        """Return what has gone wrong, as a user reads it; None: nothing."""
        query = self.query
        if query is None:
            return None
        cause: BaseException | None = query.exception() or self.broken
        if cause is None:
            cause = self._run.failure if self._run is not None and query.isActive else None
            if cause is None:
                return None
        return failed_query(query, cause, self.failed)

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
            last = self.last_commit
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
            self.report_commits(patient=True)


#: Settings with which batches run, in the copy of the session that Spark makes for a query.
_CONF: Final = {
    "spark.sql.adaptive.enabled": "true",  # few files for few rows
    **PARQUET,
}


class FunctionQuery(TrackedQuery):
    """A query whose batches are given to a function of this package.

    Attributes:
        metrics: counts the batches; None: nobody does.
    """

    metrics: QueryMetrics | None = None
    _swept = False

    @property
    def function(self) -> Callable[[DataFrame, int], None]:
        """The function for `foreachBatch`; it works while somebody keeps this object.

        Spark keeps it for as long as it keeps its query. This object keeps Spark's query in turn, and the collectors of
        the JVM and of Python cannot see a circle through both. So the function does not keep this object; whoever
        follows the query does.
        """
        kept_by_others = weakref.ref(self)

        def process(batch: DataFrame, epoch: int) -> None:
            query = kept_by_others()
            if query is None:
                raise Stopped
            try:
                query.process(batch, epoch)
            except Stopped:
                raise
            except Exception as error:
                if (short := query.failure_of(error)) is not error:
                    raise short from None  # Spark shows the whole chain, with the sentence at its end
                raise

        return process

    def failure_of(self, error: Exception) -> Exception:
        """Note what has ended a batch, and return what Spark is to show of it."""
        self.failed = error
        if self.metrics is not None and self._run is not None:
            self.metrics.failed(self._run.query)
        return shortened(error)

    def process(self, batch: DataFrame, epoch: int) -> None:
        """Process a batch, and report it."""
        run = self.run
        with self.gate.passed(epoch):
            started = time.monotonic()
            if run.failure is not None:
                raise explained(run.failure)
            if not self._swept:
                run.start(epoch)
                if run.unless_away(partial(run.news.is_current, run.run)):
                    self.sweep(run.query)
                ask_for_latest_offsets(batch.sparkSession, run.query)
                self._swept = True
            if epoch:
                self.report_commits(epoch - 1, patient=True)  # else Spark would not have begun this one
            self.configure(batch.sparkSession)
            result, outcomes = self.carry_out(batch, run, epoch)
            self.gate.done(epoch)
            if self.metrics is not None:
                self.metrics.processed(run.query, time.monotonic() - started, outcomes, result, self.state_size())
                self.metrics.learnt(run.query, self.fronts)

    @abstractmethod
    def carry_out(self, batch: DataFrame, run: Run, epoch: int) -> tuple[BatchResult | None, list[Outcome]]:
        """Carry out a batch that has been let in.

        Returns:
            The batch's result, if any, and the tracker's outcomes of its report.
        """

    @abstractmethod
    def sweep(self, query: str) -> None:
        """Remove what drivers that were killed have left half written. Not called once another run has taken over."""

    def state_size(self) -> StateSize | None:
        """Return how much its state holds; None: that is not counted."""
        return None

    @staticmethod
    def configure(spark: SparkSession) -> None:
        """Set what batches are run with.

        Args:
            spark: the copy of the session that Spark has made for the query.
        """
        for key, value in _CONF.items():
            spark.conf.set(key, value)


class NativeQuery(TrackedQuery):
    """A query that Spark runs with its own stateful operators. Its promises ride in commits."""

    has_operators = True
    outlives_its_sources = True
    _last_promised: int | None = None  # the last batch whose promises have been made

    def report_commits(self, proven: int | None = None, *, patient: bool = False) -> None:  # noqa: ARG002
        run, last = self.run, self.last_seen_commit
        if last is None or not self._owes(last) or self.query is None:
            return
        newest = self.query.lastProgress
        if newest is None or not self._owes(newest["batchId"]):
            return  # Spark's event comes a little after a batch's commit
        alone = newest["batchId"] == last and (self._last_promised == last - 1 or run.resume_epoch == last)
        for progress in [newest] if alone else self.query.recentProgress:  # which are up to a hundred
            epoch = progress["batchId"]
            if epoch <= last and self._owes(epoch):
                run.expect(epoch)
                run.committed(epoch, self._promises(progress["observedMetrics"]))
                self._last_promised = epoch
                self._say_what_is_dropped(progress)

    def _may_show(self, newest: Mapping[str, Any] | None) -> bool:
        return newest is not None and self._owes(newest["batchId"])

    def _say_what_is_dropped(self, progress: Any) -> None:
        dropped = sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
        if dropped:
            _log.warning(
                "query %s, batch %d: Spark has dropped %d rows, or rows made of several, which came later than their "
                "source had promised (numRowsDroppedByWatermark)",
                self.run.query,
                progress["batchId"],
                dropped,
            )

    def _promises(self, observed: Mapping[str, Any]) -> list[Frontier]:
        promises: list[Frontier] = []
        for stream, front in self.reads:
            metrics = observed.get(observation_name(stream.segment))
            if front is not None and metrics is not None:
                promises.extend(front.of_observed(metrics.asDict()).frontiers)
        return promises

    def settle(self) -> None:
        if self.query is None or not self.query.isActive:
            return
        self.query.processAllAvailable()
        last = self.last_commit
        while last is not None and self._owes(last) and self.query.isActive:
            time.sleep(0.01)

    def halt(self) -> None:
        """Stop the query once the batch in hand is committed, and its promises are made.

        Spark may have begun another one by then. It was not committed, so it is read again.
        """
        begun = last_begun(self.checkpoint)
        while begun is not None and self.query is not None and self.query.isActive:
            last = self.last_commit
            if last is not None and last >= begun and not self._owes(last):
                break
            time.sleep(0.01)
        self.stop()

    def _owes(self, epoch: int) -> bool:
        """Return whether the promises of a batch that this run has seen committed have still to be made."""
        return epoch >= self.run.resume_epoch and (self._last_promised is None or epoch > self._last_promised)

    def abandon(self) -> None:
        super().abandon()
        if self.query is not None:
            threading.Thread(target=self.query.stop, name="tracking-stop", daemon=True).start()


def between_batches(promise: Callable[[], object]) -> None:
    """Make a promise that no batch carries, once the batch under way, if any, is committed.

    Raises:
        TrackerError: the tracker refuses the promise, as in `Run.promise`.
    """
    while True:
        try:
            promise()
            return
        except TrackerError as error:
            if error.reason != Refusal.EPOCH_STAGED:
                raise
        time.sleep(0.05)


_TWO_DRIVERS: Final = (
    "two drivers have run this query with one checkpoint, and one has found the other's entry in Spark's log. Nothing "
    "is lost, and both may have ended: start one of them again, and see that the other stays down"
)


class QueryFailedError(TrackingError, StreamingQueryException):
    """A failed query, in the words of this package; who catches Spark's own error catches this one, too."""

    def __init__(self, sentence: str) -> None:
        StreamingQueryException.__init__(self, message=sentence)


def failed_query(query: StreamingQuery, cause: BaseException, own: BaseException | None = None) -> QueryFailedError:
    """Return the error of a query that has failed.

    Args:
        cause: as Spark has it.
        own: what was raised in its batch; None: that is not known.
    """
    sentence = sentence_of(own or cause) or sentence_of(cause)
    failure = QueryFailedError(
        f"query {query.id} has failed: {cause}" if sentence is None else f"{sentence} (query {query.id})"
    )
    failure.__cause__ = own or cause
    return failure


def sentence_of(error: BaseException) -> str | None:
    """Return the sentence of this package that a failure goes back to; None: the failure is not of this package.

    >>> sentence_of(RuntimeError("Traceback: …\\nspark_client.errors.TrackingError: 3 rows belong to no substream\\n"))
    '3 rows belong to no substream'
    >>> sentence_of(ValueError("a user's own"))
    """
    if isinstance(error, TrackingError):
        return str(error)
    if isinstance(error, TrackerError | TrackerUnavailable):
        return str(explained(error))
    if of_two_drivers(error):
        return _TWO_DRIVERS
    return sentence_in(error)


def shortened(error: Exception) -> Exception:
    """Return the error to raise in Spark's place: with our sentence and no long chain, if it is ours; else the same."""
    sentence = sentence_of(error)
    return error if sentence is None else TrackingError(sentence)
