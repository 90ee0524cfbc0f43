"""Tables of files in a format of Spark's: one directory ``epoch=N`` for each epoch that had results, published once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.destinations.destination import EarlyOutput, Place, Written
from spark_client.errors import UsageError
from spark_client.plan.batches import BatchId, Counted
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.releases import ReleasePlan
from spark_client.storage.directories import (
    check_store,
    claim_table,
    is_table_of,
    local_path,
    publish,
    sweep,
    write_numbered,
    write_parquet,
)

_KEEP_NAMES: Final = ("parquet", "orc")
_INSTEAD: Final = (
    "Choose another format (parquet holds any results), other names, or .foreachBatch(…) and write there what the "
    "format can hold, by the key (scope, window, keys)"
)


class FileDestination(Place):
    """A table of files. Early results are beside it, in directories of Parquet files of which the newest one counts.

    Args:
        to: the table; its options are those of Spark's writer.
    """

    concurrent = True
    reads_all = True
    takes_all = True

    def __init__(self, to: Written) -> None:
        self._to = to
        self._path = local_path(to.place, "the path of the results,")

    def check(self, schema: T.StructType, release: ReleasePlan | None, spark: SparkSession) -> None:  # noqa: ARG002
        """Have Spark write one row of nulls with these columns elsewhere, to find what it would refuse at an end.

        Raises:
            UsageError: the format, its options or the partitions cannot hold such rows, or files would not give them
                back; or a directory is on a file system that cannot publish whole.
        """
        check_store(self._path, "the path of the results,")
        if self._to.early is not None:
            check_store(self._to.early, "early_path")
        shown = f"format({self._to.file_format!r}), for results with the columns {', '.join(schema.fieldNames())}"
        reserved = [name for name in schema.fieldNames() if name.lower() == "epoch"]
        if reserved:
            raise UsageError(
                f"{shown}: each batch's results are in a directory epoch=N, which readers take for a column, and not "
                f"{reserved[0]!r} of the results: call it otherwise, with .alias('…')"
            )
        row = spark.range(1).select(*[F.lit(None).cast(f.dataType).alias(f.name) for f in schema.fields])
        self._path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="_check.", dir=self._path) as directory:
            try:
                self._writer(row).save(f"{directory}/epoch=0")
                found = (
                    spark.read.format(self._to.file_format).load(directory).columns
                    if self._to.file_format in _KEEP_NAMES
                    else None
                )
            except Exception as error:
                text = str(error).partition("\n")[0]
                raise UsageError(f"{shown}: Spark cannot write them: {text}. {_INSTEAD}") from error
        if found is not None and sorted(found) != sorted([*schema.fieldNames(), "epoch"]):
            raise UsageError(f"{shown}: files of this format do not keep these names: they give {found}. {_INSTEAD}")

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        writer = rows.write.format(self._to.file_format).options(**self._to.options)
        return writer.partitionBy(*self._to.partition_by) if self._to.partition_by else writer

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        """Write rows, or find them written.

        Raises:
            UsageError: the table is another query's: its epochs would be taken for this one's.
        """
        claim_table(self._path, batch.query, "results")
        publish(self._path / f"epoch={batch.epoch}", self._writer(rows).save)
        return {}

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return (self._path / f"epoch={epoch}").is_dir()

    def sweep(self, query: str) -> None:
        if self._path.is_dir() and is_table_of(self._path, query):
            sweep(self._path)

    def directories(self) -> Iterator[tuple[str, Path]]:
        yield "the path of the results", self._path
        if self._to.early is not None:
            yield "early_path", self._to.early

    def early(self) -> EarlyOutput | None:
        return None if self._to.early is None else self

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:  # noqa: ARG002
        assert self._to.early is not None, "see early()"
        write_numbered(self._to.early, as_of, write_parquet(rows))
