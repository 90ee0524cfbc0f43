"""Sessions by gap in a release: those of Spark's own ``session_window``, each once, as soon as nothing can join it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking, UsageError, calendar, nested, session
from spark_client.release.parts import Part, RowTally, selections
from spark_client.windows.sessions import SessionSteps, stretches
from spark_client.windows.substreams import Substream, Substreams
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of

spark_test = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "window.end", "kind", "n", "ids")
AGGS: Callable[[], dict[str, Any]] = lambda: {"n": F.count("*"), "ids": F.sum("row_id")}  # noqa: E731


def sparks_own(rows: DataFrame, gap: str = "30 minutes") -> list[tuple[Any, ...]]:
    """Return the sessions of all rows, computed in one batch by Spark."""
    window = F.session_window("ts", gap).alias("window")
    made = rows.groupBy("tenant", window, "kind").agg(*[value.alias(name) for name, value in AGGS().items()])
    return sorted(map(tuple, made.select(*COLUMNS).collect()))


# ---------------------------------------------------------------- without Spark


@pytest.mark.parametrize("seed", range(20))
def test_whatever_may_join_a_row_shares_a_stretch_with_it(seed: int) -> None:
    rng = random.Random(seed)
    step = rng.choice([1, 2, 7, 30])
    gap = step * rng.choice([1, 2, 3, 10])

    def of(time: int) -> set[tuple[int, int]]:
        return set(stretches(time - time % step + step, step, gap))

    for _ in range(50):
        one = rng.randrange(-1000, 1000)
        other = one + rng.randrange(-2 * gap, 2 * gap + 1)
        assert all(start <= one < end for start, end in of(one))
        assert len(of(one)) == gap // step + 1
        if abs(one - other) <= gap:
            assert of(one) & of(other), "rows of one session hold a stretch of each other's open"
        # All that may come when the stretches of a row are over is too far from it.
        if not of(one) & of(other):
            assert abs(one - other) > gap
        assert max(end for _, end in of(one)) <= one + gap + step, "it comes out at most a step later than it could"


def test_parts_that_have_something_else_of_a_substream_are_read_alone() -> None:
    one, two, three = (Substream("s", name, None) for name in ("one", "two", "three"))

    def part(name: str, *substreams: Substream) -> Part:
        return Part(name, 0, dict.fromkeys(substreams, RowTally(1)), {}, live=set(substreams))

    parts = {each.name: each for each in (part("p", one, two), part("q", one, two, three), part("r", two))}
    assert selections(parts, {one: ["p", "q"], two: ["p", "q"]}) == [(["p", "q"], {one, two})]
    assert selections(parts, {one: ["p"], two: ["p", "q", "r"]}) == [(["p", "r"], {one, two}), (["q"], {two})]


def test_a_step_is_known_as_all_stretches_that_have_it() -> None:
    hour = 3_600_000_000
    rule = SessionSteps(hour // 2, gap=hour, at="at", scope="tenant")
    step = rule.substream("a", hour)
    assert [each.name for each in rule.tracked_as(step)] == [
        "1969-12-31T23:30:00Z/1970-01-01T01:00:00Z",
        "1970-01-01T00:00:00Z/1970-01-01T01:30:00Z",
        "1970-01-01T00:30:00Z/1970-01-01T02:00:00Z",
    ]
    assert Substreams.from_json(json.loads(json.dumps(rule.to_json()))) == rule


# ---------------------------------------------------------------- against Spark's batch


@pytest.mark.thorough
@spark_test
@pytest.mark.parametrize(
    ("way", "step", "seed"),
    [
        ("files", None, 1),
        *(
            pytest.param(way, step, seed, marks=pytest.mark.slow)
            for seed, (way, step) in enumerate(
                [("direct", "30 minutes"), ("executors", None), ("files", "10 minutes"), ("direct", "3 minutes")] * 3, 2
            )
        ),
    ],
)
def test_sessions_equal_sparks_own_however_rows_come(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, way: str, step: str | None, seed: int
) -> None:
    """Rows are out of order within the front's promise, batches are cut anywhere, and the driver is started anew."""
    rng = random.Random(seed)

    def start() -> Tracking:
        tracking = BatchTracking(
            feed, spark, job, tracker.address, probe="executors" if way == "executors" else "driver"
        )
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", session("30 minutes", step)), identity=["row_id"],
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
        for _ in range(rng.randrange(4, 16)):
            number += 1
            minute = 60 * batch + rng.choice([rng.uniform(-39, 0), rng.choice([-30, 0, -15, -39])])
            made.append(row(number, minute, rng.choice("aabc"), rng.choice("xy"), rng.randrange(4)))
        made.append(row(1000 + batch, 60 * batch, rng.choice("ab"), "z"))  # the newest, in a session from end to end
        feed.put(*made)
        tracking.process_all_available()
        known = sparks_own(feed.batch(spark).where("amount > 0"))
        assert set(rows_of(tmp_path / "out", spark, *COLUMNS)) <= set(known), "what is out does not change any more"
    feed.put(row(2000, 3000, "e"))
    tracking.process_all_available()
    everything = sparks_own(feed.batch(spark).where("amount > 0"))
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == [each for each in everything if each[0] != "e"]
    assert tracking.late(str(tmp_path / "cp")).count() == 0
    state = spark.read.parquet(*map(str, (tmp_path / "cp" / "tracker" / "state").glob("*-*/")))
    assert state.columns, "what is open is there"
    tracking.drain(timeout=600)
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == everything
    tracking.stop()


