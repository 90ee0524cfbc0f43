"""Iceberg tables: each epoch is one commit, which the catalog takes once.

Two columns of the table name the query and the epoch that a row is of. An epoch is an ``overwrite`` of the rows with
its own query and number, of which there are none at first: a replay finds them, and commits nothing. The commit is
valid only if nobody has added such rows since the snapshot that was looked at, so of two drivers that write one epoch
at the same time, one of them a zombie, the catalog refuses the second.

Such an overwrite is not possible where a file has rows of several queries, as ``rewrite_data_files`` makes them, and no
stream of Iceberg's reads it. A ``MERGE`` whose condition is that query and epoch has the same guarantee, and is an
append to all readers. It costs a join, so it is for those tables, and for channels.

Source: Iceberg table specification, "Optimistic Concurrency", and its isolation level ``serializable``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER, named, quoted, text_in_sql
from spark_client.destinations.completeness import COMMITS, NOTE
from spark_client.destinations.lake import WRITER, LakeTable, of_epoch
from spark_client.destinations.lineage import Commit, Line, Mark

_RACED: Final = "another driver has committed the epoch"
_MIXED: Final = "Cannot delete file where some, but not all, rows match filter"
_SPREAD: Final = "_tracker_spread"


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
    raced = ("Found conflicting files", "Cannot determine history between", _RACED)
    _is_mixed = False  # known to have a file with rows of several queries
    undo = "CALL ….system.set_current_snapshot('{}', {})"
    with_a_key = ()
    note_setting = f"spark.sql.iceberg.snapshot-property.{NOTE}"

    def rows(self, spark: SparkSession) -> DataFrame:
        spark.catalog.refreshTable(self._table)  # a session keeps a table for half a minute
        return super().rows(spark)

    def stream(self, spark: SparkSession) -> DataFrame:
        skipped = {f"streaming-skip-{kind}-snapshots": "true" for kind in ("delete", "overwrite")}
        return spark.readStream.format("iceberg").options(**skipped).load(self._table)

    def send(self, rows: DataFrame, query: str, epoch: int) -> None:
        spread = rows.withColumn(_SPREAD, F.col(f"{TRACKER}.label"))
        self._put(self._insert, spread, query, epoch, self._complete(rows.sparkSession))

    def _create(self, rows: DataFrame) -> None:
        if not rows.sparkSession.catalog.tableExists(self._table):
            writer = rows.writeTo(self._table).using("iceberg")
            (writer.partitionedBy(*map(named, self._partition_by)) if self._partition_by else writer).create()

    def _append(self, rows: DataFrame, query: str, epoch: int, note: str) -> None:
        if self._is_mixed:
            # As rows that are there: a merge takes none whose plan would not make them again.
            spread = rows.withColumn(_SPREAD, F.monotonically_increasing_id())
            self._insert(spread.localCheckpoint(eager=False), query, epoch, note)
            return
        is_there, snapshot = self._look_for(rows.sparkSession, query, epoch)
        if is_there:
            return
        commit = of_epoch(self._fitted(rows), query, epoch).writeTo(self._table).options(**self._options)
        commit = commit.option("isolation-level", "serializable")
        commit = commit.option(f"snapshot-property.{NOTE}", note)
        if snapshot is not None:
            commit = commit.option("validate-from-snapshot-id", snapshot)
        try:
            commit.overwrite(_of(query, epoch))
        except Exception as error:
            if _MIXED not in str(error):
                raise
            self._is_mixed = True
            self._append(rows, query, epoch, note)

    def _insert(self, rows: DataFrame, query: str, epoch: int, note: str) -> None:
        """Commit the rows of an epoch, unless there are some, as an append.

        Args:
            rows: with a column of integers, any, by which Spark distributes them.
        """
        if self._look_for(rows.sparkSession, query, epoch)[0]:
            return
        rows = self._fitted(rows)
        # One more row is there to match those that are in the table already.
        probe = rows.sparkSession.range(1).select(F.lit(epoch).cast("bigint").alias(_SPREAD))
        came = of_epoch(rows, query, epoch)
        names = [quoted(name) for name in came.columns if name != _SPREAD]
        self._by_sql(
            came.unionByName(probe, allowMissingColumns=True),
            f"there.{WRITER[0]} = {text_in_sql(query)} AND there.{WRITER[1]} = {epoch} "
            f"AND there.{WRITER[1]} = came.{_SPREAD} "
            f"WHEN MATCHED AND raise_error('{_RACED}') IS NULL THEN DELETE "
            f"WHEN NOT MATCHED AND came.{WRITER[0]} IS NOT NULL "
            f"THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f'came.{name}' for name in names)})",
            {self.note_setting: note},
        )

    def _once(self, line: Line, query: str, epoch: int) -> tuple[str, dict[str, str]]:
        # One statement reads one state of the table, and its commit fails if there is another one by then.
        known = sum((each.query, each.epoch) == (query, epoch) for each in line.commits)
        noted = f"SELECT count(*) FROM {self._table}.snapshots WHERE {_noted('query')} = {text_in_sql(query)}"
        return f"({noted} AND {_noted('epoch')} = '{epoch}') <= {known} OR raise_error('{_RACED}') IS NULL", {}

    def _by_sql(self, rows: DataFrame, clauses: str, settings: Mapping[str, str], condition: str = "true") -> None:
        rows.sparkSession.catalog.refreshTable(self._table)
        super()._by_sql(rows, clauses, settings, condition)

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

    def _line(self, spark: SparkSession, since: Mark | None) -> Line:  # noqa: ARG002
        spark.catalog.refreshTable(self._table)
        found = spark.sql(
            f"SELECT snapshot_id, parent_id, unix_micros(committed_at), {_noted('query')}, "
            f"cast({_noted('epoch')} as bigint) FROM {self._table}.snapshots UNION ALL "
            f"SELECT NULL, snapshot_id, NULL, NULL, NULL FROM {self._table}.refs WHERE name = 'main'"
        ).collect()
        parents = {each[0]: each[1] for each in found}  # of nothing: the present one
        line, present = set(), parents.pop(None, None)
        while present in parents:
            line.add(present)
            present = parents[present]
        snapshots = sorted((each for each in found if each[0] is not None), key=lambda each: each[2], reverse=True)
        commits = [Commit(number, at, query, epoch, number in line) for number, _, at, query, epoch in snapshots]
        return Line(commits, whole=present is None)

    def _snapshot(self, spark: SparkSession) -> str | None:
        """Return the table's newest snapshot; None: the table has none yet."""
        spark.catalog.refreshTable(self._table)
        found = spark.table(f"{self._table}.refs").where("name = 'main'").select("snapshot_id").collect()
        return str(found[0][0]) if found else None

    def _look_for(self, spark: SparkSession, query: str, epoch: int) -> tuple[bool, str | None]:
        """Return whether the table has an epoch, by notes or rows, and if not, the snapshot that has no row of it."""
        if self._without(spark, query, epoch) is None:
            return True, None
        snapshot = self._snapshot(spark)
        if snapshot is None:
            return False, None
        rows = spark.read.option("versionAsOf", snapshot).table(self._table)
        return not rows.where(_of(query, epoch)).limit(1).isEmpty(), snapshot


def _noted(name: str) -> str:
    return f"get_json_object(summary['{NOTE}'], '$.{name}')"


def _of(query: str, epoch: int) -> Column:
    return (F.col(WRITER[0]) == query) & (F.col(WRITER[1]) == epoch)
