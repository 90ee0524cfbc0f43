"""Probes: executors count the rows that pass by substream, and report them, instead of an aggregation on the driver.

A probe is an Arrow operator that the rows pass through. It reports when its input is exhausted, and fails the task if
the tracker does not answer. It must never report before that, nor change a row.

Each attempt of a task reports under a name of its own, and adds that to an accumulator. Spark adds up those of
successful attempts only, so what is in it when the batch's work is done is what counts: one attempt a partition, the
last one to succeed, as a stage that is run again replaces what it gave before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial, reduce
from operator import xor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam, TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.counting.groups import Key, add_groups, fold_labels, fold_table, groups_of, unite
from spark_client.counting.outbox import packed
from spark_client.errors import UsageError
from spark_client.fronts.front import IDENTITIES, Front, Promiser
from spark_client.plan.batches import BatchId
from spark_client.plan.streams import Direction
from spark_client.spark_internals.tasks import batch_of
from spark_client.trackers.jobclient import JobClient, JobProducer, Trackers
from spark_client.windows.substreams import Substreams
from tracker.client import TrackerUnavailable
from tracker.client.report import Largest, split
from tracker.contract.commands import Contents

if TYPE_CHECKING:
    from pyspark import SparkContext  # `pyspark-client` has none

_PARTITION = "_tracker_partition"
_USUAL = Largest()

Kept = tuple[int, tuple[str, ...], tuple[bytes, ...]]  #: an attempt, the units of its report, those it could not send
Units = dict[str, Kept]  #: by probe and partition


class _Latest(AccumulatorParam[Units]):
    def zero(self, value: Units) -> Units:  # noqa: ARG002
        return {}

    def addInPlace(self, value1: Units, value2: Mapping[str, Kept]) -> Units:  # noqa: N802
        merged = dict(value1)
        for place, (attempt, units, unsent) in value2.items():
            before, reported, left = merged.get(place, (attempt, (), ()))
            if before == attempt:  # a task can have several partitions, and give its own number to those without rows
                units, unsent = (*reported, *units), (*left, *unsent)
            merged[place] = attempt, units, unsent
        return merged


class Manifest:
    """Collector of the units of one query's batches, batch after batch.

    A query that does not seal uses it to find out whether all partitions of a batch have been read.

    >>> manifest = Manifest(spark.sparkContext)                                           # doctest: +SKIP
    >>> manifest.begin()                                                                  # doctest: +SKIP
    >>> manifest.units                                                                    # doctest: +SKIP
    ['received:clean/0#17', 'received:clean/1#18']
    """

    away = False  #: the tracker is known to be away: tasks do not call it

    def __init__(self, context: SparkContext) -> None:
        self.kept: Accumulator[Units] = context.accumulator({}, _Latest())  #: for the tasks, which only add to it

    def begin(self, away: bool = False) -> None:
        """Forget the units of the last batch, since another one begins.

        Args:
            away: whether the tracker is known to be away.
        """
        self.kept.value, self.away = {}, away

    @property
    def units(self) -> list[str]:
        """The units that have been kept since."""
        return sorted(unit for _, units, _ in self.kept.value.values() for unit in set(units))

    @property
    def unsent(self) -> list[bytes]:
        """The units that tasks could not send, as `packed` has made them."""
        return sorted(unit for _, _, unsent in self.kept.value.values() for unit in unsent)


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
class ExecutorProbe:
    """Counter of a partition's rows as they pass, which reports them as one unit of the epoch.

    Attributes:
        trackers: of the job; the task fails if one cannot be reached, unless the driver keeps its report.
        epoch: which (query, run, batch); None: that of the task's own context, in a query without `foreachBatch`.
        kept: collects the units that each partition has reported, in attempts that Spark keeps.
        seals: whether the query seals its batches: units are then each attempt's own.
        promises: what the tasks promise of the rows; None: the driver does, or nobody.
        keeps: whether the driver takes what cannot be sent.
        away: whether nobody tries, since the tracker is known to be away.
    """

    trackers: Trackers
    job: str
    segment: str
    direction: Direction
    rule: Substreams
    epoch: BatchId | None = None
    kept: Accumulator[Units] | None = None
    seals: bool = False
    largest: Largest = _USUAL
    promises: TaskPromises | None = None
    keeps: bool = False
    away: bool = False

    @property
    def place(self) -> str:
        """Its name within the query."""
        return f"{self.direction}:{self.segment}"

    def has_reported(self, partitions: int) -> bool:
        """Return whether so many partitions have reported, in attempts that Spark keeps; on the driver."""
        return self.kept is not None and all(f"{self.place}/{n}" in self.kept.value for n in range(partitions))

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
        counted: dict[Key, tuple[int, int]] = {}
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
        self._report(counted, seen, partition)

    def _report(
        self, counted: Mapping[Key, tuple[int, int]], seen: Mapping[Key, Mapping[str, Any]], partition: int | None
    ) -> None:
        task = TaskContext.get()
        if task is None:
            raise UsageError("a probe runs inside a Spark task")
        batch = self.epoch or batch_of(task)
        if batch is None:
            raise UsageError(
                "an executor's probe has to know its batch: start the query with tracking.write_stream(…) or "
                "TrackedStream.writeStream"
            )
        query, run, epoch = batch[:3]
        place = f"{self.place}/{task.partitionId() if partition is None else partition}"
        units, unsent = list[str](), list[bytes]()
        if partition is not None:  # else it had no rows, and the task may have others under this number
            producer = _client(self.trackers).producer(self.job, query, run, keep_apart=self.seals)
            report = producer.epoch(epoch)
            folded = ((key, {"_rows": rows, "_xor": xor, **seen.get(key, {})}) for key, (rows, xor) in counted.items())
            groups = groups_of(folded, self.rule)
            add_groups(report, self.segment, self.direction, groups, self.rule)
            if self.promises is not None:
                self.promises.promiser(groups).add_to(report)
            unit = f"{place}#{task.taskAttemptId()}" if self.seals else place
            pieces = list(report.pieces(unit, partial(split, largest=self.largest)))
            units = [name for name, _ in pieces]
            unsent = self._sent(producer, epoch, pieces)
        if self.kept is not None:  # after the tracker's answer: what is kept has been reported, or is the driver's
            self.kept.add({place: (task.taskAttemptId(), tuple(units), tuple(unsent))})

    def _sent(self, producer: JobProducer, epoch: int, pieces: Sequence[tuple[str, Contents]]) -> list[bytes]:
        """Send the pieces of a report, and return those that the driver has to keep."""
        if not self.away:
            try:
                for name, piece in pieces:
                    producer.deliver(epoch, piece, [name], False)
                return []
            except TrackerUnavailable:
                if not self.keeps:
                    raise
        return [packed(name, piece) for name, piece in pieces]
