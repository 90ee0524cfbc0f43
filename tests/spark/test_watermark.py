"""The exact watermark: Spark's operators give final results as the tracker announces them, and keep no state after."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Schedule, Tracking, UsageError, calendar
from tests.client.processes import Server
from tests.spark.feed import START, Feed, row

pytestmark = pytest.mark.spark


def state_rows(query: Any) -> int:
    return sum(operator["numRowsTotal"] for operator in query.lastProgress["stateOperators"])


def start(tracking: Tracking, df: DataFrame, reads: Any, name: str, checkpoint: Path) -> Any:
    writer = tracking.write_stream(df, reads).queryName(name).format("memory").outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).start()


def shown(spark: SparkSession, name: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in spark.table(name).select(*columns).collect())


def test_windows_come_out_final_without_later_data(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    # Two partitions: the one that lags holds the watermark, whatever the other has seen.
    source = tracking.source(
        feed.stream(spark),
        "in",
        window=("ts", "1 minute"),
        front=Frontier("0 seconds", partition="part", partitions=2),
    )
    counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "10 minutes"), "kind")
    query = start(tracking, counted.agg(F.count("*").alias("n")), source, "windows", tmp_path / "cp")
    feed.put(row(1, 1), row(2, 9), row(3, 65))
    tracking.process_all_available()
    assert shown(spark, "windows", "kind", "n") == []
    feed.put(row(4, 2, part=1), row(5, 30, part=1))
    tracking.process_all_available()
    assert shown(spark, "windows", "kind", "n") == [("x", 3)]
    tracking.finish(source)
    tracking.process_all_available()
    assert shown(spark, "windows", "window.start", "n") == sorted(
        tuple(r)
        for r in feed.batch(spark)
        .groupBy(F.window("ts", "10 minutes"))
        .count()
        .select("window.start", "count")
        .collect()
    )
    assert state_rows(query) == 0
    tracking.stop()


@pytest.mark.thorough
def test_sessions_come_out_final_and_their_state_is_gone(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    sessions = tracking.with_watermark(source, "ts", "instants").groupBy(F.session_window("ts", "5 minutes"), "kind")
    query = start(tracking, sessions.agg(F.count("*").alias("n")), source, "sessions", tmp_path / "cp")
    feed.put(row(1, 1), row(2, 5), row(3, 7, kind="y"))
    feed.put(row(4, 9, kind="y"), row(5, 20, kind="z"))
    tracking.process_all_available()
    assert shown(spark, "sessions", "kind", "n") == [("x", 2), ("y", 2)]
    tracking.finish(source)
    tracking.process_all_available()
    assert shown(spark, "sessions", "kind", "n") == [("x", 2), ("y", 2), ("z", 1)]
    assert state_rows(query) == 0
    tracking.stop()


@pytest.mark.parametrize(
    ("operator", "called"),
    [
        (lambda rows: rows.groupBy(F.session_window("ts", "5 minutes"), "kind").count(), "session_window"),
        (lambda rows: rows.dropDuplicates(["kind", "ts"]), "dropDuplicates"),
    ],
    ids=["sessions", "duplicates"],
)
def test_operators_on_row_times_are_refused_under_window_watermarks(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, operator: Any, called: str
) -> None:
    """And what the refusal advises starts."""
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    with pytest.raises(UsageError, match=rf"has {called}, which lives by each row's own time.*over='instants'"):
        start(tracking, operator(tracking.with_watermark(source, "ts", "windows")), source, job, tmp_path / "cp")
    start(tracking, operator(tracking.with_watermark(source, "ts", "instants")), source, "advised", tmp_path / "cp")
    tracking.stop()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("spark.sql.streaming.multipleWatermarkPolicy", "MAX", "Spark would drop rows of the others"),
        ("spark.sql.streaming.noDataMicroBatches.enabled", "false", "and the last of it never"),
    ],
)
def test_settings_under_which_a_watermark_is_not_exact_are_refused(
    spark: SparkSession, job: str, feed: Feed, tmp_path: Path, conf: Any, key: str, value: str, why: str
) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    windows = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "1 hour")).count()
    conf(key, value)
    with pytest.raises(UsageError, match=rf"{key}={value.lower()}: .*{why}"):
        start(tracking, windows, source, job, tmp_path / "cp")
    tracking.stop()


@pytest.mark.thorough
def test_a_session_at_a_window_start_is_joined_by_a_row_then(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Spark joins a row that comes exactly one gap after a session's last, and the minute that begins then is open."""

    def sessions(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.session_window("ts", "5 minutes"), "kind").agg(F.count("*").alias("n"))

    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    start(
        tracking, sessions(tracking.with_watermark(source, "ts", "instants")), source, "joined_at_end", tmp_path / "cp"
    )
    for each in (row(1, 0), row(2, 5.5, kind="y"), row(3, 5), row(4, 20, kind="z")):
        feed.put(each)
        tracking.process_all_available()
    columns = ["session_window.start", "session_window.end", "kind", "n"]
    batch = sessions(feed.batch(spark).where("kind != 'z'")).select(*columns)
    assert shown(spark, "joined_at_end", *columns) == sorted(map(tuple, batch.collect()))
    tracking.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_what_is_within_an_open_window_is_not_over(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, seed: int
) -> None:
    """Counts promise whole windows, so a minute is open until its last row, and its first rows may come last."""
    draw = random.Random(seed)
    rows = [row(number, draw.randrange(0, 36) / 6, kind=draw.choice("xy")) for number in range(40)]
    draw.shuffle(rows)
    # These rows show it in any draw: x at 50 s has a minute that is over, and its session reaches into the next one.
    first = [row(40, 50 / 60 + 10), row(41, 80 / 60 + 10)]
    last = [row(42, 65 / 60 + 10), row(43, 70 / 60 + 10)]
    counts = Counter(
        int((datetime.fromisoformat(r["ts"]) - START) / timedelta(minutes=1)) for r in [*rows, *first, *last]
    )
    schedule = Schedule([(START + timedelta(minutes=minute), count) for minute, count in counts.items()])
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=schedule)

    def sessions(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.session_window("ts", "20 seconds"), "kind").agg(F.count("*").alias("n"))

    start(tracking, sessions(tracking.with_watermark(source, "ts", "instants")), source, "within", tmp_path / "cp")
    for batch in (rows[:13], rows[13:26], [*rows[26:], *first], last):
        feed.put(*batch)
        tracking.process_all_available()
    tracking.finish(source)
    tracking.process_all_available()
    columns = ["session_window.start", "session_window.end", "kind", "n"]
    assert shown(spark, "within", *columns) == sorted(
        map(tuple, sessions(feed.batch(spark)).select(*columns).collect())
    )
    tracking.stop()


