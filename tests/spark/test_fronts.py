"""Fronts: what a source can promise, and what that ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Tracking, TrackingError, UsageError
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "rows")


def start(tracking: Tracking, feed: Feed, front: Any, path: Path) -> Any:
    source = tracking.source(
        feed.stream(tracking.spark), "in", scope="tenant", window=("ts", "10 minutes"), front=front
    )
    released = tracking.release(source, aggs={"rows": F.count("*")})
    released.writeStream.option("checkpointLocation", path / "cp").start(path / "out")
    return source


def released(tracking: Tracking, path: Path) -> list[tuple[str, int, int]]:
    tracking.process_all_available()
    return [(r[0], r[1].hour * 60 + r[1].minute, r[2]) for r in rows_of(path / "out", tracking.spark, *COLUMNS)]


@pytest.mark.thorough
def test_the_slowest_partition_holds_and_the_allowed_delay_is_waited_for(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = start(tracking, feed, Frontier("5 minutes", partition="part", partitions=2), tmp_path)
    feed.put(row(1, 1), row(2, 40))  # the other partition has not spoken
    assert released(tracking, tmp_path) == []
    feed.put(row(3, 14, part=1))
    assert released(tracking, tmp_path) == []  # 14 - 5 is within the first window
    feed.put(row(4, 9, part=1), row(5, 15, part=1))
    assert released(tracking, tmp_path) == [("a", 0, 2)]
    tracking.finish(source)
    assert released(tracking, tmp_path) == [("a", 0, 2), ("a", 10, 2), ("a", 40, 1)]
    tracking.stop()


@pytest.mark.thorough
def test_each_scope_may_follow_its_own_clock(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    start(tracking, feed, Frontier("0 seconds", per_scope=True), tmp_path)
    feed.put(row(1, 1, "quick"), row(2, 1, "slow"), row(3, 30, "quick"))
    assert released(tracking, tmp_path) == [("quick", 0, 1)]
    feed.put(row(4, 10, "slow"))
    assert released(tracking, tmp_path) == [("quick", 0, 1), ("slow", 0, 1)]
    tracking.stop()


def test_a_partition_that_was_not_declared_fails_the_batch(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    start(tracking, feed, Frontier("0 seconds", partition="part", partitions=2), tmp_path)
    feed.put(row(1, 1, part=7))
    with pytest.raises(Exception, match="part is no partition from 0 to 1, as the front declares them"):
        tracking.process_all_available()
    tracking.stop()


@pytest.mark.thorough
def test_sources_that_never_meet_do_not_hold_each_other(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    """H12: each has tenants that the other has not, and neither closes what it does not know."""
    feeds = {name: Feed(tmp_path / name) for name in ("orders", "clicks", "visits")}
    tracking = Tracking(spark, job, tracker.address)
    streams = {
        name: tracking.source(
            feed.stream(spark),
            name,
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        for name, feed in feeds.items()
    }
    met = tracking.channel("met", str(tmp_path / "met"))
    writers = [  # these two do meet
        streams[name].writeStream.channel(met).option("checkpointLocation", tmp_path / f"cp-{name}")
        for name in ("clicks", "visits")
    ]
    for name, stream in (("orders", streams["orders"]), ("met", tracking.receive(met))):
        writer = tracking.release(stream, aggs={"rows": F.count("*")}).writeStream
        writers.append(
            writer.option("checkpointLocation", tmp_path / f"cp-{name}").option("path", tmp_path / f"out-{name}")
        )
    for writer in writers:
        writer.start()

    def out(name: str) -> list[Any]:
        tracking.process_all_available()
        return rows_of(tmp_path / f"out-{name}", spark, "tenant", "rows")

    feeds["orders"].put(row(1, 1, "only-orders"), row(2, 2, "only-orders", last=True), row(3, 3, "both", last=True))
    feeds["clicks"].put(row(4, 4, "both"), row(5, 5, "both", last=True))
    assert out("orders") == [("both", 1), ("only-orders", 2)]
    assert out("met") == [], "visits may still have some"
    feeds["visits"].put(row(6, 6, "both", last=True))
    assert out("met") == [("both", 3)]
    tracking.stop()


def test_a_promise_by_scope_without_scopes_is_one_for_all(
    spark: SparkSession, tracker: Server, job: str, feed: Feed
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    front = Frontier("0 seconds", per_scope=True)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "10 minutes"), front=front)
    tracking.with_watermark(source, "ts", "windows")  # which takes promises for all scopes alone
    tracking.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("per_scope", [False, True])
@pytest.mark.parametrize("ahead", ["5 minutes", None])
def test_a_clock_that_is_ahead_makes_no_honest_row_late(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, per_scope: bool, ahead: Any
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = start(tracking, feed, Frontier("0 seconds", per_scope=per_scope, ahead=ahead), tmp_path)
    feed.put(row(1, 1), row(2, 60 * 24 * 365 * 200))
    feed.put(row(3, 2))
    feed.put(row(4, 30))
    assert released(tracking, tmp_path) == ([("a", 0, 1)] if ahead is None else [("a", 0, 2)])
    assert tracking.late(str(tmp_path / "cp")).count() == (2 if ahead is None else 0)
    tracking.finish(source)
    tracking.process_all_available()
    assert sum(rows for *_, rows in released(tracking, tmp_path)) == (2 if ahead is None else 4)
    tracking.stop()


def test_a_frontier_compares_times_without_a_zone_with_the_sessions_clock(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    shift = F.expr("timestampdiff(SECOND, timestamp'2024-01-01', localtimestamp()) + amount")  # of the feed's first day
    raw = feed.stream(spark).withColumn("at", F.to_timestamp_ntz("ts") + F.make_dt_interval(secs=shift))
    source = tracking.source(raw, "in", window=("at", "1 day"), front=Frontier("0 seconds"))
    writer = tracking.release(source, aggs={"rows": F.count("*")}).writeStream
    writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    feed.put(row(1, 0, amount=-3 * 86_400), row(2, 0, amount=3 * 86_400))
    feed.put(row(3, 0, amount=-3 * 86_400), row(4, 0, amount=-86_400))
    tracking.process_all_available()
    assert [r[0] for r in rows_of(tmp_path / "out", spark, "rows")] == [2]
    tracking.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("probe", ["driver", "executors"])
def test_a_window_closes_when_each_of_its_parts_has_marked_it(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, probe: Any
) -> None:
    tracking = Tracking(spark, job, tracker.address, probe=probe)
    start(tracking, feed, Marks("is_last", partition="part", partitions=3), tmp_path)
    feed.put(row(1, 1, part=0, last=True), row(2, 2, part=1), row(3, 11, part=0, last=True))
    feed.put(row(4, 3, part=2, last=True), row(5, 12, part=1, last=True))
    assert released(tracking, tmp_path) == [], "one part has not come"
    feed.put(row(6, 4, part=1, last=True))
    assert released(tracking, tmp_path) == [("a", 0, 4)]
    tracking.stop()
    tracking = Tracking(spark, job, tracker.address, probe=probe)
    start(tracking, feed, Marks("is_last", partition="part", partitions=3), tmp_path)
    feed.put(row(7, 13, part=2, last=True))
    assert released(tracking, tmp_path) == [("a", 0, 4), ("a", 10, 3)]
    tracking.stop()


def test_a_part_that_was_not_declared_fails_the_batch(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    start(tracking, feed, Marks("is_last", partition="part", partitions=2), tmp_path)
    feed.put(row(1, 1, part=2, last=True))
    with pytest.raises(TrackingError, match="part is no partition from 0 to 1"):
        tracking.process_all_available()
    tracking.stop()


UPLOADERS = ["it's", "west", "east"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "steps",
    [False, pytest.param(True, marks=pytest.mark.thorough)],
    ids=["counted by the release", "counted by itself"],
)
def test_parts_may_have_names_and_one_more_may_come(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, steps: bool
) -> None:
    """The next deployment declares it, in any order of names; what the others have marked stands."""

    def begin(deployment: str, uploaders: list[str]) -> BatchTracking:
        tracking = BatchTracking(feed, spark, job, tracker.address, deployment)
        front = Marks("is_last", partition="kind", partitions=uploaders)
        rows = feed.stream(spark)
        source = tracking.source(rows, "in", scope="tenant", window=("ts", "10 minutes"), front=front)
        released = tracking.release(source.where("amount > 0") if steps else source, aggs={"rows": F.count("*")})
        released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = begin("1", UPLOADERS[:2])
    feed.put(row(1, 1, kind="it's", last=True), row(2, 11, kind="it's", last=True), row(3, 2, kind="west"))
    assert released(tracking, tmp_path) == []
    tracking.stop()
    tracking = begin("1", UPLOADERS[:2])
    feed.put(row(4, 3, kind="west", last=True))
    assert released(tracking, tmp_path) == [("a", 0, 3)]
    (left,) = tracking.client.substreams(job)
    assert left.waiting_for == ("in/west",)
    tracking.hand_over(timeout=600)
    tracking = begin("2", ["east", "west", "it's"])
    feed.put(row(5, 12, kind="west", last=True), row(6, 21, kind="west", last=True), row(7, 21, kind="east", last=True))
    assert released(tracking, tmp_path) == [("a", 0, 3)], "the added one has not marked the second window"
    feed.put(row(8, 13, kind="east", last=True), row(9, 22, kind="it's", last=True))
    assert released(tracking, tmp_path) == [("a", 0, 3), ("a", 10, 3), ("a", 20, 3)]
    feed.put(row(10, 31, kind="north"))
    with pytest.raises(TrackingError, match="kind is none of the partitions that the front declares"):
        released(tracking, tmp_path)
    tracking.stop()


@pytest.mark.parametrize(
    ("partition", "partitions"),
    [
        *(("part", 1), (None, ["a"]), ("part", []), ("part", ["a", "a"]), ("part", ["a", None]), ("part", ["a", ""])),
        *(("part", 2.5), ("part", None), ("part", iter("ab"))),
    ],
)
def test_partitions_are_given_with_their_number_or_names(partition: Any, partitions: Any) -> None:
    for front in (lambda: Marks("is_last", partition, partitions), lambda: Frontier("1 hour", partition, partitions)):
        with pytest.raises(UsageError, match="give partition='column' and partitions=n"):
            front()


@pytest.mark.parametrize(
    ("column", "partitions", "said"),
    [
        ("part", ["a", "b"], "is int, and its partitions have names: cast it"),
        ("value", 2, "is double, and its partitions have numbers: cast it to int"),
    ],
)
def test_partitions_with_names_are_texts_and_others_whole_numbers(
    spark: SparkSession, feed: Feed, column: str, partitions: Any, said: str
) -> None:
    hours: Any = {"window": ("ts", "1 hour"), "front": Frontier("1 hour", column, partitions)}
    with pytest.raises(UsageError, match=said):
        Tracking(spark, "named", "127.0.0.1:1").source(feed.stream(spark), "in", **hours)


@pytest.mark.thorough
def test_a_part_more_is_declared_by_the_next_deployment_and_loses_nothing(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    start(tracking, feed, Marks("is_last", partition="part", partitions=2), tmp_path)
    feed.put(row(1, 1, part=0, last=True), row(2, 2, part=1), row(3, 11, part=0, last=True))
    tracking.process_all_available()
    tracking.hand_over(timeout=600)
    tracking = Tracking(spark, job, tracker.address, deployment="2")
    start(tracking, feed, Marks("is_last", partition="part", partitions=3), tmp_path)
    feed.put(row(4, 3, part=1, last=True), row(5, 4, part=2), row(6, 5, part=2))
    assert released(tracking, tmp_path) == [], "the further part has not marked it"
    feed.put(row(7, 6, part=2, last=True))
    assert released(tracking, tmp_path) == [("a", 0, 6)]
    tracking.stop()
