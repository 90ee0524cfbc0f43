"""Delta tables: each epoch is one commit, which Delta itself takes once.

A commit carries the query's id and the number of its epoch as a transaction identifier of Delta's protocol (``txn``). A
replay finds its epoch in the table and commits nothing, and of two drivers that write one epoch at the same time, one
of them a zombie, Delta refuses the second.

Source: Delta transaction protocol, "Transaction Identifiers".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from spark_client.columns import quoted
from spark_client.destinations.completeness import COMMITS, delta_notes
from spark_client.destinations.lake import LakeTable


class DeltaTable(LakeTable):
    """A Delta table that results or receipts are written to.

    Args:
        table: a path or URI, which has a slash; or a name in a catalog. A table that is not there is created at the
            start of the query.
        options: of Delta's writer, such as ``mergeSchema``.
        partition_by: columns that partition a table that is created.
        key: columns by which a row replaces the one that is there; empty: rows are added, each epoch once.

    >>> daily.writeStream.sink(DeltaTable("s3a://lake/daily")).option(                        # doctest: +SKIP
    ...     "checkpointLocation", "/cp/daily").start()
    """

    format = "delta"
    raced = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
    note_setting = "spark.databricks.delta.commitInfo.userMetadata"

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        return reader.load(self._table) if "/" in self._table else reader.table(self._table)

    def _create(self, rows: DataFrame) -> None:
        self._save(self._writer(rows).mode("ignore"))

    def _append(self, rows: DataFrame, query: str, epoch: int, note: str) -> None:
        # Delta compares versions, and epochs of what is written between two batches go down.
        writer, version = (query, epoch) if epoch >= 0 else (f"{query}/drain", -epoch)
        commit = self._writer(rows).mode("append").option("txnAppId", writer).option("txnVersion", version)
        self._save(commit.option("userMetadata", note))

    def commit_notes(self, spark: SparkSession) -> Iterable[Any]:
        commits = spark.sql(f"DESCRIBE HISTORY {self._in_sql()} LIMIT {COMMITS}").select("operation", "userMetadata")
        return delta_notes(commit.asDict() for commit in commits.collect())

    def _in_sql(self) -> str:
        return f"delta.{quoted(self._table)}" if "/" in self._table else self._table

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        writer = rows.write.format("delta").options(**self._options)
        return writer.partitionBy(*self._partition_by) if self._partition_by else writer

    def _save(self, writer: DataFrameWriter) -> None:
        if "/" in self._table:
            writer.save(self._table)
        else:
            writer.saveAsTable(self._table)