@pytest.mark.thorough
@spark_test
def test_a_tenants_session_comes_out_when_it_is_over(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", session("30 minutes", "30 minutes")),
        front=Frontier("0 seconds", per_scope=True),
    )  # fmt: skip
    released = tracking.release(source, ["kind"], aggs=AGGS(), completeness=True)
    released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")

    def out() -> list[tuple[Any, ...]]:
        start = "timestampdiff(MINUTE, timestamp'2024-01-01 00:00:00', window.start)"
        if not any((tmp_path / "out").glob("epoch=*")):
            return []
        rows = spark.read.parquet(str(tmp_path / "out")).selectExpr(
            "tenant", start, "timestampdiff(MINUTE, window.start, window.end)", "n", "completeness"
        )
        return sorted(map(tuple, rows.collect()))

    feed.put(row(1, 5), row(2, 35), row(3, 65), row(4, 80, "b"), row(5, 66, kind="y"))
    tracking.process_all_available()
    assert out() == []
    feed.put(row(6, 95), row(7, 119, "b"))  # exactly a gap after the last row: the session goes on
    tracking.process_all_available()
    feed.put(row(8, 149, "b", kind="z"), row(9, 124, kind="z"))
    tracking.process_all_available()
    over = [("a", 66, 30, 1, "whole"), ("b", 80, 30, 1, "whole")]
    assert out() == over, "their last stretches ended at 120; a's first session may go on, as may b's second"
    feed.put(row(10, 150, "b", kind="z"), row(11, 150, kind="z"))
    tracking.process_all_available()
    over += [("a", 5, 120, 4, "whole"), ("b", 119, 30, 1, "whole")]
    assert out() == sorted(over)
    tracking.drain(timeout=600)
    assert out() == sorted([*over, ("a", 124, 56, 2, "drained"), ("b", 149, 31, 2, "drained")])
    tracking.stop()


