"""Each query brings itself to rest, and meets the others at the tracker alone; batches are given without a stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of
from tests.spark.waiting import soon
from tracker.client import DrainMode, DrainState

pytestmark = pytest.mark.spark

GRAPH = {"in": ["clean"], "clean": []}


class Job:
    """A sender and a release that receives from it, each in an application of its own."""

    def __init__(self, spark: SparkSession, address: str, job: str, feed: Feed, path: Path) -> None:
        self.spark, self.address, self.job, self.feed, self.path = spark, address, job, feed, path

    def tracking(self, deployment: str) -> Tracking:
        given = {"segments": GRAPH, "fronts": ["in"]}
        return BatchTracking(self.feed, self.spark, self.job, self.address, deployment, **given)

    def start(self, deployment: str) -> tuple[Tracking, Tracking]:
        sender, receiver = (self.tracking(deployment) for _ in range(2))
        source = sender.source(
            self.feed.stream(self.spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        to = source.writeStream.channel(sender.channel("clean", str(self.path / "clean")))
        to.option("checkpointLocation", self.path / "cp1").start()
        received = receiver.receive(receiver.channel("clean", str(self.path / "clean")))
        released = receiver.release(received, ["kind"], aggs={"rows": F.count("*")}).writeStream
        released.option("checkpointLocation", self.path / "cp2").start(self.path / "out")
        return sender, receiver

    def results(self) -> list[tuple[object, ...]]:
        return rows_of(self.path / "out", self.spark, "kind", "rows")


@pytest.fixture
def it(spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path) -> Job:
    return Job(spark, tracker.address, job, feed, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", [DrainMode.FINISH, DrainMode.HAND_OVER])
def test_queries_rest_when_a_drain_is_asked_for_at_the_tracker(it: Job, mode: DrainMode) -> None:
    applications = sender, _ = it.start("1")
    it.feed.put(row(1, 1), row(2, 2, kind="y"))
    for each in applications:
        each.process_all_available()
    sender.client.drain(it.job, "1", "asked", hand_over=mode is DrainMode.HAND_OVER)
    soon(lambda: not sender.queries[0].query.isActive)  # type: ignore[union-attr]
    it.feed.put(row(3, 3, last=True))  # for the next deployment
    for each in applications:
        each.await_drained(timeout=600)
    status = sender.client.job(it.job)
    assert (status.drain.state, status.drain.mode) == (DrainState.DRAINED, mode)
    assert all(producer.closed for producer in status.producers)
    first = [("x", 1), ("y", 1)] if mode is DrainMode.FINISH else []
    assert it.results() == first
    for each in applications:
        each.stop()

    for each in it.start("2"):
        each.process_all_available()
        each.stop()
    rest = [("x", 1)] if mode is DrainMode.FINISH else [("x", 2), ("y", 1)]
    assert it.results() == sorted([*first, *rest])
