"""Queries whose batches this package processes: they send rows on, or release results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from spark_client.counting.batch import BatchInput, BatchResult, BatchRows, StateSize
from spark_client.counting.probes import ExecutorProbe, Manifest
from spark_client.counting.runs import Run
from spark_client.plan.batches import BatchId
from spark_client.runtime.processor import BatchProcessor
from spark_client.runtime.queries import FunctionQuery, Read
from spark_client.runtime.queryplan import QueryPlan
from spark_client.spark_internals.checkpoints import query_id
from tracker.client import Outcome


@dataclass(frozen=True, slots=True)
class BatchInHand:
    """A batch of a tracked query.

    Attributes:
        job: the query's.
        segment: that it reads.
        connected: that segment, those that lead there, and those that can be reached from it.
        epoch: the batch's number.
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
    """This thread processes a batch meanwhile."""
    token = _in_hand.set(batch)
    try:
        yield
    finally:
        _in_hand.reset(token)


class BatchQuery(FunctionQuery):
    """A query whose batches are processed by this package: it sends rows on, or releases results.

    Args:
        read: the stream that it reads.
        open_run: opens a run at the tracker: (query id, run id, resume epoch).
        processor: what it does with its batches.
        probe: makes the executors' probe of a batch; None: the driver counts.
        manifest: records whose reports are kept; None: the driver counts.
    """

    def __init__(
        self,
        read: Read,
        plan: QueryPlan,
        open_run: Callable[[str, str, int], Run],
        processor: BatchProcessor,
        probe: Callable[[BatchId], ExecutorProbe] | None,
        manifest: Manifest | None,
    ) -> None:
        super().__init__([read], plan.checkpoint, open_run)
        self._read = read
        self._seals = plan.seals
        self._wakes = plan.release is not None
        self._place = partial(BatchInHand, plan.settings.job, plan.stream.segment, frozenset(plan.connected))
        self.counting = plan.counting()
        self.processor = processor
        self._probe = probe
        self._manifest = manifest

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

    def drain(self, spark: SparkSession) -> None:
        result = self.processor.drain(self.run, spark)
        if self.metrics is not None and result is not None:
            self.metrics.done(self.run.query, result, self.processor.state_size())

    def carry_out(self, batch: DataFrame, run: Run, epoch: int) -> tuple[BatchResult | None, list[Outcome]]:
        with within(self._place(epoch)):
            outcomes, spark = list[Outcome](), batch.sparkSession
            if self._manifest is not None:
                self._manifest.begin()
            batch_input = self._input(batch, run, epoch)
            try:
                result = self.processor.process(batch_input, run, epoch, spark)
                if result is not None:
                    report = run.report(epoch)
                    result.add_to(report, batch_input, self._read.stream.input.rule)
                    outcomes = run.send(report, epoch)
                    self.processor.reported(run, epoch, spark)
            except Exception as error:
                explanation = error if batch_input is None else batch_input.explained(error)
                if explanation is error:
                    raise
                raise explanation from None
            if self._manifest is not None and self._seals:
                run.seal(epoch, self._manifest.units)
            return result, outcomes

    def state_size(self) -> StateSize | None:
        return self.processor.state_size()

    def sweep(self, query: str) -> None:
        self.processor.sweep(query)

    def _input(self, batch: DataFrame, run: Run, epoch: int) -> BatchInput | None:
        """Return the rows of a batch; None: it has none."""
        stream, front = self._read
        rows = stream.input.rows(batch, run.query, epoch, self._wakes)
        if rows is None:
            return None
        name = run.batch(epoch)
        return BatchInput(
            stream,
            self.counting,
            front,
            BatchRows(name, batch, rows, self._wakes),
            None if self._probe is None else self._probe(name),
            running=lambda: self.query,
            reads_all=self.processor.reads_all,
        )
