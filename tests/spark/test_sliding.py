"""Windows that overlap: a row counts in each of its windows, and each of them ends and adds up by itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking, UsageError, sliding
from spark_client.windows import lengths
from spark_client.windows.declaration import declare
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

WINDOWS = [
    ("1 hour", "10 minutes"), ("1 hour", "25 minutes"), ("1 day", "1 day"), ("7 minutes", "1.5 seconds"),
    ("3 days", "2 days"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("draws", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_a_rows_windows_are_sparks_own(spark: SparkSession, conf: Any, draws: int) -> None:
    rng = random.Random(draws)
    for number in range(draws):
        kind = ["timestamp", "timestamp_ntz", "date"][number % 3]
        conf("spark.sql.session.timeZone", rng.choice(["UTC", "Europe/Berlin", "Asia/Kathmandu"]))
        width, every = WINDOWS[number % len(WINDOWS)]
        slide = lengths.length(spark, every, "slide")
        offset = f"{rng.randrange(1 - slide, slide)} microseconds" if rng.random() < 0.7 else "0 seconds"
        drawn = [(rng.randrange(-(10**16), 10**16),) for _ in range(20)]
        rows = spark.createDataFrame(drawn, "micros long").select(F.timestamp_micros("micros").cast(kind).alias("at"))
        declared = declare(rows, None, ("at", sliding(width, every), offset), None)
        rule, scope, key = declared.rule, declared.scope, declared.key
        tracked = rows.select("at", (F.explode(key) if rule.several else F.unix_micros(key)).alias("end"))
        ours = tracked.select("at", *rule.result_columns(scope, F.timestamp_micros("end")))
        sparks = rows.select("at", F.window("at", width, every, offset).alias("window"))
        texts = [F.col(each).cast("string") for each in ("at", "window.start", "window.end")]
        got, expected = (sorted(map(tuple, each.select(*texts).collect())) for each in (ours, sparks))
        assert got == expected, (kind, width, every, offset)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "way", ["files", *(pytest.param(way, marks=pytest.mark.slow) for way in ("direct", "executors"))]
)
def test_overlapping_windows_equal_a_batch_and_add_up(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, way: str
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address, probe="executors" if way == "executors" else "driver")
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", sliding("1 hour", "20 minutes")), identity=["row_id"],
        front=Frontier("5 minutes"), on_bad_rows="quarantine",
    )  # fmt: skip
    stream = source.where("amount > 0")
    if way != "direct":
        clean = tracking.channel("clean", str(tmp_path / "clean"))
        stream.writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1").start()
        stream = tracking.receive(clean)
    writer = tracking.release(stream, ["kind"], aggs={"n": F.count("*"), "ids": F.sum("row_id")}).writeStream
    writer.receipts(tmp_path / "receipts").option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    rng = random.Random(9)
    number = 0
    for batch in range(4):
        made = []
        for _ in range(25):
            number += 1
            minute = 40 * batch + rng.uniform(0, 40)
            made.append(row(number, minute, rng.choice("ab"), rng.choice("xy"), rng.randrange(3)))
        feed.put(*made)
    feed.put({**row(900, 0), "ts": None}, row(901, 600, "z"))  # a bad row is one row; the other ends all of the rest
    tracking.process_all_available()

    windows = F.window("ts", "1 hour", "20 minutes").alias("window")
    good = feed.batch(spark).where("amount > 0 and ts is not null and row_id < 900")
    batch_rows = good.groupBy("tenant", windows, "kind").agg(F.count("*").alias("n"), F.sum("row_id").alias("ids"))
    columns = ("tenant", "window.start", "window.end", "kind", "n", "ids")
    assert rows_of(tmp_path / "out", spark, *columns) == sorted(map(tuple, batch_rows.select(*columns).collect()))

    listed = {(s.scope, s.name): s for s in tracking.client.substreams(job, include_ended=True)}
    receipts = spark.read.parquet(str(tmp_path / "receipts")).select("scope", "name", "rows", "elements").collect()
    by_window = {(r[0], r[1]): r[2] for r in good.groupBy("tenant", windows).count().select(
        "tenant", F.date_format("window.start", "yyyy-MM-dd HH:mm"), "count").collect()}  # fmt: skip
    counted = {(scope, name[:16].replace("T", " ")): rows for scope, name, rows, _ in receipts if rows}
    assert counted == by_window
    assert all(rows <= elements for _, _, rows, elements in receipts)
    assert {(r[0], r[1]) for r in receipts} == {key for key, its in listed.items() if key[0] != "z"}

    feed.put(row(950, 70, "a"))  # late in three windows
    tracking.process_all_available()
    assert tracking.late(str(tmp_path / "cp")).where("kind != 'bad'").count() == 3
    bad = tracking.late(str(tmp_path / ("cp" if way == "direct" else "cp1"))).where("kind = 'bad'")
    assert bad.count() == 1
    tracking.drain(timeout=600)
    total = spark.read.parquet(str(tmp_path / "out")).agg(F.sum("n")).collect()[0][0]
    assert total == good.select(windows).count() + 3  # the last row, in its three windows
    tracking.stop()


def test_what_cannot_be_said_of_overlapping_windows_is_refused(spark: SparkSession, job: str, feed: Feed) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    rows, window = feed.stream(spark), ("ts", sliding("1 hour", "10 minutes"))
    for front in (Marks("is_last"), Schedule([])):
        with pytest.raises(UsageError, match="which belongs to several"):
            tracking.source(rows, "in", window=window, front=front)
    with pytest.raises(UsageError, match="begin later than the one before has ended"):
        tracking.source(rows, "in", window=("ts", sliding("10 minutes", "1 hour")))
    with pytest.raises(UsageError, match="offset '20 minutes' is not shorter than the window, '10 minutes'"):
        tracking.source(rows, "in", window=("ts", sliding("1 hour", "10 minutes"), "20 minutes"))
    source = tracking.source(rows, "in", window=window, front=Frontier("1 minute"))
    with pytest.raises(UsageError, match="let Spark's window"):
        tracking.with_watermark(source, "ts", "windows")
    tracking.stop()
