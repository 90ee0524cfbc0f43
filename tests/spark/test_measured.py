"""A front that learns its delay: windows end as soon as the rows' lateness allows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Tracking, UsageError
from spark_client.fronts.front import Front, LiveFront
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import Substream
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of
from tracker.lateness import Promised

pytestmark = pytest.mark.spark

MINUTE = 60_000_000
HALF = Frontier.measured("50%", ceiling="30 minutes")  # three windows are enough to learn from


def source_of(tracking: Tracking, feed: Feed, front: Any = HALF) -> Any:
    return tracking.source(feed.stream(tracking.spark), "in", scope="tenant", window=("ts", "10 minutes"), front=front)


def start(tracking: Tracking, feed: Feed, path: Path) -> None:
    released = tracking.release(source_of(tracking, feed), aggs={"rows": F.count("*")})
    writer = released.writeStream.queryName("ten").option("checkpointLocation", path / "cp")
    writer.start(path / "out")


def released(tracking: Tracking, path: Path) -> list[tuple[str, int, int]]:
    tracking.process_all_available()
    rows = rows_of(path / "out", tracking.spark, "tenant", "window.start", "rows")
    return [(tenant, begin.hour * 60 + begin.minute, number) for tenant, begin, number in rows]


@pytest.mark.thorough
def test_windows_wait_for_the_ceiling_until_the_delay_is_known(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    registry = CollectorRegistry()
    tracking = BatchTracking(feed, spark, job, tracker.address, metrics=registry)
    start(tracking, feed, tmp_path)
    feed.put(*(row(minute, minute) for minute in range(1, 50, 10)))
    assert released(tracking, tmp_path) == [("a", 0, 1)]
    feed.put(row(51, 51), row(52, 1))  # late by 40 minutes, and by 10 more than the ceiling
    assert released(tracking, tmp_path) == [("a", 0, 1), ("a", 10, 1)]
    feed.put(row(81, 81))
    tracking.process_all_available()
    assert Frontier.kept(spark, tmp_path / "cp") == {"in": [Promised("a", 30 * MINUTE, windows=6, broken=1)]}
    tracking.stop()
    again = BatchTracking(feed, spark, job, tracker.address, metrics=registry)
    start(again, feed, tmp_path)
    feed.put(*(row(minute, minute) for minute in range(91, 192, 10)))
    assert len(released(again, tmp_path)) == 17  # all that have ended: by then nothing is waited for
    feed.put(row(200, 200, "new"), row(210, 210, "new"))
    assert released(again, tmp_path)[-1] == ("new", 200, 1)
    labels = {"job_name": job, "query": "ten", "front": "in"}
    assert registry.get_sample_value("tracker_spark_front_delay_seconds", labels) == 0
    kept = registry.get_sample_value("tracker_spark_front_kept_ratio", labels)
    assert kept is not None
    assert 0.9 < kept < 1
    again.stop()


def live(front: Front, spark: SparkSession, checkpoint: Path) -> LiveFront:
    alive = front.live(spark)
    alive.look(Folder(checkpoint), None)
    return alive


def test_a_batch_that_is_repeated_promises_the_same(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """However often a driver dies: after a batch's note, or before it, or some batches later."""
    tracking = BatchTracking(feed, spark, job, tracker.address)
    draw = random.Random(1)
    batches = []
    for epoch in range(60):
        ends = {(scope, (epoch + 2 - draw.randrange(3)) * 10 * MINUTE) for scope in "ab" for _ in range(2)}
        groups = [(Substream(scope, str(end), end), {"_newest_0": end - draw.randrange(MINUTE)}) for scope, end in ends]
        batches.append(groups)
    declared = source_of(tracking, feed).readable.plan.input.front
    straight = live(declared, spark, tmp_path / "straight")
    expected = [straight.of_groups(groups, epoch) for epoch, groups in enumerate(batches)]
    front = live(declared, spark, tmp_path / "killed")
    epoch = 0
    while epoch < len(batches):
        assert front.of_groups(batches[epoch], epoch) == expected[epoch]
        dies = draw.random() < 0.5
        if dies:
            front = live(declared, spark, tmp_path / "killed")
        epoch += draw.random() < 0.5 if dies else 1  # its batch was committed, or is repeated
    assert len({name.rpartition(".")[0] for name in Folder(tmp_path / "killed" / "tracker" / "lateness").names()}) == 2


@pytest.mark.parametrize(
    ("front", "reason"),
    [
        (lambda: Frontier.measured("100%", ceiling="1 day"), "target: a target is a share of windows above 0 %"),
        (lambda: Frontier.measured("often", ceiling="1 day"), "'often' is no share of windows"),
        (lambda: Frontier.measured("99%", ceiling="1 minute", floor="1 hour"), "the floor is above the ceiling"),
        (lambda: Frontier.measured("99%", ceiling="soon"), "ceiling: 'soon' is not a fixed length"),
    ],
)
def test_a_front_that_could_promise_nothing_is_refused(
    front: Any, reason: str, spark: SparkSession, tracker: Server, job: str, feed: Feed
) -> None:
    with pytest.raises(UsageError, match=reason):
        source_of(BatchTracking(feed, spark, job, tracker.address), feed, front())
