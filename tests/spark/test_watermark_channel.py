"""The exact watermark over a channel of files: each row counts once, and what was received goes, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Tracking, TrackingError, UsageError
from spark_client.columns import TRACKER
from spark_client.destinations.epochs import _EpochStream
from spark_client.destinations.file_channel import FileChannel, _Folders
from spark_client.plan.layouts import derived_layout
from spark_client.storage.folder import Folder
from spark_client.windows.declaration import declare
from tests.client.processes import Server
from tests.spark.feed import Feed, row
from tracker.client import TrackerClient

pytestmark = pytest.mark.spark


class Pipeline:
    """Two queries: clean and send; receive, an epoch a batch, and count by windows of Spark's own, into files."""

    def __init__(self, spark: SparkSession, address: str, feed: Feed, path: Path, job: str) -> None:
        self.tracking = Tracking(spark, job, address)
        self.source = self.tracking.source(
            feed.stream(spark), "in", window=("ts", "1 minute"), identity=["row_id"], front=Frontier("0 seconds")
        )
        channel = self.tracking.channel("clean", str(path / "clean"))
        sending = self.source.where("amount > 0").writeStream.channel(channel)
        received = self.tracking.receive(channel, max_epochs_per_trigger=1)
        counted = self.tracking.with_watermark(received, "ts", "windows").groupBy(F.window("ts", "10 minutes"), "kind")
        rows = counted.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))
        self.sending = sending.option("checkpointLocation", path / "cp1").start()
        writer = self.tracking.write_stream(rows, received).format("parquet").outputMode("append")
        writer = writer.option("checkpointLocation", str(path / "cp2")).option("path", str(path / "out"))
        self.counting = writer.start()


def result(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in rows.select("window.start", "kind", "rows", "amount").collect())


