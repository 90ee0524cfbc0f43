"""Tables of Delta and Iceberg as tracked sources: their rows as a stream, each counted once, whatever is replayed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import DeltaTable, Marks, ResultsOf, Tracking
from tests.client.processes import Server
from tests.lake.conftest import append, followed
from tests.lake.test_tables import COLUMNS, Dying, expected, released, there, values
from tests.spark.feed import Feed, put_hours

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_rows_of_a_table_are_released_once_when_drivers_die(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, table: tuple[str, str]
) -> None:
    put_hours(feed, 2)
    for file in sorted(feed.path.iterdir()):
        rows = spark.read.schema(feed.batch(spark).schema).json(str(file))
        append(rows, table)
    at_once = {"delta": "maxFilesPerTrigger", "iceberg": "streaming-max-files-per-micro-batch"}[table[0]]
    sink = Dying(DeltaTable(str(tmp_path / "out")))
    for _ in range(8):
        tracking = Tracking(spark, job, tracker.address)
        rows = followed(spark, table, **{at_once: "1"})
        source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
        hourly = tracking.release(source, ["kind"], aggs={"n": F.count("*")})
        hourly.writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp").start()
        with suppress(StreamingQueryException):
            tracking.process_all_available()
        tracking.stop()
    assert len(sink.steps) >= 4
    assert values(there(spark, ("delta", str(tmp_path / "out"))).select(*COLUMNS)) == expected(spark, feed)


@pytest.mark.thorough
def test_a_job_follows_the_results_and_receipts_of_another(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    results, receipts, out = (("delta", str(tmp_path / name)) for name in ("results", "receipts", "out"))
    put_hours(feed, 2)
    tracking, hourly = released(spark, tracker, job, feed)
    writer = hourly.writeStream.format("delta").receipts(DeltaTable(receipts[1]))
    writer.option("checkpointLocation", tmp_path / "cp").start(results[1])
    tracking.process_all_available()
    tracking.stop()

    for _ in range(2):
        tracking = Tracking(spark, f"{job}-next", tracker.address)
        front = ResultsOf(lambda: there(spark, receipts), job=job, segment="in")
        rows = followed(spark, results, maxFilesPerTrigger="1").withColumn("ts", F.col("window.start"))
        source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), front=front)
        sums = tracking.release(source, aggs={"kinds": F.count("*"), "n": F.sum("n")})
        query = sums.writeStream.format("delta").option("checkpointLocation", tmp_path / "next").start(out[1])
        tracking.process_all_available()
        tracking.stop()
        assert query.exception() is None
    batch = there(spark, results).groupBy("tenant", "window.start").agg(F.count("*"), F.sum("n"))
    found = there(spark, out).select("tenant", "window.start", "kinds", "n")
    assert values(found) == values(batch)
    assert found.count() == 4
