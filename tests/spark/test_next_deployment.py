"""Windows that had ended before a drain have ended in the next deployment, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier
from spark_client.fronts.frontier import LiveFrontier
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import START, Feed, row, rows_of
from tests.spark.test_one_result import late_of
from tracker.client import Frontier as TimePromise

pytestmark = pytest.mark.spark

FRONTS: dict[str, Any] = {
    "all": lambda: Frontier("0 seconds"),
    "each tenant": lambda: Frontier("0 seconds", per_scope=True),
    "listed": lambda: Frontier("0 seconds", scopes=["a", "silent"]),
    "partitions": lambda: Frontier("0 seconds", partition=F.expr("row_id % 2"), partitions=2),
    "measured": lambda: Frontier.measured("50%", ceiling="1 second"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", FRONTS)
def test_a_straggler_after_a_drain_is_as_late_as_before(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, kind: str
) -> None:
    """A second result of its window would pass for the whole one, and take its place in a table with a key."""

    def start(deployment: str) -> BatchTracking:
        tracking = BatchTracking(feed, spark, job, tracker.address, deployment)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=FRONTS[kind]()
        )
        released = tracking.release(source, aggs={"rows": F.count("*")}, completeness=True)
        released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    def feed_all(tracking: BatchTracking, *minutes: int) -> None:
        for minute in minutes:
            number = 2 * feed.files
            feed.put(row(number, minute), row(number + 1, minute + 1))
            tracking.process_all_available()

    def results() -> list[tuple[int, int, str]]:
        rows = rows_of(tmp_path / "out", spark, "tenant", "window.start", "rows", "completeness")
        return sorted(
            (int((start - START).total_seconds()) // 3600, *rest) for tenant, start, *rest in rows if tenant == "a"
        )

    tracking = start("1")
    feed_all(tracking, 5, 65)
    tracking.drain(120)
    assert results() == [(0, 2, "whole"), (1, 2, "drained")]
    tracking = start("2")
    feed_all(tracking, 10, 70)
    tracking.stop()
    tracking = start("2")  # with promises of its own
    feed_all(tracking, 12, 130)
    assert results() == [(0, 2, "whole"), (1, 2, "drained"), (1, 2, "rest")]
    assert late_of(tracking, tmp_path / "cp") == {"a": 4}
    tracking.stop()


@pytest.mark.parametrize(("epoch", "promised"), [(7, [("in", 65)]), (6, []), (None, [])])
def test_a_checkpoint_that_was_set_back_promises_nothing_beforehand(
    spark: SparkSession, tmp_path: Path, epoch: int | None, promised: list[tuple[str, int]]
) -> None:
    """Its rows are read once more: they are not late."""

    def live(epoch: int | None) -> LiveFrontier:
        front = Frontier("0 seconds")
        front.name, front.listed, front.read_scopes = "in", (), None
        made = LiveFrontier(front, spark)
        made.look(Folder(tmp_path), epoch)
        return made

    live(7).rest(lambda: {"in": {"*": 65}})
    begun = live(epoch)
    begun.resume(dict)
    assert [(each.front, each.time) for each in begun.due() if isinstance(each, TimePromise)] == promised
