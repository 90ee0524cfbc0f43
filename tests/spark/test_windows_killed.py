"""A driver that dies, at any step of its own, changes no window: not a calendar's, and none of those that overlap."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Tracking, TrackingError, calendar, sliding
from tests.client.processes import Server
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import Feed, row

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ZONE = "CASE WHEN tenant = 'a' THEN 'Asia/Kathmandu' ELSE 'America/St_Johns' END"
STARTS = {"a": [18 * 60 + 15], "b": [3 * 60 + 30]}  # of the days, in minutes after midnight in UTC


def in_zones(tenant: str, minute: int) -> list[int]:
    (begin,) = STARTS[tenant]
    return [(minute - begin) // 1440 * 1440 + begin]


def overlapping(tenant: str, minute: int) -> list[int]:
    newest = minute // 20 * 20
    return [newest, newest - 20, newest - 40]


@pytest.mark.parametrize(
    ("length", "starts"),
    [(lambda: calendar("1 day", F.expr(ZONE)), in_zones), (lambda: sliding("1 hour", "20 minutes"), overlapping)],
    ids=["calendar", "sliding"],
)
def test_windows_are_whole_wherever_the_driver_dies(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, length: Any, starts: Any
) -> None:
    minutes = [("a", 5), ("b", 5), ("a", 1090), ("a", 1100), ("b", 220), ("b", 300), ("a", 2000), ("b", 2000)]
    expected: dict[tuple[str, int], int] = {}
    for tenant, minute in minutes:
        for start in starts(tenant, minute):
            expected[tenant, start] = expected.get((tenant, start), 0) + 1
    for at in count(3, 13):
        path = tmp_path / str(at)
        feed = Feed(path / "raw")
        for number, (tenant, minute) in enumerate(minutes):
            feed.put(row(number, minute, tenant))
        driver = Driver(path)
        for dies_at in (at, None):
            failing = (KilledError, TrackingError, StreamingQueryException)
            dying: Any = nullcontext() if dies_at is None else suppress(*failing)
            with driver.living(dies_at), dying, Tracking(spark, f"{job}-{at}", tracker.address) as tracking:
                source = tracking.source(
                    feed.stream(spark), "in", scope="tenant", window=("ts", length()), identity=["row_id"],
                    front=Frontier("1 day"),
                )  # fmt: skip
                clean = tracking.channel("clean", str(path / "clean"))
                source.writeStream.channel(clean).option("checkpointLocation", path / "cp1").start()
                released = tracking.release(tracking.receive(clean), aggs={"n": F.count("*")}).writeStream
                released.option("checkpointLocation", path / "cp2").start(path / "out")
                tracking.process_all_available()
                tracking.drain(timeout=600)
            if not driver.dead:
                break
        start = "timestampdiff(MINUTE, timestamp'2024-01-01 00:00:00', window.start)"
        columns = spark.read.parquet(str(path / "out")).selectExpr("tenant", start, "n").collect()
        assert sorted((tenant, begin, n) for tenant, begin, n in columns) == sorted(
            (*key, n) for key, n in expected.items()
        ), f"it died before step {at}"
        if dies_at is not None:
            return  # it has lived to its end
