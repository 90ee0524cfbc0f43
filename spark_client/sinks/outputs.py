"""Where a tracked query puts its results, so that a replay puts them there once.

An output is given the rows of an epoch, and again the same rows when the epoch is replayed. It returns what it has sent
on into a channel, to be reported in the same epoch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.errors import UsageError
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.outputs import BatchFunction, BatchId, Counted, Output, Sink
from spark_client.storage.directories import is_table_of, publish, sweep

_KEEP_NAMES: Final = ("parquet", "orc")
_INSTEAD: Final = (
    "Choose another format (parquet holds any results), other names, or .foreachBatch(…) and write there what the "
    "format can hold, by the key (scope, window, keys)"
)


class FileOutput:
    """A table of files: one directory ``epoch=N`` for each epoch that had results, published whole, once."""

    concurrent = True
    reads_all = True

    def __init__(self, path: Path, file_format: str, options: Mapping[str, str], partition_by: tuple[str, ...]) -> None:
        self._path = path
        self._format = file_format
        self._options = dict(options)
        self._partition_by = partition_by

    def check(self, schema: T.StructType, spark: SparkSession) -> None:
        """Has Spark write one row of nulls with these columns elsewhere: what it refuses now it would refuse at an end.

        Args:
            schema: of the results.
            spark: the session.

        Raises:
            UsageError: the format, its options or the partitions cannot hold them, or files would not give them back.
        """
        shown = f"format({self._format!r}), for results with the columns {', '.join(schema.fieldNames())}"
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
                found = spark.read.format(self._format).load(directory).columns if self._format in _KEEP_NAMES else None
            except Exception as error:
                text = str(error).partition("\n")[0]
                raise UsageError(f"{shown}: Spark cannot write them: {text}. {_INSTEAD}") from error
        if found is not None and sorted(found) != sorted([*schema.fieldNames(), "epoch"]):
            raise UsageError(f"{shown}: files of this format do not keep these names: they give {found}. {_INSTEAD}")

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        writer = rows.write.format(self._format).options(**self._options)
        return writer.partitionBy(*self._partition_by) if self._partition_by else writer

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        """Write rows, or find them written.

        Raises:
            UsageError: the table is another query's: its epochs would be taken for this one's.
        """
        if not is_table_of(self._path, batch.query):
            raise UsageError(
                f"{self._path} has the results of another query, or of this one with another checkpoint, whose epochs "
                "have the same numbers: give the query a path of its own"
            )
        publish(self._path / f"epoch={batch.epoch}", self._writer(rows).save)
        return {}

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return (self._path / f"epoch={epoch}").is_dir()

    def sweep(self, query: str) -> None:
        if self._path.is_dir() and is_table_of(self._path, query):
            sweep(self._path)


class ForeachBatchOutput:
    """A function of the user's, as for ``foreachBatch``. It is called again when an epoch is replayed."""

    concurrent = False
    reads_all = False

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        self._function(rows.drop(TRACKER), batch.epoch)
        return {}

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return False  # nobody is told how far it came; the next deployment calls it again with the same rows

    def sweep(self, query: str) -> None:
        pass


class SinkOutput:
    """A sink as the output of a query."""

    concurrent = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.reads_all = bool(getattr(sink, "reads_all", False))

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        self._sink.write(rows.drop(TRACKER), batch.query, batch.epoch)
        return {}

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return False  # as of a function

    def sweep(self, query: str) -> None:
        pass


class SeveralOutputs:
    """Several outputs of the same rows, written one after the other.

    Args:
        outputs: by name. What each keeps of its epochs it keeps under this name, so that two may share a database.
    """

    concurrent = False

    def __init__(self, outputs: Mapping[str, Output]) -> None:
        self._outputs = outputs
        self.reads_all = any(output.reads_all for output in outputs.values())

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        """Write them to each that has not got them. Nothing is sent on: none is a channel."""
        several = len(self._outputs) > 1
        rows = rows.persist() if several else rows
        try:
            for name, output in self._outputs.items():
                output.write(rows, BatchId(_named(batch.query, name), batch.run, batch.epoch), layout)
        finally:
            if several:
                rows.unpersist()
        return {}

    def begun(self, query: str, epoch: int) -> bool:
        return any(output.begun(_named(query, name), epoch) for name, output in self._outputs.items())

    def sweep(self, query: str) -> None:
        for name, output in self._outputs.items():
            output.sweep(_named(query, name))


def _named(query: str, name: str) -> str:
    """Return what one of several outputs knows its query by."""
    return f"{query}.{name}"
