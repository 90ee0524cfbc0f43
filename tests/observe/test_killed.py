"""An observer and the query that it follows, killed: each end comes once, and never before the commit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.client.processes import Server
from tests.observe.killed import STEPS
from tests.observe.untouched import Untouched, digest, ended, observing
from tests.spark.feed import Feed, put_hours, row

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


def killed(*arguments: object) -> None:
    """Run a program that kills itself."""
    command = [sys.executable, "-m", "tests.observe.killed", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_an_observer_that_is_killed_at_each_step_counts_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, query: Untouched, tmp_path: Path
) -> None:
    put_hours(feed, 1)
    for number, step in enumerate(reversed(STEPS)):  # what follows the last one finds no other batch
        feed.put(row(number, 60 * number + 70), row(number, 60 * number + 71, "b", last=True))
        query.run()
        before = query.digest()
        killed("observer", step, tracker.address, job, feed.path, query.checkpoint, tmp_path / "own")
        assert query.digest() == before
    with observing(spark, tracker, job, feed.stream(spark), query.checkpoint, tmp_path / "own")[0] as tracking:
        tracking.process_all_available()
        assert ended(tracking) == query.whole(spark)
        assert len(ended(tracking)) == 2 + len(STEPS)


def test_a_killed_query_of_another_process_ends_its_hour_when_replayed(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    feed.put(row(1, 5), row(2, 6, "b", last=True))
    feed.put(row(3, 7, last=True))
    checkpoint, table = tmp_path / "cp", tmp_path / "table"
    killed("query", 1, feed.path, checkpoint, table)
    assert len(list(table.glob("*/_SUCCESS"))) == 2, "the last row is written, and its batch is not committed"
    before = digest(checkpoint)
    with observing(spark, tracker, job, feed.stream(spark), checkpoint, tmp_path / "own")[0] as tracking:
        tracking.process_all_available()
        assert [(tenant, rows) for tenant, _, rows in ended(tracking)] == [("b", 1)]
        assert digest(checkpoint) == before

        def write(rows: DataFrame, epoch: int) -> None:
            rows.write.mode("overwrite").parquet(str(table / str(epoch)))

        again = feed.stream(spark).writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()
        again.processAllAvailable()
        again.stop()
        tracking.process_all_available()
        assert {(tenant, rows) for tenant, _, rows in ended(tracking)} == {("a", 2), ("b", 1)}
