"""Shadow mode: what a job on Spark's own watermark has lost, beside a batch over the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.flights import replay
from examples.flights.baseline import WatermarkBaseline
from spark_client import Marks, ShadowedJob, Tracking, UsageError, draw_shadow_report, shadow_report
from tests.client.processes import Server
from tests.spark.feed import SCHEMA, Feed, row

pytestmark = pytest.mark.spark


def counted_beside(tracking: Tracking, rows: DataFrame, window: tuple[str, str], scope: str, path: Path) -> None:
    """Count what the job reads, window by window, and learn when each has ended."""
    source = tracking.source(rows, "seen", scope=scope, window=window, front=Marks("is_last"))
    released = tracking.release(source, aggs={"rows": F.count("*")})
    writer = released.writeStream.option("checkpointLocation", path / "shadow").receipts(path / "receipts")
    writer.start(path / "counted")


@pytest.mark.thorough
def test_each_lost_row_is_found_and_the_job_left_alone(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    feed.put(row(1, 5), row(2, 50, "b"))
    feed.put(row(3, 95), row(4, 20, "b"))  # the watermark comes to 65 minutes
    feed.put(row(5, 30))  # this batch closes the first windows, and still drops by the watermark before: 20 minutes
    feed.put(row(6, 40), row(7, 99, "b", last=True))
    feed.put(row(8, 200, last=True))
    feed.put(row(9, 45, "b", last=True), row(10, 59, last=True), row(11, 98, last=True))  # row 11 is in time
    hourly = feed.stream(spark).withWatermark("ts", "30 minutes").groupBy("tenant", F.window("ts", "1 hour"))
    query = (
        hourly.count()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "hourly"))
        .option("checkpointLocation", str(tmp_path / "cp"))
        .start()
    )
    tracking = Tracking(spark, job, tracker.address)
    counted_beside(tracking, feed.stream(spark), ("ts", "1 hour"), "tenant", tmp_path)
    query.processAllAvailable()
    tracking.process_all_available()
    query.stop()

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cp").rglob("*")}
    shadowed = ShadowedJob(tmp_path / "cp", tmp_path / "batches.json")
    with shadowed.watched():
        assert shadowed.note() == len(shadowed.batches)
    raw = spark.read.schema(SCHEMA).json(str(feed.path)).select("*", F.col("_metadata.file_path").alias("file"))
    rows = raw.withColumn("scope", F.col("tenant")).withColumn("end_time", F.window("ts", "1 hour").end)
    written = spark.read.parquet(str(tmp_path / "hourly"))
    result = written.select(
        F.col("tenant").alias("scope"), F.col("window.end").alias("end_time"), F.col("count").alias("rows")
    )
    lost = shadowed.lost(rows)
    report = shadow_report(spark, shadowed, tmp_path / "receipts", result, lost=lost)
    found = {(line.scope, line.end_time): line for line in report.collect()}
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "cp").rglob("*")}

    truth = {(r.scope, r.end_time): r["count"] for r in rows.groupBy("scope", "end_time").count().collect()}
    kept = {(r.scope, r.end_time): r.rows for r in result.collect()}
    closed = {key: line for key, line in found.items() if line.lost is not None}
    assert {key: line.seen for key, line in closed.items()} == {key: truth[key] for key in closed}
    assert {key: line.lost for key, line in closed.items()} == {key: truth[key] - kept.get(key, 0) for key in closed}
    assert {key: line.explained for key, line in closed.items()} == {key: line.lost for key, line in closed.items()}
    late = sorted((line.row_id, round(line.minutes_late)) for line in lost.collect())
    assert late == [(6, 5), (9, 9), (10, 9)]
    assert all(line.minutes_early > 0 for line in closed.values() if line.lost)

    draw_shadow_report(report, tmp_path / "report.svg", "<hourly>")
    drawn = ElementTree.parse(tmp_path / "report.svg").getroot()
    bars = [each for each in drawn.iter("{http://www.w3.org/2000/svg}rect") if each.get("fill") == "#c8553d"]
    assert len(bars) == sum(bool(line.lost) for line in closed.values())
    tracking.stop()


def test_what_cannot_be_read_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give the checkpoint of the query"):
        ShadowedJob(tmp_path / "cp", tmp_path / "batches.json")
    (tmp_path / "cp" / "offsets").mkdir(parents=True)
    (tmp_path / "cp" / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"topic":{"0":7}}')
    shadowed = ShadowedJob(tmp_path / "cp", tmp_path / "batches.json")
    shadowed.note()
    rows = spark.createDataFrame([], "end_time timestamp, file string")
    with pytest.raises(UsageError, match="is not one of files"):
        shadowed.lost(rows)
    with pytest.raises(UsageError, match="column='file' is not a column of the rows"):
        shadowed.lost(rows.drop("file"))


@pytest.mark.slow
def test_the_flights_that_a_watermark_loses(spark: SparkSession, tracker: Server, job: str, tmp_path: Path) -> None:
    """Four days, with the year's worst for a short watermark: 19 April 2013."""
    flights = replay.departures("2013-04-17", 4)
    clock = replay.Replay(flights, pd.Timedelta("3h"), tmp_path / "replay")
    clock.publish_all()

    def stream() -> DataFrame:
        reader = spark.readStream.schema(replay.DEPARTURES).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(clock.published))

    baseline = WatermarkBaseline(stream().withColumn("seats", F.lit(0)), "2 hours", tmp_path / "cp", clock)
    tracking = Tracking(spark, job, tracker.address)
    counted_beside(tracking, stream(), ("sched_dep", "1 day"), "origin", tmp_path)
    baseline.settle()
    tracking.process_all_available()
    baseline.stop()
    shadowed = ShadowedJob(tmp_path / "cp", tmp_path / "batches.json")
    shadowed.note()

    released = baseline.released
    days = released.assign(end_time=released["day"] + replay.DAY, scope=released["origin"], rows=released["flights"])
    result = spark.createDataFrame(days[["scope", "end_time", "rows"]])
    raw = spark.read.schema(replay.DEPARTURES).parquet(str(clock.published))
    rows = raw.select(
        "row_id",
        F.col("origin").alias("scope"),
        F.window("sched_dep", "1 day").end.alias("end_time"),
        F.col("_metadata.file_path").alias("file"),
    )
    lost = shadowed.lost(rows)
    report = shadow_report(spark, shadowed, tmp_path / "receipts", result, lost=lost).where("lost is not null")
    found = {(line.scope, line.end_time): line for line in report.collect()}

    truth: dict[Any, int] = flights.groupby(["origin", "day"]).size().to_dict()
    kept: dict[Any, float] = released.groupby(["origin", "day"])["flights"].sum().to_dict()
    assert found
    for (origin, end), line in found.items():
        day = (origin, pd.Timestamp(end, tz="UTC") - replay.DAY)
        assert (line.seen, line.lost) == (truth[day], truth[day] - kept.get(day, 0))
        assert line.explained == line.lost
    assert sum(line.lost for line in found.values()) == lost.count() > 0
    tracking.stop()
