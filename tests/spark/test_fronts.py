"""Fronts: what a source can promise, and what that ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Tracking
from tests.client.processes import Server
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
    tracking = Tracking(spark, job, tracker.address)
    start(tracking, feed, Frontier("0 seconds", partition="part", partitions=2), tmp_path)
    feed.put(row(1, 1, part=7))
    with pytest.raises(Exception, match="a partition outside 0 to 1: declare partitions="):
        tracking.process_all_available()
    tracking.stop()
