"""An observer of a query that reads a table of Delta or Iceberg."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.client.processes import Server
from tests.lake.conftest import append, catalog, followed, table
from tests.observe.untouched import Untouched, ended, fails, observing

__all__ = ["catalog", "table"]

pytestmark = pytest.mark.spark


def put(spark: SparkSession, table: tuple[str, str], tenant: str, last: bool) -> None:
    """Commit one row once."""
    rows = spark.sql(f"select timestamp '2024-01-01 00:10:00' as ts, '{tenant}' as tenant, {last} as is_last")
    append(rows, table)


def of_table(spark: SparkSession, table: tuple[str, str], path: Path) -> tuple[DataFrame, Untouched]:
    """Return the stream of a table that has one row, and a query that reads it."""
    put(spark, table, "a", False)
    rows = followed(spark, table)
    return rows, Untouched(rows, path / "theirs")


@pytest.mark.thorough
def test_ends_are_of_the_versions_that_the_query_has_committed(
    spark: SparkSession, tracker: Server, job: str, table: tuple[str, str], tmp_path: Path
) -> None:
    rows, query = of_table(spark, table, tmp_path)
    put(spark, table, "b", True)
    query.run()
    before = query.digest()
    for start in range(2):
        with observing(spark, tracker, job, rows, query.checkpoint, tmp_path / "own")[0] as tracking:
            tracking.process_all_available()
            assert len(ended(tracking)) == 1 + start
            assert query.digest() == before
            put(spark, table, "ac"[start], True)
            tracking.process_all_available()
            assert len(ended(tracking)) == 1 + start, "the row is there, and is not committed"
            query.run()
            tracking.process_all_available()
            assert ended(tracking) == query.whole(spark)
            before = query.digest()
    assert {(tenant, number) for tenant, _, number in ended(tracking)} == {("a", 2), ("b", 1), ("c", 1)}


@pytest.mark.thorough
def test_versions_that_are_gone_are_named(
    spark: SparkSession, tracker: Server, job: str, table: tuple[str, str], tmp_path: Path
) -> None:
    file_format, place = table
    rows, query = of_table(spark, table, tmp_path)
    query.run()
    with observing(spark, tracker, job, rows, query.checkpoint, tmp_path / "own")[0] as tracking:
        tracking.process_all_available()
    put(spark, table, "a", True)
    query.run()
    if file_format == "delta":
        spark.sql(f"delete from delta.`{place}`")
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        spark.sql(f"vacuum delta.`{place}` retain 0 hours")
    else:
        spark.sql(f"delete from {place}")
        now = spark.sql("select cast(current_timestamp() as string)").collect()[0][0]
        spark.sql(f"call lake.system.expire_snapshots('{place}', timestamp '{now}', 1)")
    fails(*observing(spark, tracker, job, rows, query.checkpoint, tmp_path / "own"), "cannot be read again: ")
    assert not ended(tracking)
