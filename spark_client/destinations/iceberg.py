"""Iceberg tables: each epoch is one commit, which the catalog takes once.

Two columns of the table name the query and the epoch that a row is of. An epoch is an ``overwrite`` of the rows with
its own query and number, of which there are none at first: a replay finds them, and commits nothing. The commit is
valid only if nobody has added such rows since the snapshot that was looked at, so of two drivers that write one epoch
at the same time, one of them a zombie, the catalog refuses the second.

Source: Iceberg table specification, "Optimistic Concurrency", and its isolation level ``serializable``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import named
from spark_client.destinations.completeness import COMMITS, NOTE
from spark_client.destinations.lake import WRITER, LakeTable, of_epoch
from spark_client.errors import UsageError


class IcebergTable(LakeTable):
    """An Iceberg table that results or receipts are written to.

    Args:
        table: its name in a catalog. A table that is not there is created at the start of the query; one that is there
            needs the columns ``_query string, _epoch bigint`` beside those of the rows, unless it has a key.
        options: of Iceberg's writer, such as ``target-file-size-bytes``.
        partition_by: columns that partition a table that is created.
        key: columns by which a row replaces the one that is there; empty: rows are added, each epoch once.

    >>> daily.writeStream.sink(IcebergTable("lake.shop.daily")).option(                       # doctest: +SKIP
    ...     "checkpointLocation", "/cp/daily").start()
    """

    format = "iceberg"
    raced = "Found conflicting files"
    note_setting = f"spark.sql.iceberg.snapshot-property.{NOTE}"

    def rows(self, spark: SparkSession) -> DataFrame:
        spark.catalog.refreshTable(self._table)  # a session keeps a table for half a minute
        return super().rows(spark)

    def stream(self, spark: SparkSession) -> DataFrame:  # noqa: ARG002
        raise UsageError(
            f"Iceberg table {self._table}: Iceberg's stream refuses the commits by which an epoch is taken once, so "
            "Spark's own stateful operators cannot read it (with_watermark): take a DeltaTable, or a channel of files"
        )

    def _create(self, rows: DataFrame) -> None:
        if not rows.sparkSession.catalog.tableExists(self._table):
            writer = rows.writeTo(self._table).using("iceberg")
            (writer.partitionedBy(*map(named, self._partition_by)) if self._partition_by else writer).create()

    def _append(self, rows: DataFrame, query: str, epoch: int, note: str) -> None:
        own = (F.col(WRITER[0]) == query) & (F.col(WRITER[1]) == epoch)
        snapshot = self._snapshot(rows.sparkSession)
        if snapshot is not None and self._has(rows.sparkSession, snapshot, own):
            return
        commit = of_epoch(rows, query, epoch).writeTo(self._table).options(**self._options)
        commit = commit.option("isolation-level", "serializable")
        commit = commit.option(f"snapshot-property.{NOTE}", note)
        if snapshot is not None:
            commit = commit.option("validate-from-snapshot-id", snapshot)
        commit.overwrite(own)

    def _merge(self, rows: DataFrame, replaced: str, note: str) -> None:
        rows.sparkSession.catalog.refreshTable(self._table)
        super()._merge(rows, replaced, note)

    def commit_notes(self, spark: SparkSession) -> Iterable[Any]:
        spark.catalog.refreshTable(self._table)
        snapshots = spark.table(f"{self._table}.snapshots").select("snapshot_id", F.col("summary")[NOTE].alias("note"))
        line = spark.table(f"{self._table}.history").where("is_current_ancestor")  # the others were rolled back
        commits = line.join(snapshots, "snapshot_id").orderBy(F.desc("made_current_at")).limit(COMMITS)
        return [note for (note,) in commits.select("note").collect()]

    def _in_sql(self) -> str:
        return self._table

    def _own(self, rows: DataFrame) -> DataFrame:
        return of_epoch(rows, "", 0)

    def _snapshot(self, spark: SparkSession) -> str | None:
        """Return the table's newest snapshot; None: the table has none yet."""
        spark.catalog.refreshTable(self._table)
        found = spark.table(f"{self._table}.refs").where("name = 'main'").select("snapshot_id").collect()
        return str(found[0][0]) if found else None

    def _has(self, spark: SparkSession, snapshot: str, own: Column) -> bool:
        rows = spark.read.option("versionAsOf", snapshot).table(self._table)
        return not rows.where(own).limit(1).isEmpty()
