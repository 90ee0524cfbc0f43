"""The channel of files: each row is received once.

It is a directory. The sending query publishes one directory of Parquet files for each of its epochs, whole or not at
all, and the first publication stands: a replay finds it. The receiving query's stream is only the list of published
epochs (`epochs`); the rows themselves are read natively, with columns pruned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import check_types, parallelism
from spark_client.destinations.channel import Channel, Published, epoch_name
from spark_client.destinations.epochs import EpochFolders, epochs_in, epochs_of
from spark_client.plan.layouts import DerivedLayout
from spark_client.spark_internals.tasks import arrow_schema, passes_through_arrow
from spark_client.storage.folder import Folder

_AT_ONCE: Final = 10_000  #: rows that a task holds, and hands to Spark, at once


class FileChannel(Channel):
    """A channel of files, as `Tracking.channel` declares it: one receiving query, any number of senders.

    Args:
        keep: whether an epoch's files stay when they have been received.
    """

    exact = True

    def __init__(self, segment: str, path: Folder, keep: bool = False) -> None:
        super().__init__(segment, path)
        self._keep = keep

    def __repr__(self) -> str:
        return f"FileChannel({self.segment!r}, {str(self.path)!r})"

    def write(
        self, rows: DataFrame, sender: str, epoch: int, ordinal: tuple[str, ...], layout: DerivedLayout | None = None
    ) -> Published:
        return self.publish_children(self.path / sender, epoch, rows, ordinal, layout)

    def begun(self, sender: str, epoch: int) -> bool:
        return (self.path / sender).is_published(epoch_name(epoch))

    def sweep(self, sender: str) -> None:
        (self.path / sender).sweep()

    def stream(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        return epochs_of(spark, self.segment, _Folders(self.path), max_epochs, self._keep)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:  # noqa: ARG002
        published = epochs_in(batch)
        if not published:
            return None
        return self.in_files(
            batch.sparkSession, [self.path / sender / epoch_name(number) for sender, number in published]
        )

    def native(self, spark: SparkSession, max_epochs: int | None) -> DataFrame:
        return self.of_files(lambda schema: _rows_of(self.stream(spark, max_epochs), self.path, schema))


class _Folders(EpochFolders):
    """A folder for each epoch."""

    def published(self, sender: str, after: int) -> list[int]:
        names = (self._folder / sender).published()
        return [epoch for name in names if name.isdigit() and (epoch := int(name)) > after]

    def discard(self, sender: str, before: int) -> None:
        for epoch in self.published(sender, -1):
            if epoch < before:
                (self._folder / sender).unpublish(epoch_name(epoch))


def _rows_of(epochs: DataFrame, folder: Folder, schema: T.StructType) -> DataFrame:
    """Return the rows in the files of epochs, a task for each of some files.

    Spark makes the plan of such a query once, so that it cannot be given a batch's directories; and a stream of files
    of Spark's own remembers each file for ever, ignores those that are a week older than the newest, and does not tell
    which it is done with.

    Args:
        epochs: ``sender``, ``epoch``: a stream.
        folder: of the channel: with a folder for each sender, and in it one for each epoch.
    """
    found = epochs.mapInArrow(_Finds(folder), "file string")
    spread = found.repartition(parallelism(epochs.sparkSession))
    return spread.mapInArrow(_Reads(folder, _in_arrow(schema)), schema)


@dataclass(frozen=True)
class _Finds:
    """The files of epochs."""

    folder: Folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            folders = [f"{row['sender']}/{epoch_name(row['epoch'])}" for row in batch.to_pylist()]
            found = [f"{each}/{file}" for each in folders for file in (self.folder / each).files()]
            yield pa.RecordBatch.from_pydict({"file": pa.array(found, pa.string())})


@dataclass(frozen=True)
class _Reads:
    """The rows of files; columns that a file is without are null."""

    folder: Folder
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for name in batch.column(0).to_pylist():
                path = self.folder.path
                file = path / name if path is not None else pa.BufferReader(self.folder.content(name))
                # Spark writes Parquet's oldest form of timestamps, unless it is set otherwise.
                with pq.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
                    for rows in opened.iter_batches(_AT_ONCE):
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