@pytest.mark.thorough
@spark_test
@pytest.mark.parametrize("restarts", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_late_row_joins_no_session_and_is_set_aside_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, restarts: bool
) -> None:
    def start() -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", session("30 minutes", "15 minutes")),
            front=Frontier("0 seconds"),
        )  # fmt: skip
        writer = tracking.release(source, ["kind"], aggs=AGGS()).writeStream
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = start()
    feed.put(row(1, 0), row(2, 20), row(3, 47))
    tracking.process_all_available()
    feed.put(row(4, 62))
    tracking.process_all_available()
    if restarts:  # it has forgotten what has ended, and learns it from the tracker
        tracking.stop()
        tracking = start()
    # Steps until 60 are promised. The first row is late for all of its stretches, the others for the oldest of them.
    feed.put(row(5, 3), row(6, 40), row(7, 59), row(8, 61, kind="y"))
    tracking.process_all_available()
    feed.put(row(9, 1000, "e"))
    tracking.process_all_available()
    good = feed.batch(spark).where("row_id not in (5, 6, 7) and tenant != 'e'")
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == sparks_own(good)
    late = [json.loads(each["data"]) for each in tracking.late(str(tmp_path / "cp")).collect()]
    assert sum(each.get("n", 1) for each in late) == 3
    assert sum(each["ids"] if "ids" in each else each["row_id"] for each in late) == 5 + 6 + 7
    tracking.drain(timeout=600)
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == sparks_own(feed.batch(spark).where("row_id not in (5, 6, 7)"))
    tracking.stop()


@spark_test
@pytest.mark.slow
def test_open_sessions_go_on_in_the_next_deployment(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start(deployment: str) -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address, deployment)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", session("30 minutes")), identity=["row_id"],
            front=Frontier("5 minutes"),
        )  # fmt: skip
        writer = tracking.release(source, ["kind"], aggs=AGGS(), completeness=True).writeStream
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = start("1")
    for number in range(6):  # a's session goes on all the time, b's ends now and then
        feed.put(row(number, 25 * number), row(100 + number, 25 * number, "ba"[number % 3 == 2], "y"))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    tracking = start("2")
    for number in range(6, 9):
        feed.put(row(number, 25 * number), row(100 + number, 25 * number, "ba"[number % 3 == 2], "y"))
    tracking.process_all_available()
    tracking.drain(timeout=600)
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == sparks_own(feed.batch(spark))
    tracking.stop()


# ---------------------------------------------------------------- refusals


@spark_test
def test_what_sessions_cannot_be_is_refused(spark: SparkSession, job: str, feed: Feed, tmp_path: Path) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    rows = feed.stream(spark)
    for front in (Marks("is_last"), Schedule([])):
        with pytest.raises(UsageError, match="which belongs to several"):
            tracking.source(rows, "in", window=("ts", session("1 hour")), front=front)
    for window, expected in [
        (("ts", session("1 hour", "25 minutes")), "a multiple of the step"),
        (("ts", session("1 hour", "1 second")), "at most 100 times as long"),
        (("ts", session("1 month")), "not a fixed length"),
        (("ts", session("1 hour"), "5 minutes"), "there is no offset"),
        ((F.col("ts").cast("date"), session("1 day")), "is date: .* no gaps"),
        ((F.col("ts") + F.expr("interval 1 hour"), session("1 hour")), "is an expression"),
    ]:
        with pytest.raises(UsageError, match=expected):
            tracking.source(rows, "in", window=window)  # type: ignore[arg-type]
    source = tracking.source(rows, "in", scope="tenant", window=("ts", session("1 hour")), front=Frontier("1 minute"))
    with pytest.raises(UsageError, match="session_window make them"):
        tracking.with_watermark(source, "ts", "windows")
    with pytest.raises(UsageError, match="sessions are aggregated"):
        tracking.release(source, columns=["amount"])
    with pytest.raises(UsageError, match="sessions are aggregated"):
        tracking.release(source, aggs=AGGS(), revisions=True)
    with pytest.raises(UsageError, match="are made when they end"):
        tracking.release(source, aggs=AGGS(), early="1 minute")
    with pytest.raises(UsageError, match="keep it in each select"):
        tracking.release(source.drop("ts"), aggs=AGGS())
    with pytest.raises(UsageError, match="keep it in each select"):
        tracking.release(source.withColumn("ts", F.col("ts").cast("string")), aggs=AGGS())
    tagged = source.withColumn("tags", F.create_map("kind", "tenant")).withColumn("all", F.array(F.struct("tags")))
    for key in ("tags", "all"):
        with pytest.raises(UsageError, match="sessions are found by sorting, and Spark cannot sort by"):
            tracking.release(tagged, [key], aggs=AGGS())
    tracking.release(tagged, [F.array_sort(F.map_entries("tags")).alias("tags")], aggs=AGGS())
    released = tracking.release(source, aggs=AGGS())
    with pytest.raises(UsageError, match="sessions have no receipts"):
        released.writeStream.receipts(tmp_path / "receipts")
    with pytest.raises(UsageError, match="sessions go to files"):
        released.writeStream.channel(tracking.channel("on", str(tmp_path / "on")))
    tracking.stop()


