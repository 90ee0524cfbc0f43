"""A driver that dies, at any step of its own, changes no session, and neither an hour nor its day."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Tracking, TrackingError, nested, session
from tests.client.processes import Server
from tests.spark.dying import Driver, KilledError
from tests.spark.feed import Feed, row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

#: Sessions that end in the same step, go on over several, and are joined by a row that comes before one of theirs.
MINUTES = [
    ("a", 0), ("b", 10), ("a", 50), ("a", 25), ("b", 95), ("a", 130), ("b", 100), ("a", 155), ("b", 190), ("c", 400),
]  # fmt: skip
LENGTHS: dict[str, Any] = {"sessions": lambda: session("30 minutes"), "levels": lambda: nested("1 hour", "3 hours")}


def expected(spark: SparkSession, feed: Feed, length: str) -> list[tuple[Any, ...]]:
    """Return the results of all rows, computed in one batch by Spark."""
    sessions = [F.session_window("ts", "30 minutes")]
    windows = sessions if length == "sessions" else [F.window("ts", each) for each in ("1 hour", "3 hours")]
    made = []
    for window in windows:
        rows = feed.batch(spark).groupBy("tenant", window.alias("window")).agg(F.count("*").alias("n"), F.sum("row_id"))
        made += [tuple(each) for each in rows.select("tenant", "window.*", "n", "sum(row_id)").collect()]
    return sorted(made)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("length", "steps"),
    [
        ("sessions", [150]),  # in the midst of them
        *(pytest.param(length, range(3, 1000, 11), marks=pytest.mark.slow) for length in LENGTHS),
    ],
)
def test_results_are_whole_wherever_the_driver_dies(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path, length: str, steps: Sequence[int]
) -> None:
    for at in steps:
        path = tmp_path / str(at)
        feed = Feed(path / "raw")
        for number, (tenant, minute) in enumerate(MINUTES):
            feed.put(row(number, minute, tenant))
        driver = Driver(path)
        for dies_at in (at, None):
            failing = (KilledError, TrackingError, StreamingQueryException)
            dying: Any = nullcontext() if dies_at is None else suppress(*failing)
            with driver.living(dies_at), dying, Tracking(spark, f"{job}-{at}", tracker.address) as tracking:
                source = tracking.source(
                    feed.stream(spark), "in", scope="tenant", window=("ts", LENGTHS[length]()), identity=["row_id"],
                    front=Frontier("30 minutes"),
                )  # fmt: skip
                released = tracking.release(source, aggs={"n": F.count("*"), "ids": F.sum("row_id")}).writeStream
                released.option("checkpointLocation", path / "cp").option("compact_from", 3).start(path / "out")
                tracking.process_all_available()
                tracking.drain(timeout=600)
            if not driver.dead:
                break
        got = spark.read.parquet(str(path / "out")).select("tenant", "window.*", "n", "ids").collect()
        assert sorted(map(tuple, got)) == expected(spark, feed, length), f"it died before step {at}"
        if dies_at is not None:
            assert at != steps[0], "it has fewer steps than that"
            return  # it has lived to its end
