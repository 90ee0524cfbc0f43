"""Ends that no source has promised, over a driver that dies and a drain: each row is in one result, or late."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, TrackingError
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import START, Feed, row, rows_of
from tests.spark.test_one_result import late_of
from tracker.client import DrainState, TrackerClient, TrackerError

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

FILES = 12
KINDS: dict[str, Any] = {
    "deadline": (lambda: Marks("is_last"), {"deadline": "2 hours", "deadline_by_event_time": True}),
    "idle": (lambda: Frontier("1 hour", per_scope=True), {"scope_idle_after": "100 milliseconds"}),
    "threshold": (
        lambda: Schedule([("a", START, 4), ("b", START, 6)], complete=False),
        {"threshold": 0.5, "threshold_after": "100 milliseconds"},
    ),
    "parts": (lambda: Marks("is_last", partition="part", partitions=2), {}),
    "measured": (lambda: Frontier.measured("50%", ceiling="2 hours"), {}),
}


def files(seed: str) -> list[list[dict[str, Any]]]:
    """Draw rows whose times go on by half an hour a file, some of them long past."""
    rng = random.Random(seed)

    def drawn(file: int) -> dict[str, Any]:
        minute = max(0, 30 * file + rng.choice([0, 5, 20, 29, -40, -100]))
        number = rng.randrange(1 << 30)
        return row(number, minute, rng.choice("ab"), part=rng.randrange(2), last=rng.random() < 0.2)

    return [[drawn(file) for _ in range(rng.randrange(1, 5))] for file in range(FILES)]


@pytest.mark.parametrize("dies", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_in_one_result_or_late(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, kind: str, dies: int
) -> None:
    front, rules = KINDS[kind]
    drawn, feed, driver = files(f"{kind} {dies}"), Feed(tmp_path / "raw"), Driver(tmp_path / "cp")
    client = TrackerClient(tracker.address)

    def is_drained(deployment: str) -> bool:
        try:
            drain = client.get_drain(job)
        except TrackerError:
            return False
        return drain.state is DrainState.DRAINED and drain.deployment >= deployment

    def run(deployment: str, up_to: int) -> None:
        for rows in drawn[feed.files : up_to]:
            feed.put(*rows)
        with BatchTracking(feed, spark, job, tracker.address, deployment, **rules) as tracking:
            source = tracking.source(
                feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=front(), identity=["row_id"]
            )
            released = tracking.release(source, aggs={"rows": F.count("*")}, completeness=True)
            released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
            tracking.process_all_available()
            tracking.drain(120)

    for dies_at in (random.Random(f"{kind} {dies} dies").randrange(10, 200), None):
        with driver.living(dies_at), suppress(KilledError, TrackingError, StreamingQueryException):
            for deployment, up_to in (("1", FILES // 2), ("2", FILES)):
                if not is_drained(deployment):
                    run(deployment, up_to)
    run("3", FILES)
    expected = Counter((each["tenant"], each["ts"][:13]) for each in feed.rows)
    assert feed.files == FILES
    results = rows_of(tmp_path / "out", spark, "tenant", "window.start", "rows", "completeness")
    came = Counter({(tenant, str(start)[:13]): 0 for tenant, start, *_ in results})
    for tenant, start, rows, _ in results:
        came[tenant, str(start)[:13]] += rows
    with BatchTracking(feed, spark, f"{job}-reader", tracker.address) as tracking:
        late = late_of(
            tracking, tmp_path / "cp", lambda row: (row["scope"], str(row["end_time"] - timedelta(hours=1))[:13])
        )
    came.update(late)
    assert came == expected
    whole = Counter((tenant, start) for tenant, start, _, how in results if how == "whole")
    # After a drain, further rows open again a window that marks or counts have closed.
    assert kind not in ("idle", "measured") or max(whole.values(), default=1) == 1
