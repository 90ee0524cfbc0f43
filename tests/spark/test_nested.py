"""Windows within windows: each level equals a batch, and a day is made of its hours' rows, and comes out after them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking, TrackingError, UsageError, calendar, nested, session
from spark_client.windows.nested import Level, NestedWindows, windows_in
from spark_client.windows.substreams import Substreams
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of

spark_test = pytest.mark.spark

COLUMNS = ("level", "tenant", "window.start", "window.end", "kind", "n", "ids")
AGGS: Callable[[], dict[str, Any]] = lambda: {"n": F.count("*"), "ids": F.sum("row_id")}  # noqa: E731
KATHMANDU = "'Asia/Kathmandu'"


def day_in_kathmandu() -> Column:
    """Return the window of the day that clocks in Kathmandu show, by Spark's own functions."""
    start = F.date_trunc("day", F.from_utc_timestamp("ts", "Asia/Kathmandu"))
    bounds = (F.to_utc_timestamp(each, "Asia/Kathmandu") for each in (start, start + F.expr("interval 1 day")))
    return F.struct(*[bound.alias(name) for bound, name in zip(bounds, ("start", "end"), strict=True)])


LEVELS: dict[str, tuple[Callable[[], Any], dict[str, Callable[[], Column]]]] = {
    "fixed": (
        lambda: nested("1 hour", "6 hours", "1 day"),
        {length: partial(F.window, "ts", length) for length in ("1 hour", "6 hours", "1 day")},
    ),
    "calendar": (  # hours in UTC, which days in Kathmandu cut in pieces
        lambda: nested("1 hour", calendar("1 day", F.expr(KATHMANDU))),
        {"1 hour": partial(F.window, "ts", "1 hour"), "1 day": day_in_kathmandu},
    ),
}


def batch_of(spark: SparkSession, feed: Feed, levels: Mapping[str, Callable[[], Column]], where: str) -> list[Any]:
    """Compute the result of all rows in one batch by Spark."""
    made = []
    for label, window in levels.items():
        grouped = feed.batch(spark).where(where).groupBy("tenant", window().alias("window"), "kind")
        rows = grouped.agg(*[value.alias(name) for name, value in AGGS().items()]).withColumn("level", F.lit(label))
        made += [tuple(each) for each in rows.select(*COLUMNS).collect()]
    return sorted(made)


def test_a_piece_is_known_to_the_tracker_as_its_windows() -> None:
    hour = 3_600_000_000
    levels = (Level("1 hour", hour, 0, None), Level("1 day", 24 * hour, 0, None))
    rule = NestedWindows(levels, scope="tenant")
    piece = rule.substream("a", f"{hour}/{2 * hour} 0/{24 * hour}")
    assert [each.name for each in rule.tracked_as(piece)] == [
        "1970-01-01T01:00:00Z/1970-01-01T02:00:00Z",
        "1970-01-01T00:00:00Z/1970-01-02T00:00:00Z",
    ]
    assert rule.key_of(piece) == piece.name
    assert windows_in(piece.name) == [(hour, 2 * hour), (0, 24 * hour)]
    assert Substreams.from_json(json.loads(json.dumps(rule.to_json()))) == rule