def expected(feed: Feed, spark: SparkSession) -> list[tuple[Any, ...]]:
    grouped = feed.batch(spark).where("amount > 0").groupBy(F.window("ts", "10 minutes"), "kind")
    return result(grouped.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount")))


def put(feed: Feed) -> None:
    minute = 3 * feed.files
    number = 10 * feed.files
    feed.put(*[row(number + i, minute + i % 3, kind="xy"[i % 2], amount=i - 2) for i in range(10)])


def epochs(path: Path) -> list[int]:
    """Return the epochs that are in the channel."""
    return sorted(int(found.name) for found in (path / "clean").glob("*/[0-9]*"))


@pytest.mark.slow
def test_what_was_received_goes_though_drivers_are_stopped_and_killed(
    spark: SparkSession, tracker: Server, feed: Feed, tmp_path: Path, job: str
) -> None:
    program = [sys.executable, "-m", "tests.spark.test_watermark_channel", tracker.address, str(tmp_path), job]
    rng = random.Random(5)

    def run(stop_after: int | None) -> int:
        """Run the driver, and kill it soon after it has planned so many batches more. Return its exit status."""
        log = (tmp_path / "driver.log").open("a")
        driver = subprocess.Popen(program, stdout=log, stderr=log, start_new_session=True)
        planned, sent = tmp_path / "cp2" / "offsets", tmp_path / "cp1" / "commits"
        begun = len(list(planned.glob("[0-9]*")))
        while driver.poll() is None:
            if stop_after is None:
                (tmp_path / "may-end").touch()
            elif len(list(planned.glob("[0-9]*"))) - begun >= stop_after:
                time.sleep(rng.uniform(0, 0.5))
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
            elif min(len(list(each.glob("[0-9]*"))) for each in (planned, sent)) >= feed.files:  # neither falls behind
                put(feed)
            time.sleep(0.02)
        return driver.returncode

    assert run(stop_after=3) == -signal.SIGKILL
    assert run(stop_after=4) == -signal.SIGKILL
    pipeline = Pipeline(spark, tracker.address, feed, tmp_path, job)  # a driver that is stopped in order
    put(feed)
    pipeline.tracking.process_all_available()
    pipeline.tracking.stop()
    put(feed)
    assert run(stop_after=None) == 0, (tmp_path / "driver.log").read_text()[-4000:]
    assert result(spark.read.parquet(str(tmp_path / "out"))) == expected(feed, spark)
    newest = feed.files - 1
    # Spark announces that a batch is done when it plans the next, and the sender could still repeat its newest epoch.
    assert epochs(tmp_path) in ([newest], [newest - 1, newest])
    assert tracker_is_done(tracker.address, job)


def tracker_is_done(address: str, job: str) -> bool:
    status = TrackerClient(address).job(job)
    return (status.open_substreams, status.in_flight, status.late_reports) == (0, 0, 0)


def kinds(spark: SparkSession) -> DataFrame:
    """Return rows with a column of each type that a channel and Spark's operators take."""
    return spark.range(6).selectExpr(
        "id",
        "timestamp_micros(id * 777777777) as ts",
        "cast(id as byte) as tiny",
        "cast(id as short) as small",
        "cast(id as int) as number",
        "cast(id as float) / 3 as single",
        "id / 3 as double",
        "cast(id / 7 as decimal(9, 2)) as price",
        "cast(id as decimal(38, 10)) as large",
        "if(id = 3, null, string(id)) as text",
        "cast(string(id) as binary) as bytes",
        "id % 2 = 0 as even",
        "date_add(date'1499-12-31', cast(id as int)) as day",
        "timestamp'1400-01-01 00:00:00.123456' as ancient",
        "timestamp'9999-12-31 23:59:59.999999' as last",
        "timestamp_ntz'2024-03-31 02:30:00.5' as clock",
        "make_dt_interval(1, 2, 3, id / 2) as length",
        "array(struct(id as a, make_dt_interval(1) as length), null) as items",
        "map(string(id), array(timestamp'2024-01-01 00:00:00', null)) as times",
        "if(id = 2, null, named_struct('a b', id, 'none', cast(null as string))) as nested",
    )


@pytest.mark.thorough
@pytest.mark.parametrize("told", [True, False], ids=["told by columns", "whole"])
def test_rows_of_all_types_come_as_they_were_sent(spark: SparkSession, tmp_path: Path, told: bool) -> None:
    rows = kinds(spark)
    declared = declare(rows, "number", ("ts", "1 hour"), None)
    rule = declared.rule
    rows = rows.withColumn(TRACKER, rule.tracker(declared.scope, declared.key, F.xxhash64("id")))
    channel = FileChannel("clean", Folder(tmp_path / "clean"), keep=True)
    channel.describe(rows.schema, rule, derived_layout(rule, "number", "ts") if told else None)
    written = [channel.write(rows.where(f"id >= {epoch}"), "sender", epoch, ()).folder for epoch in range(3)]
    writer = channel.native(spark, 2).writeStream.format("memory").queryName("kinds")
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    query.processAllAvailable()
    query.stop()
    received, sent = spark.table("kinds"), channel.in_files(spark, written)
    assert received.schema == sent.schema
    assert sorted(map(str, received.collect())) == sorted(map(str, sent.collect()))
    assert received.count() == 15


@pytest.mark.parametrize("kind", ["parse_json('[1]')", "make_ym_interval(1)", "array(parse_json('1'))"])
def test_an_unreadable_column_is_refused_where_the_watermark_is_declared(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, kind: str
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    source.withColumn("odd", F.expr(kind)).writeStream.channel(channel)
    with pytest.raises(UsageError, match=r"'odd' is .* send it as text"):
        tracking.with_watermark(tracking.receive(channel), "ts", "windows")


def test_a_checkpoint_of_the_version_that_left_the_files_is_refused(tmp_path: Path) -> None:
    stream = _EpochStream(_Folders(Folder(tmp_path)), 10, keep=False)
    for ask in (lambda at: stream.read(at), lambda at: stream.readBetweenOffsets(at, at)):
        with pytest.raises(TrackingError, match=r"an earlier version.*Start the job from scratch"):
            ask({"logOffset": 3})
    assert list(stream.read({})[0]) == []


def drive() -> None:
    """Run the program that is killed: the pipeline until no more rows are to come."""
    from tests.spark.conftest import session

    address, path, job = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    pipeline = Pipeline(session("driver"), address, Feed(path / "raw"), path, job)
    tracking = pipeline.tracking
    while not (path / "may-end").exists():
        tracking.check()
        time.sleep(0.05)
    tracking.process_all_available()
    tracking.finish(pipeline.source)
    tracking.process_all_available()
    tracking.stop()


if __name__ == "__main__":
    drive()
