"""The rows of epochs that are directories of Parquet files, read by tasks: for queries whose plan Spark makes once.

Such a query cannot be given a batch's directories, and a stream of files of Spark's own remembers each file for ever,
ignores those that are a week older than the newest, and does not tell which it is done with.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError
from spark_client.spark_internals.arrow import arrow_schema, passes_through_arrow

_AT_ONCE: Final = 10_000  #: rows that a task holds, and hands to Spark, at once


def rows_of(epochs: DataFrame, path: Path, schema: T.StructType) -> DataFrame:
    """Return the rows in the files of epochs, a task for each of some files.

    Args:
        epochs: ``sender``, ``epoch``: a stream.
        path: of the channel: with a directory for each sender, and in it one for each epoch.
        schema: of the files.

    Raises:
        UsageError: columns that tasks in Python cannot read.
    """
    found = epochs.mapInArrow(_Finds(path), "file string")
    spread = found.repartition(epochs.sparkSession.sparkContext.defaultParallelism)
    return spread.mapInArrow(_Reads(_in_arrow(schema)), schema)


@dataclass(frozen=True)
class _Finds:
    """The files of epochs."""

    path: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            directories = [self.path / row["sender"] / f"{row['epoch']:012d}" for row in batch.to_pylist()]
            found = sorted(str(file) for each in directories for file in each.iterdir() if file.name[0] not in "_.")
            yield pa.RecordBatch.from_pydict({"file": pa.array(found, pa.string())})


@dataclass(frozen=True)
class _Reads:
    """The rows of files; columns that a file is without are null."""

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
    for field in schema.fields:
        if not passes_through_arrow(field.dataType):
            raise UsageError(
                f"with_watermark: the column {field.name!r} is {field.dataType.simpleString()}, which tasks in Python "
                "cannot read from files: send it as text (.withColumn(…, F.col(…).cast('string'))), or drop it"
            )
    return arrow_schema(schema)
