"""Names that come again when the tracker has forgotten their end (`Tracking(remember=…)`): each time has a result."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Released, Tracking
from spark_client.release.state_export import STATE, export
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark


class Job:
    """A release of named substreams, whose ends are remembered for a moment only."""

    def __init__(self, spark: SparkSession, tracker: Server, job: str, feed: Feed, path: Path) -> None:
        self._spark, self._feed, self._job, self._address = spark, feed, job, tracker.address
        self.path, self.checkpoint = path, path / "cp"

    def start(self, remember: str = "1 second") -> tuple[Tracking, Released]:
        tracking = BatchTracking(
            self._feed, self._spark, self._job, self._address, retention="1 second", remember=remember
        )
        rows = tracking.source(self._feed.stream(self._spark), "in", substream="kind", front=Marks("is_last"))
        released = tracking.release(rows, aggs={"n": F.count("*"), "total": F.sum("amount")}, early="1 millisecond")
        released.writeStream.option("checkpointLocation", self.checkpoint).start(self.path / "out")
        return tracking, released

    def results(self) -> list[tuple[Any, ...]]:
        return rows_of(self.path / "out", self._spark, "kind", "n", "total")

    def forgotten(self, tracking: Tracking, name: str) -> None:
        """Wait until the tracker has forgotten a name that has ended: lists it no more, and has no tombstone of it."""
        client, until = tracking.client, time.monotonic() + 60
        while any(each.name == name for each in client.substreams(self._job, (), True)) or (
            client.job(self._job).tombstones
        ):
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.fixture
def it(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Job:
    return Job(spark, tracker, job, feed, tmp_path)


def shown(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows.select("kind", "n", "total").collect()))


@pytest.mark.thorough
def test_rows_of_a_released_time_are_not_in_the_next_one(
    spark: SparkSession, it: Job, feed: Feed, tmp_path: Path
) -> None:
    """The part with x's first row stays, as y's is in it: after a restart only the version knows that x has ended."""
    tracking, _ = it.start()
    feed.put(row(1, 1, kind="x", amount=100, last=True), row(2, 2, kind="y", amount=7))
    tracking.process_all_available()
    it.forgotten(tracking, "x")
    tracking.stop()
    tracking, released = it.start()
    feed.put(row(3, 3, kind="x", amount=10))
    tracking.process_all_available()
    feed.put(row(4, 4, kind="z"))  # early results are of the batches before
    tracking.process_all_available()
    assert shown(tracking.early(it.checkpoint)) == [("x", 1, 10), ("y", 1, 7)]
    so_far = [("x", 1, 10), ("y", 1, 7), ("z", 1, 1)]
    assert shown(released.state(it.checkpoint)) == so_far
    tracking.stop()
    export(spark, Folder(it.checkpoint), tmp_path / "snapshot")
    kept = spark.read.parquet(str(tmp_path / "snapshot" / STATE)).select("kind", "n")  # a sum is kept as two values
    assert sorted(map(tuple, kept.collect())) == [("x", 1), ("y", 1), ("z", 1)]
    tracking, _ = it.start()
    feed.put(row(5, 5, kind="x", amount=1, last=True), row(6, 6, kind="y", amount=1, last=True))
    tracking.process_all_available()
    assert it.results() == [("x", 1, 100), ("x", 2, 11), ("y", 2, 8)]
    assert tracking.late(str(it.checkpoint)).count() == 0
    tracking.stop()


@pytest.mark.thorough
def test_a_driver_releases_a_returning_name_again(it: Job, feed: Feed) -> None:
    tracking, _ = it.start()
    feed.put(row(1, 1, kind="x", amount=100, last=True))
    tracking.process_all_available()
    it.forgotten(tracking, "x")
    feed.put(row(2, 2, kind="x", amount=10))
    feed.put(row(3, 3, kind="x", amount=1, last=True))
    tracking.process_all_available()
    assert it.results() == [("x", 1, 100), ("x", 2, 11)]
    assert tracking.late(str(it.checkpoint)).count() == 0
    tracking.stop()


@pytest.mark.thorough
def test_rows_of_a_name_that_is_not_forgotten_yet_are_late(it: Job, feed: Feed) -> None:
    tracking, released = it.start("1 hour")
    feed.put(row(1, 1, kind="x", amount=100, last=True))
    for number in (2, 3, 4):  # in batches with the end and after it
        feed.put(row(number, number, kind="x", amount=10))
    tracking.process_all_available()
    assert it.results() == [("x", 1, 100)]
    late = tracking.late(str(it.checkpoint)).select(F.get_json_object("data", "$.n").cast("int").alias("n"))
    assert late.agg(F.sum("n")).first() == (3,)
    assert shown(released.state(it.checkpoint)) == []
    tracking.stop()
