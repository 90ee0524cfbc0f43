"""The drain that a query is asked for, and letting go of events while the tracker is away."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from spark_client.counting.runs import Run
from tests.client.processes import Server
from tests.spark.conftest import Threads
from tests.spark.feed import Feed, row
from tests.spark.waiting import soon
from tracker.client import DrainMode, JobSpec, ShardedClient, Subscription, TrackerClient


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.slow), "stands still"])
def test_stop_ends_an_acknowledgement_that_the_tracker_does_not_take(
    threads: Threads,
    spark: SparkSession,
    mortal_tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    tracking = Tracking(spark, job, mortal_tracker.address, retry_for=36000)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    writer = tracking.release(source, aggs={"rows": F.count("*")}).writeStream
    acknowledge, asked = Subscription.ack, threading.Event()

    def lose_the_tracker(self: Subscription, *given: Any, **named: Any) -> int:
        if not asked.is_set():
            (mortal_tracker.kill if how == "killed" else mortal_tracker.freeze)()
            asked.set()
        return acknowledge(self, *given, **named)

    monkeypatch.setattr(Subscription, "ack", lose_the_tracker)
    writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    feed.put(row(1, 1, last=True))
    assert asked.wait(600)
    tracking.stop(timeout=1)
    soon(lambda: not threads())


@pytest.mark.thorough
def test_a_drain_of_several_trackers_begins_when_all_have_it(mortal_trackers: list[Server], job: str) -> None:
    client = ShardedClient(",".join(tracker.address for tracker in mortal_trackers))
    client.define_job(JobSpec(job=job, deployment="1", segments={"in": []}, fronts=["in"]))
    run = Run(client, job, "query", "1", 0)
    shards = client.logs(job)
    for at, name in shards[:2]:  # whoever asked for it has died in between
        at.drain(name, "1", "d", hand_over=True)
        assert run.drains() is None
    at, name = shards[2]
    at.drain(name, "1", "d", hand_over=True)
    assert run.drains() is DrainMode.HAND_OVER


def test_a_drain_of_another_deployment_concerns_no_run(tracker: Server, job: str) -> None:
    client = TrackerClient(tracker.address)
    client.define_job(JobSpec(job=job, deployment="1", segments={"in": []}, fronts=["in"]))
    run = Run(client, job, "query", "1", 0)
    client.drain(job, "2", "early", hand_over=True)
    assert run.drains() is None
    client.drain(job, "1", "own")
    assert run.drains() is DrainMode.FINISH
    client.cancel_drain(job)
    assert run.drains() is None
