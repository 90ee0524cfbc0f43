"""The channel of files: each row is received once.

It is a directory. The sending query publishes one directory of Parquet files for each of its epochs, whole or not at
all, and the first publication stands: a replay finds it. The receiving query's stream is only the list of published
epochs (`epochs`); the rows themselves are read natively, with columns pruned.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import check_types, parallelism
from spark_client.destinations.channel import Channel
from spark_client.destinations.epochs import EpochStore, epochs_of
from spark_client.plan.layouts import DerivedLayout
from spark_client.spark_internals.tasks import arrow_schema, passes_through_arrow
from spark_client.storage.directories import remove, sweep

_AT_ONCE: Final = 10_000  #: rows that a task holds, and hands to Spark, at once


class FileChannel(Channel):
    """A channel of files, as `Tracking.channel` declares it: one receiving query, any number of senders.

    Args:
        keep: whether an epoch's files stay when they have been received.
    """

    exact = True

    def __init__(self, segment: str, path: str | os.PathLike[str], keep: bool = False) -> None:
        super().__init__(segment, path)
        self._keep = keep

    def __repr__(self) -> str:
        return f"FileChannel({self.segment!r}, {str(self.path)!r})"

    def write(
        self, rows: DataFrame, sender: str, epoch: int, ordinal: tuple[str, ...], layout: DerivedLayout | None = None
    ) -> Path:
        target = self.path / sender / f"{epoch:012d}"
        self.publish_children(target, rows, ordinal, layout)
        return target

    def begun(self, sender: str, epoch: int) -> bool:
        return (self.path / sender / f"{epoch:012d}").is_dir()

    def sweep(self, sender: str) -> None:
        sweep(self.path / sender)

    def stream(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        return epochs_of(spark, self.segment, _Directories(self.path), max_epochs, self._keep)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:  # noqa: ARG002
        published = [(row["sender"], row["epoch"]) for row in batch.collect() if row["sender"] is not None]
        if not published:
            return None
        return self.in_files(
            batch.sparkSession, [self.path / sender / f"{number:012d}" for sender, number in published]
        )

    def native(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        return self.of_files(lambda schema: _rows_of(self.stream(spark, max_epochs), self.path, schema))


class _Directories(EpochStore):
    """A directory for each sender, and in it one for each epoch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def senders(self) -> list[str]:
        try:
            with os.scandir(self._path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir() and entry.name[0] not in "_.")
        except FileNotFoundError:
            return []

    def published(self, sender: str, after: int) -> list[int]:
        try:
            names = os.listdir(self._path / sender)
        except FileNotFoundError:
            return []
        return sorted(epoch for name in names if name.isdigit() and (epoch := int(name)) > after)

    def discard(self, sender: str, before: int) -> None:
        for epoch in self.published(sender, -1):
            if epoch < before:
                remove(self._path / sender / f"{epoch:012d}")


def _rows_of(epochs: DataFrame, path: Path, schema: T.StructType) -> DataFrame:
    """Return the rows in the files of epochs, a task for each of some files.

    Spark makes the plan of such a query once, so that it cannot be given a batch's directories; and a stream of files
    of Spark's own remembers each file for ever, ignores those that are a week older than the newest, and does not tell
    which it is done with.

    Args:
        epochs: ``sender``, ``epoch``: a stream.
        path: of the channel: with a directory for each sender, and in it one for each epoch.

    Raises:
        UsageError: columns that tasks in Python cannot read.
    """
    found = epochs.mapInArrow(_Finds(path), "file string")
    spread = found.repartition(parallelism(epochs.sparkSession))
    return spread.mapInArrow(_Reads(_in_arrow(schema)), schema)


@dataclass(frozen=True)
class _Finds:
    """The files of epochs."""

    path: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            directories = [self.path / row["sender"] / f"{row['epoch']:012d}" for row in batch.to_pylist()]
            found = sorted(str(file) for each in directories for file in each.iterdir() if file.name[0] not in "_.")
            yield pa.RecordBatch.from_pydict({"file": pa.array(found, pa.string())})


@dataclass(frozen=True)
class _Reads:
    """The rows of files; columns that a file is without are null."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                # Spark writes Parquet's oldest form of timestamps, unless told otherwise.
                with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
                    for rows in file.iter_batches(_AT_ONCE):
                        yield self._conformed(rows)

    def _conformed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        stored = set(rows.schema.names)
        columns = [
            rows.column(field.name).cast(field.type) if field.name in stored else pa.nulls(len(rows), field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _in_arrow(schema: T.StructType) -> pa.Schema:
    """Return a schema as Spark takes it from tasks."""
    reason = (
        "which tasks in Python cannot read from files: send it as text (.withColumn(…, F.col(…).cast('string'))), or "
        "drop it"
    )
    check_types(schema.fields, passes_through_arrow, "with_watermark", reason)
    return arrow_schema(schema)
