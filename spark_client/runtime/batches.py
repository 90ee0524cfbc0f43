"""Queries whose batches this package processes: they send rows on, or release results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession

from spark_client.advice import is_away
from spark_client.counting.batch import BatchInput, BatchResult, BatchRows, StateSize
from spark_client.counting.once import CountedOnce
from spark_client.counting.probes import TaskReports
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Output
from spark_client.release.quarantine import Quarantine
from spark_client.release.query import ReleaseQuery
from spark_client.runtime.queries import FunctionQuery, Read
from spark_client.runtime.queryplan import QueryPlan
from spark_client.spark_internals.checkpoints import query_id
from tracker.client import Outcome


class Forward:
    """Forwarding of rows. `ReleaseQuery` describes the methods that both have.

    Args:
        quarantine: where rows go that belong to no substream.
        has_fronts: whether the query reads a source: it ends with it.
    """

    def __init__(self, output: Output, quarantine: Quarantine, has_fronts: bool) -> None:
        self._output = output
        self._quarantine = quarantine
        self._has_fronts = has_fronts

    releases = False

    @property
    def outlives_its_sources(self) -> bool:
        return not self._has_fronts

    @property
    def reads_all(self) -> bool:
        return self._output.reads_all

    def process(self, batch_input: BatchInput | None, run: Run, epoch: int, spark: SparkSession) -> BatchResult | None:  # noqa: ARG002
        """Write the rows of a batch."""
        if batch_input is None:
            return None
        sent = self._output.write(batch_input.rows, run.batch(epoch), batch_input.layout)
        quarantined = batch_input.set_aside(self._quarantine)
        return BatchResult(sent, groups=batch_input.count_for_report(), set_aside={"quarantined": quarantined})

    def reported(self, run: Run, epoch: int, spark: SparkSession) -> None:
        pass

    def committed(self, epoch: int) -> None:
        pass

    def begun(self, query: str | None, epoch: int) -> bool:
        return query is not None and self._output.begun(query, epoch)

    def release(self, run: Run, spark: SparkSession, anyway: bool = False) -> BatchResult | None:  # noqa: ARG002
        return None

    def state_size(self) -> StateSize | None:
        return None

    def kept(self, epoch: int) -> Mapping[str, int]:  # noqa: ARG002
        return {}

    def sweep(self, query: str) -> None:
        self._output.sweep(query)
        self._quarantine.sweep()

    def close(self) -> None:
        pass


BatchProcessor: TypeAlias = Forward | ReleaseQuery


_PAUSE: Final = 0.01  #: seconds between two looks at whether a batch is committed
_SOON: Final = 0.1  #: seconds after a batch in which another one may begin


@dataclass(frozen=True, slots=True)
class BatchInHand:
    """A batch of a tracked query.

    Attributes:
        job: the name of the query's job.
        segment: the name of the one that it reads.
        connected: that segment, those that lead there, and those that can be reached from it.
        epoch: the number of the batch in Spark's offset log, from 0.
    """

    job: str
    segment: str
    connected: frozenset[str]
    epoch: int


_in_hand: ContextVar[BatchInHand | None] = ContextVar("batch_in_hand", default=None)


def batch_in_hand() -> BatchInHand | None:
    """Return the batch that this thread processes; None: it is in none."""
    return _in_hand.get()


@contextmanager
def within(batch: BatchInHand) -> Iterator[None]:
    """Mark this thread as processing a batch meanwhile."""
    token = _in_hand.set(batch)
    try:
        yield
    finally:
        _in_hand.reset(token)


class BatchQuery(FunctionQuery):
    """A query whose batches are processed by this package: it sends rows on, or releases results.

    Args:
        read: the stream that it reads.
        spark: a session of its own, for what is done between batches.
        open_run: opens a run at the tracker: (query id, run id, resume epoch).
        processor: what it does with its batches.
        tasks: report what the driver does not need; None: the driver reports all.
    """

    def __init__(
        self,
        read: Read,
        plan: QueryPlan,
        spark: SparkSession,
        open_run: Callable[[str, str, int], Run],
        processor: BatchProcessor,
        tasks: TaskReports | None,
    ) -> None:
        super().__init__([read], plan.checkpoint, open_run, plan.received_beside)
        self._read = read
        self._spark = spark
        self._bounded = plan.bounded
        self._pace = plan.pace
        self._lasted = 0.0  # the last batch, in seconds
        self._wrote_at = float("-inf")  # the monotonic time at which it began to write results for the last time
        self._released = 0  # how often, between batches
        self._left: bool | None = None  # whether the batch that a driver before has left may be out
        self._seals = plan.seals
        self._place = partial(BatchInHand, plan.settings.job, plan.stream.segment, frozenset(plan.connected))
        self.counting = plan.counting()
        self.processor = processor
        self._tasks = tasks
        rows = read.stream.input
        self._once = CountedOnce(plan.checkpoint, rows.rule, rows.segment) if rows.deduplicate else None

    @property
    def progress(self) -> tuple[int | None, int]:
        return self.run.last_epoch, self._released

    @property
    def releases(self) -> bool:
        """Return whether the query releases what ends, be it between two batches."""
        return self.processor.releases

    @property
    def outlives_its_sources(self) -> bool:
        return self.processor.outlives_its_sources

    def report_commits(self, proven: int | None = None, *, patient: bool = False) -> None:
        super().report_commits(proven, patient=patient)
        if proven is None and (last := self.run.last_epoch) is not None:
            self.processor.committed(last)

    def release_resources(self) -> None:
        self.processor.close()

    def begun(self, epoch: int) -> bool:
        return self.processor.begun(query_id(self.checkpoint), epoch)

    def drain(self) -> None:
        if self.broken is not None:
            raise self.broken
        self._release(anyway=True)
        while self._release():  # the first may have been one that another driver had begun
            pass

    @property
    def may_release(self) -> bool:
        """Return whether this is a time to release between two batches: none is about to begin, which would release
        itself, and results are written no more often than the trigger has batches.
        """
        soon = _SOON if self._lasted >= self._pace else 0.0  # else Spark waits for the trigger's time
        return not self.gate.is_busy(soon) and time.monotonic() - self._wrote_at >= self._pace

    def release_ended(self) -> bool:
        """Release what has ended while no batch comes, and return whether nothing is left to be done.

        A batch is waited for by no means; a failure ends the query.
        """
        if self.run.away and not self.run.answers():
            return False
        with self.gate.between() as free:
            if not free or self._is_under_way():
                return False
            if self.run.closed or self.broken is not None:
                return True
            away = self.run.away
            try:
                self.report_commits(patient=True)
                if away:
                    self.run.settle()
                released = self._release()
                if away:  # each batch is reported alone: what the tracker announces next is about that batch
                    self.run.deliver_next()
            except Exception as error:
                if is_away(error):
                    return False  # all of the act is due yet
                self.break_off(self.failure_of(error))  # before anyone else is let in
                return True
            return not (released or away)

    def _is_under_way(self) -> bool:
        """Return whether a batch was let in that Spark has not committed, here or by a driver before."""
        if self.gate.last_epoch is None:
            left = self.run.left
            if left is None:
                return False
            if self._left is None:  # which no one changes before a batch is let in
                self._left = self.begun(left)
            return self._left
        last = self.last_seen_commit
        return last is None or last < self.gate.last_epoch

    def catch_up(self) -> None:
        if not self.releases:
            super().catch_up()  # else between two batches: see `release_ended`

    def ended(self) -> None:
        if not self._bounded:
            return
        if self.run.away:
            self._release_all()  # nothing more is promised before all has been reported
        if self.gate.is_open and not self.stopped:
            for front in self.fronts:
                front.ran()
                self.run.announce(front, patient=False)
        self._release_all()

    def _release(self, anyway: bool = False) -> bool:
        began = time.monotonic()
        result = self.processor.release(self.run, self._spark, anyway)
        self._note_results(result, began)
        self._released += result is not None
        if self.metrics is not None and result is not None:
            self.metrics.done(self.run.query, result, self.processor.state_size())
        return result is not None

    def _note_results(self, result: BatchResult | None, began: float) -> None:
        if result is not None and result.released:
            self._wrote_at = began

    def settle(self) -> None:
        super().settle()
        if self.query is not None and self.query.isActive:
            self._release_all()

    def _release_all(self) -> None:
        while self.releases and self.gate.is_open and not self.release_ended():
            time.sleep(_PAUSE)

    def carry_out(self, batch: DataFrame, run: Run, epoch: int) -> tuple[BatchResult | None, list[Outcome]]:
        with within(self._place(epoch)):
            outcomes, spark, began = list[Outcome](), batch.sparkSession, time.monotonic()
            if self._tasks is not None:
                self._tasks.begin(run.away)
            batch_input = self._input(batch, run, epoch)
            try:
                result = self.processor.process(batch_input, run, epoch, spark)
                self._note_results(result, began)
                if result is not None and self._once is not None:
                    result = replace(result, set_aside={**result.set_aside, "copies": self._once.copies})
                if result is not None:
                    report = run.report(epoch)
                    result.add_to(report, batch_input, self._read.stream.input.rule)
                    if self._tasks is not None:
                        run.outbox.unsent = self._tasks.unsent
                    outcomes = run.send(report, epoch)
                    self.processor.reported(run, epoch, spark)
            except Exception as error:
                explanation = error if batch_input is None else batch_input.explained(error)
                if explanation is error:
                    raise
                raise explanation from None
            if self._seals:
                run.seal(epoch, [] if self._tasks is None else self._tasks.units)
            self._lasted = time.monotonic() - began
            return result, outcomes

    def state_size(self) -> StateSize | None:
        return self.processor.state_size()

    def sweep(self, query: str) -> None:
        self.processor.sweep(query)
        if self._once is not None:
            self._once.sweep(self.run.resume_epoch)

    def _input(self, batch: DataFrame, run: Run, epoch: int) -> BatchInput | None:
        """Return the rows of a batch; None: it has none."""
        stream, front = self._read
        rows = stream.input.rows(batch, run.query, epoch)
        if rows is None:
            return None
        name = run.batch(epoch)
        unique = _as_they_are if self._once is None else partial(self._once.unique, run=run, epoch=epoch)
        return BatchInput(
            stream,
            self.counting,
            front,
            BatchRows(name, batch, rows, unique),
            self._tasks,
            running=lambda: self.query,
            reads_all=self.processor.reads_all,
        )


def _as_they_are(rows: DataFrame) -> DataFrame:
    return rows
