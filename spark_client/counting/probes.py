"""Counts that executors report: of the rows that pass, or of substreams that Spark has counted.

In a query that this package runs, Spark counts rows by a native aggregation, and the tasks that have its groups report
them (`TaskReports`). A query of Spark's own operators has one pass over its rows: there each partition's rows go
through a probe, an Arrow operator that counts them on their way (`ExecutorProbe`).

A task reports when its input is exhausted, never before that, and fails if the tracker does not answer. Each reports a
unit of its own, so another attempt of the task takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from operator import xor
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.counting.folding import Folded, Key, fold_labels, unite
from spark_client.counting.groups import add_groups, counted, fold_table, groups_in, groups_of
from spark_client.counting.outbox import packed
from spark_client.errors import UsageError
from spark_client.fronts.front import IDENTITIES, Front, Group, Promiser
from spark_client.plan.batches import BatchId
from spark_client.plan.streams import Direction
from spark_client.spark_internals.tasks import batch_of
from spark_client.trackers import JobClient, Trackers
from spark_client.windows.substreams import Substreams
from tracker.client import TrackerUnavailable
from tracker.client.report import Largest, Report, split

_PARTITION = "_tracker_partition"
REPORTED: Final = "unit string, unsent binary"  #: what a task gives back for each unit


@lru_cache(maxsize=16)
def _client(trackers: Trackers) -> JobClient:
    """Return one client for all tasks of a worker, so that they share its connection."""
    return trackers.client()


@dataclass(frozen=True)
class TaskPromises:
    """The promises that tasks make for a source, of the rows that pass: they ride in the unit that counts the rows.

    Attributes:
        values: what the front needs of each row; each is in a column of this name.
        promiser: what makes promises of the greatest of each substream, and of the XOR of identities.
    """

    values: tuple[str, ...]
    promiser: Promiser

    @classmethod
    def of(cls, front: Front) -> TaskPromises:
        """Return those of a front that is bound to its source."""
        return cls(tuple(front.values()), front.promiser)

    @property
    def columns(self) -> list[str]:
        """The columns that rows have for it."""
        return [f"{TRACKER}{name}" for name in self.values]

    def see(self, seen: dict[Key, dict[str, Any]], batch: pa.RecordBatch, scopes: pa.Array, keys: pa.Array) -> None:
        """Keep the greatest values of each substream, and the XOR of identities."""
        if not self.values or not batch.num_rows:
            return
        columns = {name: batch.column(column) for name, column in zip(self.values, self.columns, strict=True)}
        table = pa.table({"_scope": scopes, "_key": keys, "_rows": np.ones(batch.num_rows, np.int64), **columns})
        for key, values in fold_table(table, None, self.values).items():
            had = seen.setdefault(key, {})
            for name in self.values:
                both = [each for each in (had.get(name), values[name]) if each is not None]
                had[name] = reduce(xor, both) if name == IDENTITIES else max(both, default=None)


@dataclass(frozen=True)
class Reporting:
    """A task's way to the tracker.

    Attributes:
        trackers: the addresses of the job's trackers.
        job: the name by which they know the job.
        largest: what one report may have.
        keep_apart: whether units are each attempt's own, as a query that seals its batches needs them.
        keeps: whether the driver takes what cannot be sent; else the task fails.
    """

    trackers: Trackers
    job: str
    largest: Largest
    keep_apart: bool = False
    keeps: bool = False

    def send(
        self,
        batch: tuple[str, str, int],
        unit: str,
        fill: Callable[[Report], object],
        away: bool = False,
    ) -> list[tuple[str, bytes | None]]:
        """Send one unit of a batch's report, in as many messages as it takes.

        Args:
            batch: its query, run and epoch.
            fill: puts the counts and promises into the report.
            away: whether the tracker is known to be away, so that nobody tries to call.

        Returns:
            The names under which it counts, each with its content as `packed` has it where the driver has to keep it.

        Raises:
            TrackerUnavailable: the tracker does not answer, and nobody keeps the report.
        """
        query, run, epoch = batch
        producer = _client(self.trackers).producer(self.job, query, run, keep_apart=self.keep_apart)
        report = producer.epoch(epoch)
        fill(report)
        pieces = list(report.pieces(unit, partial(split, largest=self.largest)))
        if not away:
            try:
                for name, piece in pieces:
                    producer.deliver(epoch, piece, [name], False)
                return [(name, None) for name, _ in pieces]
            except TrackerUnavailable:
                if not self.keeps:
                    raise
        return [(name, packed(name, piece)) for name, piece in pieces]


@dataclass(frozen=True)
class TaskReport:
    """Operator of a task that reports its groups, and gives back the names of its units."""

    reporting: Reporting
    batch: tuple[str, str, int]
    segment: str
    direction: Direction
    rule: Substreams
    away: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups = _in_order(groups_in((group for batch in batches for group in batch.to_pylist()), self.rule))
        if not groups:
            return
        task = _task()
        unit = f"{self.direction}:{self.segment}/{task.partitionId()}"
        if self.reporting.keep_apart:
            unit = f"{unit}#{task.taskAttemptId()}"

        def fill(report: Report) -> None:
            add_groups(report, self.segment, self.direction, groups, self.rule)

        names, unsent = zip(*self.reporting.send(self.batch, unit, fill, self.away), strict=True)
        yield pa.record_batch([pa.array(names, pa.string()), pa.array(unsent, pa.binary())], ["unit", "unsent"])


@dataclass
class TaskReports:
    """Counting of one query's rows by Spark, whose tasks report it, batch after batch.

    Attributes:
        units: the names under which the batch in hand was reported, by attempts that Spark has kept.
        unsent: the units that could not be sent, as `packed` has made them.
    """

    reporting: Reporting
    rule: Substreams
    away: bool = False
    units: list[str] = field(default_factory=list)
    unsent: list[bytes] = field(default_factory=list)

    def begin(self, away: bool) -> None:
        """Forget the units of the last batch, since another one begins.

        Args:
            away: whether the tracker is known to be away, so that no task tries to call it.
        """
        self.units, self.unsent, self.away = [], [], away

    def report(self, rows: DataFrame, batch: BatchId, segment: str, direction: Direction) -> None:
        """Count tracked rows by substream, and have the tasks that have the groups report them.

        Raises:
            TrackingError: rows belong to no substream.
        """
        groups = counted(rows, self.rule, {}, labels=direction != "passing")
        reports = TaskReport(self.reporting, batch[:3], segment, direction, self.rule, self.away)
        for unit, unsent in groups.mapInArrow(reports, REPORTED).collect():
            self.units.append(unit)
            self.unsent += [] if unsent is None else [bytes(unsent)]


@dataclass(frozen=True)
class ExecutorProbe:
    """Counter of a partition's rows as they pass, which reports them as one unit of the batch that its task works for.

    Attributes:
        promises: what the tasks promise of the rows; None: nobody does, or the driver.
    """

    reporting: Reporting
    segment: str
    direction: Direction
    rule: Substreams
    promises: TaskPromises | None = None

    def on(self, rows: DataFrame, values: Mapping[str, Column] | None = None) -> DataFrame:
        """Return the same rows, counted on their way.

        Args:
            rows: a DataFrame with the column ``_tracker``.
            values: what `promises` needs of each row, by name.
        """
        # A task that reads several partitions (``coalesce``) has one number, and they have one each.
        own = {
            _PARTITION: F.spark_partition_id(),
            **{f"{TRACKER}{name}": each for name, each in (values or {}).items()},
        }
        return rows.withColumns(own).mapInArrow(self, rows.schema)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counted: Folded = {}
        seen: dict[Key, dict[str, Any]] = {}
        partition: int | None = None
        own = [_PARTITION, *([] if self.promises is None else self.promises.columns)]
        for batch in batches:
            if batch.num_rows:
                partition = batch.column(_PARTITION)[0].as_py()
            tracked = batch.column(TRACKER)
            scopes, keys = tracked.field("scope"), tracked.field(self.rule.key_field)
            unite(counted, fold_labels(scopes, keys, None if self.direction == "passing" else tracked.field("label")))
            if self.promises is not None:
                self.promises.see(seen, batch, scopes, keys)
            yield batch.drop_columns(own)
        if partition is not None:
            self._report(counted, seen, partition)

    def _report(
        self, counted: Mapping[Key, tuple[int, int]], seen: Mapping[Key, Mapping[str, Any]], partition: int
    ) -> None:
        batch = batch_of(_task())
        if batch is None:
            raise UsageError(
                "an executor's probe has to know its batch: start the query with tracking.write_stream(…) or "
                "TrackedStream.writeStream"
            )
        folded = ((key, {"_rows": rows, "_xor": xor, **seen.get(key, {})}) for key, (rows, xor) in counted.items())
        groups = _in_order(groups_of(folded, self.rule))

        def fill(report: Report) -> None:
            add_groups(report, self.segment, self.direction, groups, self.rule)
            if self.promises is not None:
                self.promises.promiser(groups).add_to(report)

        self.reporting.send(batch, f"{self.direction}:{self.segment}/{partition}", fill)


def _in_order(groups: list[Group]) -> list[Group]:
    """Return groups as each attempt of a task has them, so that each cuts a large report at the same places.

    Rows that were exchanged arrive in another order each time. A piece that an earlier attempt has sent counts, and of
    this attempt only the others do.
    """
    return sorted(groups, key=lambda group: group[0][:2])


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise UsageError("a probe runs inside a Spark task")
    return task
