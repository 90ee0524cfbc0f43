"""Where rows are counted: what a batch received and sent, by substream.

Two ways, with the same result. On the driver: a native aggregation of the batch, collected; nothing calls the tracker
but the driver. On the executors: an Arrow operator that the rows pass through, which reports when its input is
exhausted and fails the task if the tracker does not answer. An executor's probe must never report before that, nor
change a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import Accumulator, TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.counting.folding import Key, files, fold_labels, unite
from spark_client.counting.manifest import Units
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.fronts import Group
from spark_client.plan.layouts import RowLayout
from spark_client.plan.outputs import BatchId
from spark_client.plan.streams import Direction
from spark_client.plan.substreams import TRACKER, Substreams
from spark_client.spark_internals.tasks import batch_of
from tracker.client import Report, TrackerClient
from tracker.client.pieces import Largest, split

_PARTITION = "_tracker_partition"
_USUAL = Largest()
_FEW = 4_000_000  #: rows up to which counting them here costs less than a Spark job does


def by_substream(rows: DataFrame, rule: Substreams, measures: Mapping[str, Column], labels: bool) -> list[Group]:
    """Counts tracked rows on the driver, by one native aggregation.

    Args:
        rows: with the column `_tracker`.
        rule: how they fall into substreams.
        measures: further aggregates, by name.
        labels: also the XOR of their labels; without, `_xor` is 0.

    Returns:
        For each substream `_rows`, `_xor` and the measures.
    """
    xor = {"_xor": F.bit_xor(F.col(f"{TRACKER}.label"))} if labels else {}
    aggregates = {"_rows": F.count("*"), **xor, **measures}
    scope, key = F.col(f"{TRACKER}.scope").alias("_scope"), rule.end_micros().alias("_key")
    grouped = rows.groupBy(scope, key).agg(*[value.alias(name) for name, value in aggregates.items()])
    collected = [row.asDict() for row in grouped.collect()]
    return groups_of((((row.pop("_scope"), row.pop("_key")), row) for row in collected), rule)


def in_files(path: Path, layout: RowLayout, rows: Callable[[], DataFrame]) -> list[Group]:
    """Counts tracked rows that were just written: here, if they are few, and natively if they are many.

    Args:
        path: of the Parquet files.
        layout: of the files.
        rows: gives the same as a DataFrame, which takes Spark a while.
    """
    written = files(path, layout.texts)
    if written.count_rows() > _FEW:
        return by_substream(rows(), layout.rule, {}, labels=True)
    counted: dict[Key, tuple[int, int]] = {}
    for batch in written.to_batches(columns=[name for name in layout.columns if name in written.schema.names]):
        unite(counted, fold_labels(*layout.keys_and_labels(batch)))
    return groups_of(((key, {"_rows": number, "_xor": xor}) for key, (number, xor) in counted.items()), layout.rule)


def groups_of(folded: Iterable[tuple[Key, dict[str, Any]]], rule: Substreams) -> list[Group]:
    """Gives folded rows the names of their substreams.

    Raises:
        TrackingError: rows that belong nowhere, since their scope, time or name is null.
    """
    groups: list[Group] = []
    for (scope, key), values in folded:
        if scope is None or key is None:
            what = rule.scope if scope is None else ("the time of the window" if rule.windows else rule.name)
            raise TrackingError(
                f"{values['_rows']} rows belong to no substream: {what} is null in them. Drop or repair them before "
                "they are tracked, for example raw.where('… is not null')"
            )
        values.setdefault("_xor", 0)
        groups.append((rule.substream(scope, None if rule.windows else key, key if rule.windows else None), values))
    return groups


def add_groups(report: Report, segment: str, direction: Direction, groups: Sequence[Group]) -> None:
    """Puts counted rows into a report."""
    for (scope, name, end_time), values in groups:
        rows, xor = values["_rows"], values["_xor"]
        if direction == "passing":
            report.add(segment, scope, name, 0, sent=rows, received=rows, end_time=end_time)
        elif direction == "sent":
            report.add(segment, scope, name, xor, sent=rows, end_time=end_time)
        else:
            report.add(segment, scope, name, xor, received=rows, end_time=end_time)


@lru_cache(maxsize=16)
def _client(server: str, retry_for: float) -> TrackerClient:
    """One client for all tasks of a worker, so that they share its connection."""
    return TrackerClient(server, retry_for=retry_for)


@dataclass(frozen=True)
class ExecutorProbe:
    """Counts the rows of one partition as they pass, and reports them as one unit of the epoch.

    Attributes:
        server: the tracker's address.
        retry_for: seconds for which a tracker that cannot be reached is waited for, before the task fails.
        job: that is tracked.
        segment: whose elements pass here.
        direction: which way.
        rule: how rows fall into substreams.
        epoch: which (query, run, batch); None: as the task's own context says, in a query without `foreachBatch`.
        kept: told which units each partition has reported, in attempts that Spark keeps.
        seals: whether the query seals its batches: units are then each attempt's own.
        largest: what one report may have.
    """

    server: str
    retry_for: float
    job: str
    segment: str
    direction: Direction
    rule: Substreams
    epoch: BatchId | None = None
    kept: Accumulator[Units] | None = None
    seals: bool = False
    largest: Largest = _USUAL

    @property
    def place(self) -> str:
        """Its name within the query."""
        return f"{self.direction}:{self.segment}"

    def on(self, rows: DataFrame) -> DataFrame:
        """The same rows, counted on their way."""
        # A task that reads several partitions (``coalesce``) has one number, and they have one each.
        return rows.withColumn(_PARTITION, F.spark_partition_id()).mapInArrow(self, rows.schema)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counted: dict[Key, tuple[int, int]] = {}
        partition: int | None = None
        for batch in batches:
            if batch.num_rows:
                partition = batch.column(_PARTITION)[0].as_py()
            unite(counted, self._fold(batch))
            yield batch.drop_columns([_PARTITION])
        self._report(counted, partition)

    def _fold(self, batch: pa.RecordBatch) -> dict[Key, tuple[int, int]]:
        tracked = batch.column(TRACKER)
        labels = None if self.direction == "passing" else tracked.field("label")
        return fold_labels(tracked.field("scope"), tracked.field("end" if self.rule.windows else "name"), labels)

    def _report(self, counted: Mapping[Key, tuple[int, int]], partition: int | None) -> None:
        task = TaskContext.get()
        if task is None:
            raise UsageError("a probe runs inside a Spark task")
        batch = self.epoch or batch_of(task)
        if batch is None:
            raise UsageError(
                "an executor's probe has to know its batch: start the query with tracking.write_stream(…) or "
                "TrackedStream.writeStream"
            )
        query, run, epoch = batch
        place = f"{self.place}/{task.partitionId() if partition is None else partition}"
        units: tuple[str, ...] = ()
        if partition is not None:  # else it had no rows, and the task may have others under this number
            producer = _client(self.server, self.retry_for).producer(self.job, query, run, keep_apart=self.seals)
            report = producer.epoch(epoch)
            groups = groups_of(((key, {"_rows": rows, "_xor": xor}) for key, (rows, xor) in counted.items()), self.rule)
            add_groups(report, self.segment, self.direction, groups)
            unit = f"{place}#{task.taskAttemptId()}" if self.seals else place
            sent = report.report_in_pieces(unit, partial(split, largest=self.largest))
            units = tuple(name for name, _ in sent)
        if self.kept is not None:
            self.kept.add(
                {place: (task.taskAttemptId(), units)}
            )  # after the tracker's answer: what is kept has been reported
