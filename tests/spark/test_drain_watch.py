"""Listening for a drain, and letting go of it: over lost lines, lost events, and a tracker that is away."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from spark_client.runtime.drains import DrainWatch
from tests.client.processes import Line, Server
from tests.spark.feed import Feed, row
from tests.spark.waiting import soon
from tracker.client import JobSpec, ShardedClient, Subscription, TrackerClient


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tracking-")]


def test_a_drain_is_noticed_though_its_event_was_dropped(
    mortal_tracker: Server, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "spark_client")
    line = Line(mortal_tracker.address)
    near = TrackerClient(mortal_tracker.address)
    near.define_job(
        JobSpec(job=job, deployment="1", segments={"in": []}, fronts=["in"], retention=timedelta(seconds=0.2))
    )
    heard: list[int] = []  # for each time that it tells of a drain: how often it had started again by then

    def restarts() -> int:
        return caplog.text.count(f"the watch over job {job} starts again: EVENTS_EXPIRED")

    def listens() -> bool:
        """It asks once, when it begins: what it tells of besides has come by the line."""
        near.drain(job, "1", "short")
        near.cancel_drain(job)
        return heard.count(restarts()) > 1

    watch = DrainWatch(TrackerClient(line.address), job, "1", lambda _: heard.append(restarts()))
    watch.open()
    try:
        for attempt in range(3):
            soon(listens)
            before = restarts()
            line.hold_answers()
            near.drain(job, "1", f"attempt {attempt}")
            soon(lambda: near.list_events(job).first_seq > near.job(job).last_seq)  # nobody will read of it any more
            line.cut()
            soon(lambda: max(heard) > before)  # noqa: B023 - waits here
            near.cancel_drain(job)
    finally:
        watch.close()
        line.close()
    told = len(heard)
    near.drain(job, "1", "last")
    soon(lambda: threads() == [])
    assert len(heard) == told


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.slow), "stands still"])
def test_stop_ends_an_acknowledgement_that_the_tracker_does_not_take(
    spark: SparkSession,
    mortal_tracker: Server,
    job: str,
    feed: Feed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    soon(lambda: threads() == [])
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
    soon(lambda: threads() == [])


def test_a_drain_of_several_trackers_is_told_of_when_all_have_it(mortal_trackers: list[Server], job: str) -> None:
    client = ShardedClient(",".join(tracker.address for tracker in mortal_trackers))
    client.define_job(JobSpec(job=job, deployment="1", segments={"in": []}, fronts=["in"]))
    told = threading.Event()
    watch = DrainWatch(client, job, "1", lambda _: told.set())
    watch.open()
    shards = client.logs(job)
    try:
        for at, name in shards[:2]:  # whoever asked for it has died in between
            at.drain(name, "1", "d")
            assert not told.wait(0.3)
        watch.close()
        watch.open()
        assert not told.wait(0.3)
        mortal_trackers[0].restart()
        at, name = shards[2]
        at.drain(name, "1", "d")
        assert told.wait(600)
    finally:
        watch.close()