@pytest.mark.thorough
@spark_test
@pytest.mark.parametrize(
    ("way", "levels", "seed"),
    [
        ("files", "calendar", 1),
        *(
            pytest.param(way, levels, seed, marks=pytest.mark.slow)
            for seed in range(2, 5)
            for way in ("direct", "files", "executors")
            for levels in LEVELS
        ),
    ],
)
def test_each_level_equals_a_batch_and_no_day_comes_before_its_hours(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, way: str, levels: str, seed: int
) -> None:
    rng = random.Random(seed)
    length, batches = LEVELS[levels]

    def start() -> Tracking:
        tracking = BatchTracking(
            feed, spark, job, tracker.address, probe="executors" if way == "executors" else "driver"
        )
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", length()), identity=["row_id"],
            front=Frontier("40 minutes"),
        )  # fmt: skip
        stream = source.where("amount > 0")
        if way != "direct":
            clean = tracking.channel("clean", str(tmp_path / "clean"))
            stream.writeStream.channel(clean).option("checkpointLocation", tmp_path / "cp1").start()
            stream = tracking.receive(clean)
        writer = tracking.release(stream, ["kind"], aggs=AGGS()).writeStream.option("compact_from", 3)
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = start()
    number = 0
    for batch in range(6):
        if batch == 3:
            tracking.stop()
            tracking = start()
        made = []
        for _ in range(rng.randrange(4, 12)):
            number += 1
            minute = 330 * batch + rng.uniform(-39, 0) - rng.choice([0, 0, 300])
            minute = max(minute, 330 * (batch - 1) - 39)
            made.append(row(number, minute, rng.choice("ab"), rng.choice("xy"), rng.randrange(4)))
        feed.put(*made, row(1000 + batch, 330 * batch, rng.choice("ab"), "z"))
        tracking.process_all_available()
        out = rows_of(tmp_path / "out", spark, *COLUMNS)
        known = batch_of(spark, feed, batches, "amount > 0")
        assert set(out) <= set(known), "what is out does not change any more"
        hours = {(each[1], *each[2:5]) for each in out if each[0] == "1 hour"}
        hours_known = [(each[1], *each[2:5]) for each in known if each[0] == "1 hour"]
        for _, tenant, begin, end, kind, *_ in (each for each in out if each[0] != "1 hour"):
            inside = {h for h in hours_known if h[0] == tenant and h[3] == kind and begin <= h[1] and h[2] <= end}
            assert inside <= hours, "a day comes after its hours"
    feed.put(row(2000, 9000, "e"))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == batch_of(spark, feed, batches, "amount > 0 and tenant != 'e'")
    tracking.drain(timeout=600)
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == batch_of(spark, feed, batches, "amount > 0")
    assert tracking.late(str(tmp_path / "cp")).count() == 0
    tracking.stop()


@pytest.mark.thorough
@spark_test
@pytest.mark.parametrize("restarts", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_row_that_is_late_for_its_hour_is_in_no_day(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, restarts: bool
) -> None:
    def start(deployment: str = "1") -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address, deployment)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", nested("1 hour", "1 day")),
            front=Frontier("0 seconds"),
        )  # fmt: skip
        writer = tracking.release(source, ["kind"], aggs=AGGS(), completeness=True).writeStream
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    levels = {length: partial(F.window, "ts", length) for length in ("1 hour", "1 day")}
    tracking = start()
    feed.put(row(1, 5), row(2, 30, kind="y"), row(3, 70))
    tracking.process_all_available()
    if restarts:  # it has forgotten what has ended, and learns it from the tracker
        tracking.stop()
        tracking = start()
    feed.put(row(4, 20), row(5, 80), row(6, 130))
    tracking.process_all_available()
    feed.put(row(7, 140))
    tracking.process_all_available()
    hours = [
        each for each in batch_of(spark, feed, levels, "row_id != 4") if each[0] == "1 hour" and each[5:] != (2, 13)
    ]
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == hours, "the day and its third hour are open"
    late = [json.loads(each["data"]) for each in tracking.late(str(tmp_path / "cp")).collect()]
    assert [each.get("row_id", each.get("ids")) for each in late] == [4]

    tracking.hand_over(timeout=600)  # the day goes on in the next deployment
    tracking = start("2")
    feed.put(row(8, 200), row(9, 100, "b"))
    tracking.process_all_available()
    feed.put(row(10, 1500))
    tracking.process_all_available()
    whole = batch_of(spark, feed, levels, "row_id not in (4, 9, 10)")
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == whole
    tracking.drain(timeout=600)
    by = rows_of(tmp_path / "out", spark, "completeness", *COLUMNS)
    assert [each[1:] for each in by if each[0] == "whole"] == whole
    assert [each[1:] for each in by if each[0] == "drained"] == batch_of(spark, feed, levels, "row_id = 10")
    tracking.stop()


