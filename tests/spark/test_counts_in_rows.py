"""Rows that have how many there are: a substream ends with its last row, whatever was killed or drained meanwhile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Schedule, Tracking, TrackingError, UsageError
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark


class Orders:
    """A release of orders, each of which comes in parts; `amount` has their number, or null for 0."""

    def __init__(self, tracking: Tracking, feed: Feed, path: Path, step: bool = False, **front: Any) -> None:
        self.tracking, self._path = tracking, path
        number = F.nullif(F.col("amount"), F.lit(0))
        rows = feed.stream(tracking.spark)
        source = tracking.source(rows, "in", substream="tenant", front=Schedule.in_rows(number, **front))
        stream = source.where("kind <> 'dropped'") if step else source
        writer = tracking.release(stream, aggs={"n": F.count("*")}).writeStream
        writer.option("checkpointLocation", path / "cp").start(path / "out")

    def results(self) -> list[tuple[str, int]]:
        self.tracking.process_all_available()
        return [(name, n) for name, n in rows_of(self._path / "out", self.tracking.spark, "tenant", "n")]

    def expected(self) -> dict[str, tuple[int | None, int]]:
        open_ones = self.tracking.client.substreams(self.tracking.job)
        return {each.name: (each.segments[0].expected, each.segments[0].sent) for each in open_ones}


def test_an_order_ends_with_its_last_part(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    orders = Orders(BatchTracking(feed, spark, job, tracker.address), feed, tmp_path, step=True)
    feed.put(row(1, 1, "a", amount=3), row(2, 2, "header", amount=2), row(3, 3, "one", amount=1))
    assert orders.results() == [("one", 1)]
    assert orders.expected() == {"a": (3, 1), "header": (2, 1)}
    feed.put(row(4, 1, "a", amount=3), row(5, 1, "header", amount=0))
    assert orders.results() == [("header", 2), ("one", 1)]
    feed.put(row(6, 1, "a", "dropped", amount=3))
    assert orders.results() == [("a", 2), ("header", 2), ("one", 1)]
    orders.tracking.stop()


@pytest.mark.thorough
def test_each_order_equals_a_batch_over_kills_and_drains(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """A drain releases what is there; the rest comes out, once, when the rest of the parts have come."""
    draw = random.Random(4)
    sizes = {f"o{number}": draw.randrange(1, 6) for number in range(12)}
    rows = [row(n, 1, name, amount=size) for name, size in sizes.items() for n in range(size)]
    draw.shuffle(rows)
    deployment, orders = 1, Orders(BatchTracking(feed, spark, job, tracker.address), feed, tmp_path)
    steps = ["goes on", "is stopped", "is drained", "goes on", "is drained", "is stopped"]
    for step, end in enumerate(steps):
        feed.put(*rows[step :: len(steps)])
        orders.results()
        if end == "is drained":
            orders.tracking.drain(120)
            deployment += 1
        elif end == "is stopped":
            orders.tracking.stop()
        if end != "goes on":
            tracking = BatchTracking(feed, spark, job, tracker.address, str(deployment))
            orders = Orders(tracking, feed, tmp_path)
    released: dict[str, int] = {}
    for name, number in orders.results():
        released[name] = released.get(name, 0) + number
    assert released == sizes
    assert orders.expected() == {}
    orders.tracking.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("revise", [False, True])
def test_another_number_is_refused_or_revises(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, revise: bool
) -> None:
    orders = Orders(BatchTracking(feed, spark, job, tracker.address), feed, tmp_path, revise=revise)
    feed.put(row(1, 1, "a", amount=3), row(2, 1, "a", amount=2))
    assert orders.results() == []
    assert orders.expected() == {"a": (3, 2)}
    feed.put(row(3, 1, "a", amount=4))
    if not revise:
        with pytest.raises(TrackingError, match="EXPECT_CONFLICT"):
            orders.results()
        return
    assert orders.results() == []
    assert orders.expected() == {"a": (4, 3)}
    orders.tracking.stop()


def test_numbers_that_are_none_are_refused_or_bad_rows(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    with pytest.raises(UsageError, match="'kind' is string, and a number of rows is an integer"):
        tracking.source(feed.stream(spark), "other", substream="tenant", front=Schedule.in_rows("kind"))
    tracking = BatchTracking(feed, spark, job, tracker.address)
    orders = Orders(tracking, feed, tmp_path)
    feed.put(row(1, 1, "a", amount=-1))
    with pytest.raises(Exception, match="the number is negative"):
        orders.results()
    tracking.stop()