@pytest.mark.thorough
def test_days_are_made_of_hours_by_sparks_own_operators(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    rows = tracking.with_watermark(source, "ts", "windows")
    hours = rows.groupBy(F.window("ts", "1 hour"), "kind").agg(F.count("*").alias("n"))
    days = hours.groupBy(F.window(F.window_time("window"), "1 day"), "kind").agg(F.sum("n").alias("n"))
    query = start(tracking, days, source, "days", tmp_path / "cp")
    feed.put(row(1, 1), row(2, 59), row(3, 700), row(4, 1439, kind="y"))
    tracking.process_all_available()
    feed.put(row(5, 1500))
    tracking.process_all_available()
    assert shown(spark, "days", "kind", "n") == [("x", 3), ("y", 1)]
    tracking.finish(source)
    tracking.process_all_available()
    assert shown(spark, "days", "kind", "n") == [("x", 1), ("x", 3), ("y", 1)]
    assert state_rows(query) == 0
    tracking.stop()


@pytest.mark.thorough
def test_deduplication_keeps_rows_on_the_edge_and_forgets_what_is_over(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    distinct = tracking.with_watermark(source, "ts", "instants").dropDuplicatesWithinWatermark(["row_id"])
    query = start(tracking, distinct, source, "distinct_rows", tmp_path / "cp")
    feed.put(row(1, 1), row(1, 1), row(2, 2))
    tracking.process_all_available()
    feed.put(row(3, 2))  # at the very time up to which everything is over: not late
    tracking.process_all_available()
    assert shown(spark, "distinct_rows", "row_id") == [(1,), (2,), (3,)]
    tracking.finish(source)
    tracking.process_all_available()
    assert state_rows(query) == 0
    tracking.stop()


@pytest.mark.thorough
def test_unmatched_outer_rows_come_out_when_both_sides_are_over(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    other = Feed(tmp_path / "other")
    tracking = Tracking(spark, job, tracker.address)
    left = tracking.source(feed.stream(spark), "left", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    right = tracking.source(other.stream(spark), "right", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    orders = tracking.with_watermark(left, "ts", "instants").select("ts", "row_id")
    payments = tracking.with_watermark(right, "ts", "instants")
    payments = payments.select(F.col("ts").alias("paid_at"), F.col("row_id").alias("paid"))
    within = F.expr("row_id = paid and paid_at between ts and ts + interval 10 minutes")
    query = start(tracking, orders.join(payments, within, "left_outer"), [left, right], "joined", tmp_path / "cp")
    feed.put(row(1, 1), row(2, 2), row(3, 40))
    other.put(row(1, 3))
    tracking.process_all_available()
    assert shown(spark, "joined", "row_id", "paid") == [(1, 1)]  # the payments may still come
    other.put(row(9, 30))
    tracking.process_all_available()
    assert shown(spark, "joined", "row_id", "paid") == [(1, 1), (2, None)]
    tracking.finish(left)
    tracking.finish(right)
    tracking.process_all_available()
    assert shown(spark, "joined", "row_id", "paid") == [(1, 1), (2, None), (3, None)]
    assert state_rows(query) == 0
    tracking.stop()


@pytest.mark.thorough
def test_what_came_through_a_channel_moves_the_watermark_once_received(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", window=("ts", "1 minute"), identity=["row_id"], front=Frontier("0 seconds")
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    writer = source.where("amount > 0").writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1")
    received = tracking.receive(channel)
    counted = tracking.with_watermark(received, "ts", "windows").groupBy(F.window("ts", "10 minutes"))
    writer.start()
    query = start(tracking, counted.agg(F.count("*").alias("n")), received, "channelled", tmp_path / "cp2")
    feed.put(row(1, 1), row(2, 2), row(3, 3, amount=-1))
    feed.put(row(4, 12))
    tracking.process_all_available()
    assert shown(spark, "channelled", "n") == [(2,)]
    tracking.finish(source)
    tracking.process_all_available()
    assert shown(spark, "channelled", "n") == [(1,), (2,)]
    assert state_rows(query) == 0
    assert tracking.client.job(job).in_flight == 0
    tracking.stop()


@pytest.mark.thorough
def test_rows_without_a_right_watermark_are_refused_and_repaired(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Spark's watermarks start at 1970, so it would drop what is before, in silence."""
    feed.put({**row(1, 1), "ts": "1969-12-31 23:59:59.999"}, row(2, 2))

    def begin(repaired: bool) -> tuple[Tracking, Any]:
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
        if repaired:
            source = source.where("`ts` >= timestamp'1970-01-01 00:00:00Z'")
        counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "10 minutes"))
        writer = tracking.write_stream(counted.agg(F.count("*").alias("n")), source).format("parquet")
        writer.option("path", tmp_path / "out").option("checkpointLocation", tmp_path / "cp").start()
        return tracking, source

    tracking, _ = begin(repaired=False)
    with pytest.raises(Exception, match=r"has 'ts' 1969-12-31 23:59:59.999, and Spark's watermarks start at 1970"):
        tracking.process_all_available()
    tracking.stop()
    tracking, source = begin(repaired=True)
    tracking.process_all_available()
    tracking.finish(source)
    tracking.process_all_available()
    assert [r.n for r in spark.read.parquet(str(tmp_path / "out")).collect()] == [1]
    tracking.stop()


@pytest.mark.thorough
def test_a_query_that_writes_into_a_table_is_tracked(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "10 minutes"))
    writer = tracking.write_stream(counted.agg(F.count("*").alias("n")), source).format("parquet")
    feed.put(row(1, 1), row(2, 2), row(3, 30))
    query = writer.option("path", tmp_path / "out").option("checkpointLocation", tmp_path / "cp").toTable("counted")
    tracking.process_all_available()
    assert [each.producer for each in tracking.client.job(job).producers] == [str(query.id)]
    assert [r.n for r in spark.table("counted").collect()] == [2]
    tracking.stop()
    spark.sql("drop table counted")


@pytest.mark.thorough
def test_windows_up_to_the_last_time_that_is_tracked_come_out(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    far = F.when(F.col("part") == 1, F.timestamp_micros(F.lit(10**18 * 2))).otherwise(F.col("ts")).alias("ts")
    raw = feed.stream(spark).select("row_id", far)
    source = tracking.source(raw, "in", window=("ts", "1 minute"))
    counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "10 minutes"))
    query = start(tracking, counted.agg(F.count("*").alias("n")), source, "far", tmp_path / "cp")
    feed.put(
        {**row(1, 1), "ts": "1970-01-01 00:00:00"},
        {**row(2, 1), "ts": "9999-12-31 23:59:59.999999"},
        row(3, 1, part=1),
    )
    tracking.process_all_available()
    tracking.finish(source)
    tracking.process_all_available()
    ends = spark.table("far").select(F.unix_micros("window.end"), "n").collect()
    assert sorted(map(tuple, ends)) == [(600_000_000, 1), (253_402_300_800_000_000, 1), (2_000_000_000_400_000_000, 1)]
    assert state_rows(query) == 0
    tracking.stop()


@pytest.mark.thorough
def test_rows_that_spark_drops_as_late_are_said(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 minute"), front=Frontier("0 seconds"))
    counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "10 minutes"))
    start(tracking, counted.agg(F.count("*").alias("n")), source, "dropping", tmp_path / "cp")
    feed.put(row(1, 1), row(2, 65))
    tracking.process_all_available()
    assert not [record for record in caplog.records if "dropped" in record.message]
    feed.put(row(3, 2))
    tracking.process_all_available()
    (said,) = [record.message for record in caplog.records if "Spark has dropped 1 rows" in record.message]
    assert "came later than their source had promised" in said
    assert shown(spark, "dropping", "n") == [(1,)]
    tracking.stop()


def test_windows_in_a_zone_of_each_row_have_no_watermark_for_all(spark: SparkSession, job: str, feed: Feed) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    days = ("ts", calendar("1 day", F.col("kind")))
    source = tracking.source(feed.stream(spark), "in", window=days, front=Frontier("0 seconds"))
    with pytest.raises(UsageError, match="one watermark is for all: give the source"):
        tracking.with_watermark(source, "ts", "windows")