@pytest.mark.thorough
@spark_test
@pytest.mark.parametrize("length", [session("1 hour"), nested("1 hour", "1 day"), calendar("1 day", "Asia/Tokyo")])
def test_columns_are_found_whatever_the_case_in_which_they_are_written(
    spark: SparkSession, job: str, feed: Feed, length: Any
) -> None:
    tracking = Tracking(spark, job, "127.0.0.1:1")
    front = Frontier("1 minute")
    source = tracking.source(feed.stream(spark), "in", scope="Tenant", window=("TS", length), front=front)
    for rows in (source, source.select("_tracker", "Ts", "tenant", "KIND", "row_id")):
        tracking.release(rows, ["kinD"], aggs=AGGS())
    tracking.stop()


@spark_test
@pytest.mark.slow
def test_a_step_that_changes_the_time_fails_its_batch_and_loses_nothing(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start(change: Callable[[DataFrame], DataFrame]) -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", session("30 minutes")), front=Frontier("0 seconds")
        )
        writer = tracking.release(source.transform(change), ["kind"], aggs=AGGS()).writeStream
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    feed.put(row(1, 5), row(2, 500, "e"))
    tracking = start(lambda rows: rows.withColumn("ts", F.col("ts") + F.expr("interval 20 minutes")))
    with pytest.raises(StreamingQueryException, match="leave the column as it is"):
        tracking.process_all_available()
    tracking.stop()
    tracking = start(lambda rows: rows.withColumn("later", F.col("ts") + F.expr("interval 20 minutes")))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == sparks_own(feed.batch(spark).where("tenant != 'e'"))
    tracking.stop()


@pytest.mark.thorough
@spark_test
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", ["timestamp", pytest.param("timestamp_ntz", marks=pytest.mark.slow)])
def test_results_have_the_types_of_sparks_own(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, kind: str
) -> None:
    feed = Feed(tmp_path / "raw")
    feed.put(row(1, 5), row(2, 5.25), row(3, -500), row(4, 3000, "e"))
    tracking = Tracking(spark, job, tracker.address)
    rows = feed.stream(spark).withColumn("ts", F.col("ts").cast(kind))
    source = tracking.source(rows, "in", window=("ts", session("90 seconds")), front=Frontier("0 seconds"))
    released = tracking.release(source, ["tenant", "kind"], aggs={**AGGS(), "mean": F.avg("value")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    tracking.process_all_available()
    tracking.drain(timeout=600)
    batch = feed.batch(spark).withColumn("ts", F.col("ts").cast(kind))
    window = F.session_window("ts", "90 seconds").alias("window")
    expected = batch.groupBy(window, "tenant", "kind").agg(*[value.alias(name) for name, value in AGGS().items()])
    columns = [F.col(name).cast("string").alias(str(place)) for place, name in enumerate(COLUMNS)]
    got = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(got.select(*columns).collect()) == sorted(expected.select(*columns).collect())
    assert got.schema["window"].dataType == expected.schema["window"].dataType
    assert isinstance(got.schema["mean"].dataType, T.DoubleType)
    tracking.stop()
