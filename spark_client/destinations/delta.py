"""Delta tables: each epoch is one commit, which Delta itself takes once.

A commit carries the query's id and the number of its epoch as a transaction identifier of Delta's protocol (``txn``). A
replay finds its epoch in the table and commits nothing, and of two drivers that write one epoch at the same time, one
of them a zombie, Delta refuses the second.

Source: Delta transaction protocol, "Transaction Identifiers".
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from spark_client.columns import quoted
from spark_client.destinations.completeness import COMMITS, delta_notes
from spark_client.destinations.lake import LakeTable
from spark_client.destinations.lineage import Commit, Line, Mark


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
    undo = "RESTORE TABLE {} TO VERSION AS OF {}"
    with_a_key = ("delta.", "mergeSchema")  # properties of a table that is created, and new columns
    _last: int | None = None  # commit of the session at the last look

    def stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        return reader.load(self._table) if "/" in self._table else reader.table(self._table)

    def _create(self, rows: DataFrame) -> None:
        self._save(self._writer(rows).mode("ignore"))

    def _append(self, rows: DataFrame, query: str, epoch: int, note: str) -> None:
        line = None
        if self.marks is not None and (line := self._without(rows.sparkSession, query, epoch)) is None:
            return
        commit = self._writer(self._fitted(rows)).mode("append").option("userMetadata", note)
        writer, version = _transaction(line, query, epoch)
        self._save(commit.option("txnAppId", writer).option("txnVersion", version))

    def _once(self, line: Line, query: str, epoch: int) -> tuple[str, dict[str, str]]:
        writer, version = _transaction(line, query, epoch)
        prefix = "spark.databricks.delta.write.txn"
        return "true", {f"{prefix}AppId": writer, f"{prefix}Version": str(version)}

    def _look_back(self, spark: SparkSession, query: str) -> Line:
        self._last = _last_commit(spark)
        return super()._look_back(spark, query)

    def _with_commit(self, spark: SparkSession, query: str, epoch: int) -> Line | None:
        before, number = self._seen, _last_commit(spark)
        if number == self._last or not before.commits or number != before.commits[0].number + 1:
            return None  # there is none, or others have committed meanwhile
        own = Commit(number, before.commits[0].at, query, epoch, in_line=True)  # its time, or a little less
        return replace(before, commits=[own, *before.commits])

    def commit_notes(self, spark: SparkSession) -> Iterable[Any]:
        commits = spark.sql(f"DESCRIBE HISTORY {self._in_sql()} LIMIT {COMMITS}").select("operation", "userMetadata")
        return delta_notes(commit.asDict() for commit in commits.collect())

    def _line(self, spark: SparkSession, since: Mark | None) -> Line:
        note = "get_json_object(userMetadata, '$.{}')"
        columns = (
            "version",
            "unix_micros(timestamp)",
            note.format("query"),
            f"cast({note.format('epoch')} as bigint)",
            "if(operation = 'RESTORE', operationParameters, null) back",
            "unix_micros(try_cast(operationParameters['timestamp'] as timestamp)) back_to",
            "operation like '%REPLACE TABLE%' as replaced",
        )
        # Mostly nobody else writes: then the newest two are the query's own.
        for limit in ("",) if since is None else ("LIMIT 2", f"LIMIT {COMMITS}", ""):
            history = spark.sql(f"DESCRIBE HISTORY {self._in_sql()} {limit}").selectExpr(*columns).collect()
            if since is not None and history[-1].version <= since.number:
                break
        commits, present, restored = [], history[0].version, 0
        for number, at, query, epoch, back, back_to, replaced in history:
            commits.append(Commit(number, at, query, epoch, in_line=number <= present))
            if number > present or (back is None and not replaced):
                continue
            restored = max(restored, number)
            older = (each.version for each in history if back_to is not None and each[1] <= back_to)
            if replaced or back["version"] is None:
                present = max(older, default=-1)
            else:
                present = int(back["version"])
        return Line(commits, history[-1].version == 0, restored)

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


def _last_commit(spark: SparkSession) -> int | None:
    """Return the version that the last commit of the session has made, of any table; None: that is hidden."""
    with suppress(PySparkException):  # a platform may keep settings to itself
        return int(spark.conf.get("spark.databricks.delta.lastCommitVersionInSession", None) or -1)
    return None


def _transaction(line: Line | None, query: str, epoch: int) -> tuple[str, int]:
    """Return the identifier and the version with which Delta takes an epoch once."""
    # Identifiers outlive a RESTORE, and would pass over epochs that it has taken away.
    writer = query if line is None or not line.restored else f"{query}/{line.restored}"
    # Delta compares versions, and epochs of what is written between two batches go down.
    return (writer, epoch) if epoch >= 0 else (f"{writer}/drain", -epoch)