@pytest.mark.thorough
@spark_test
def test_a_drain_whose_sink_failed_is_tried_again_in_the_same_application(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    away = True
    out: list[tuple[Any, ...]] = []

    def deliver(rows: DataFrame, epoch: int) -> None:
        if away:
            raise ConnectionError("the place is away")
        out.extend(tuple(each) for each in rows.select("completeness", *COLUMNS).collect())

    tracking = BatchTracking(feed, spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", nested("1 hour", "1 day")), front=Frontier("0 seconds")
    )
    writer = tracking.release(source, ["kind"], aggs=AGGS(), completeness=True).writeStream.foreachBatch(deliver)
    writer.option("checkpointLocation", tmp_path / "cp").start()
    feed.put(row(1, 5), row(2, 10, "b"), row(3, 15, kind="y"))
    tracking.process_all_available()
    with pytest.raises(TrackingError, match=r"the drain failed: .*the place is away"):
        tracking.drain(timeout=600)
    away = False
    tracking.drain(timeout=600)
    tracking.stop()
    levels = {length: partial(F.window, "ts", length) for length in ("1 hour", "1 day")}
    assert sorted(out) == [("drained", *each) for each in batch_of(spark, feed, levels, "true")]


@spark_test
def test_what_windows_within_windows_cannot_be_is_refused(
    spark: SparkSession, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    rows = feed.stream(spark)
    for lengths in (("1 hour",), ("1 hour", "1 hour")):
        with pytest.raises(UsageError, match="two lengths or more"):
            nested(*lengths)
    for front in (Marks("is_last"), Schedule([])):
        with pytest.raises(UsageError, match="which belongs to several"):
            tracking.source(rows, "in", window=("ts", nested("1 hour", "1 day")), front=front)
    zones = [calendar("1 day", F.col("kind")), calendar("1 month", F.col("tenant"))]
    windows: list[tuple[Any, str]] = [
        (("ts", nested("1 day", "1 hour")), "the shortest first"),
        (("ts", nested("25 minutes", "1 hour")), "a multiple of the one before"),
        (("ts", nested(calendar("1 day", "UTC"), timedelta(days=30))), "calendars last"),
        (("ts", nested("1 hour", cast(Any, 86400))), "is not a length of time: give a text"),
        (("ts", nested("1 hour", "1 day"), "2 days"), "is not shorter than the window"),
        (("ts", nested("1 hour", *zones)), "a row has one time zone"),
        ((F.col("ts").cast("date"), nested("1 day", "7 days")), "is date: a time is"),
    ]
    for window, expected in windows:
        with pytest.raises(UsageError, match=expected):
            tracking.source(rows, "in", window=window)
    source = tracking.source(rows, "in", window=("ts", nested("1 hour", "1 day")), front=Frontier("1 minute"))
    with pytest.raises(UsageError, match="no one window for a row"):
        tracking.with_watermark(source, "ts", "windows")
    for options in ({"columns": ["amount"]}, {"aggs": AGGS(), "revisions": True}):
        with pytest.raises(UsageError, match="windows within windows are aggregated"):
            tracking.release(source, **cast(Any, options))
    with pytest.raises(UsageError, match="are taken"):
        tracking.release(source, [F.col("kind").alias("level")], aggs=AGGS())
    released = tracking.release(source, ["kind"], aggs=AGGS())
    assert released.columns == ["level", "window", "kind", "n", "ids"]
    with pytest.raises(UsageError, match="windows within windows have no receipts"):
        released.writeStream.receipts(tmp_path / "receipts")
    with pytest.raises(UsageError, match="go to files, a sink or a function"):
        released.writeStream.channel(tracking.channel("on", str(tmp_path / "on")))
    tracking.stop()


@pytest.mark.thorough
@spark_test
@pytest.mark.parametrize("window", [nested("1 hour", "1 day"), session("1 hour")], ids=["levels", "sessions"])
@pytest.mark.parametrize("kind", ["rows", "groups"])
def test_a_function_makes_the_results_of_windows_that_share_rows(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, window: Any, kind: str
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", window), front=Frontier("0 seconds")
    )
    released = tracking.release(source, ["kind"], aggs={"n": F.count("*")})
    if kind == "rows":
        minutes = (F.col("window.end").cast("long") - F.col("window.start").cast("long")) / 60
        made = released.apply(lambda found: found.withColumn("minutes", minutes))
    else:

        def measured(group: Any, found: Any) -> Any:
            return found.assign(minutes=(group.end - group.start).total_seconds() / 60)[["n", "minutes"]]

        made = released.applyInPandas(measured, "n long, minutes double")
    made.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    feed.put(row(1, 1), row(2, 50), row(3, 20, kind="y"), row(4, 55, "b"))
    feed.put(row(5, 300), row(6, 290, "b", "y"))
    tracking.process_all_available()
    tracking.drain(timeout=600)
    tracking.stop()
    if repr(window).startswith("nested"):
        windows = [F.window("ts", "1 hour"), F.window("ts", "1 day")]
    else:
        windows = [F.session_window("ts", "1 hour")]
    known = []
    for each in windows:
        counted = feed.batch(spark).groupBy("tenant", each.alias("window"), "kind").agg(F.count("*").alias("n"))
        minutes = (F.col("window.end").cast("long") - F.col("window.start").cast("long")) / 60
        known += [tuple(found) for found in counted.select("tenant", "window.start", "kind", "n", minutes).collect()]
    assert rows_of(tmp_path / "out", spark, "tenant", "window.start", "kind", "n", "minutes") == sorted(known)
