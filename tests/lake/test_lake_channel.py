"""A table of Delta or Iceberg between two queries: each row is received once, whatever dies on the way into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import DeltaTable, Marks, Tracking, UsageError
from spark_client.destinations.lake import LakeTable
from tests.client.processes import Server
from tests.lake.test_tables import COLUMNS, OF_FORMAT, compact, expected, there, values
from tests.spark.feed import Feed, put_hours, row

pytestmark = pytest.mark.spark


def dying(table: LakeTable) -> tuple[LakeTable, set[tuple[int, str]]]:
    """Return a table whose driver dies before and after its commit of each epoch, once, and the steps that it made."""
    steps: set[tuple[int, str]] = set()
    kind: Any = type(table)

    def die(step: tuple[int, str]) -> None:
        if step not in steps:
            steps.add(step)
            raise RuntimeError("the driver dies here")

    def send(self: Any, rows: DataFrame, query: str, epoch: int) -> None:
        die((epoch, "before"))
        kind.send(self, rows, query, epoch)
        die((epoch, "after"))

    table.__class__ = type(kind.__name__, (kind,), {"send": send})
    return table, steps


def channelled(spark: SparkSession, address: str, job: str, feed: Feed, table: LakeTable, path: Path) -> Tracking:
    """Start two queries with the table between them; the second one releases by tenant, hour and kind."""
    tracking = Tracking(spark, job, address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.lake_channel("clean", table, path / "channel")
    source.writeStream.channel(channel).option("checkpointLocation", path / "cp1").start()
    hourly = tracking.release(tracking.receive(channel), ["kind"], aggs={"n": F.count("*")})
    hourly.writeStream.format("delta").option("checkpointLocation", path / "cp2").start(str(path / "out"))
    return tracking


@pytest.mark.thorough
def test_rows_pass_a_table_once_when_drivers_die_around_its_commits(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, table: tuple[str, str]
) -> None:
    file_format, place = table
    put_hours(feed, 2)
    between, steps = dying(OF_FORMAT[file_format](place))
    dies = True
    while dies:
        tracking = channelled(spark, tracker.address, job, feed, between, tmp_path)
        try:
            tracking.process_all_available()
            dies = False
        except StreamingQueryException:
            pass
        finally:
            tracking.stop()
    assert len(steps) >= 4
    assert values(there(spark, ("delta", str(tmp_path / "out"))).select(*COLUMNS)) == expected(spark, feed)
    assert there(spark, table).count() == feed.batch(spark).count(), "each row once, for other readers"


@pytest.mark.thorough
def test_native_state_reads_the_stream_of_a_table_that_others_tidy(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, table: tuple[str, str]
) -> None:
    file_format, place = table
    put_hours(feed, 1)
    had = 0
    for hour in range(2):
        tracking = channelled(spark, tracker.address, job, feed, OF_FORMAT[file_format](place), tmp_path)
        tracking.process_all_available()
        tracking.stop()
        tracking = Tracking(spark, f"{job}-native", tracker.address)
        clean = tracking.lake_channel("clean", OF_FORMAT[file_format](place), tmp_path / "channel")
        written = (
            clean.native(spark, None).writeStream.format("delta").option("checkpointLocation", str(tmp_path / "cp3"))
        )
        written.trigger(availableNow=True).start(str(tmp_path / "native")).awaitTermination()
        assert spark.read.format("delta").load(str(tmp_path / "native")).count() == feed.batch(spark).count() > had
        had = feed.batch(spark).count()
        spark.sql(f"delete from {in_sql(table)} where _epoch < 1")  # which the stream has read
        compact(spark, table)
        feed.put(row(900 + hour, 300))


def in_sql(table: tuple[str, str]) -> str:
    return f"delta.`{table[1]}`" if table[0] == "delta" else table[1]


def test_a_table_whose_rows_are_replaced_is_no_channel(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    with pytest.raises(UsageError, match="give the table no key"):
        tracking.lake_channel("clean", DeltaTable("/data/clean", key=["id"]), tmp_path / "channel")
    rows = feed.stream(spark).withColumn("_epoch", F.lit(1))
    source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"])
    channel = tracking.lake_channel("other", DeltaTable(str(tmp_path / "table")), tmp_path / "channel")
    with pytest.raises(UsageError, match="'_epoch' is the channel's own"):
        source.writeStream.channel(channel)
