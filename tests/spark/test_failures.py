"""Deaths while queries run: of the tracker, and of Spark's driver. Every result is there once, equal to a batch's."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "kind", "rows", "amount")


def pipeline(spark: SparkSession, address: str, feed: Feed, path: Path, job: str, probe: Any) -> Tracking:
    """Declare two queries joined by a channel."""
    tracking = Tracking(spark, job, address, probe=probe)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.channel("clean", str(path / "clean"))
    sending = source.where("amount > 2").writeStream.channel(channel).option("checkpointLocation", path / "cp1")
    released = tracking.release(
        tracking.receive(channel), ["kind"], aggs={"rows": F.count("*"), "amount": F.sum("amount")}
    )
    sending.start()
    writer = released.writeStream.option("checkpointLocation", path / "cp2").receipts(path / "receipts")
    writer.start(path / "out")
    return tracking


def put_all(feed: Feed, files: int, seed: int) -> None:
    """Put files of rows of three tenants and four hours; the last file marks the end of each."""
    rng = random.Random(seed)
    for _ in range(files):
        put_rows(feed, rng)
    put_marks(feed)


def put_rows(feed: Feed, rng: random.Random) -> None:
    """Put one file of rows."""
    first = len(feed.rows) + 1
    feed.put(
        *[
            row(first + i, rng.uniform(0, 240), rng.choice("abc"), rng.choice("xy"), rng.randrange(10))
            for i in range(20)
        ]
    )


def put_marks(feed: Feed) -> None:
    """Put a file that marks the end of every window."""
    first = len(feed.rows) + 1
    feed.put(*[row(first + i, 60 * (i % 4), "abc"[i // 4], last=True) for i in range(12)])


def receipts(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    """Return the receipts of each substream: how often it was released, with how many rows and results."""
    table = spark.read.parquet(str(path / "receipts")).groupBy("scope", "end_time")
    return sorted(tuple(r) for r in table.agg(F.count("*"), F.sum("rows"), F.sum("results")).collect())


def receipts_due(spark: SparkSession, feed: Feed) -> list[tuple[Any, ...]]:
    """Return a receipt for each substream, also for those of which nothing was sent on."""
    kept = F.col("amount") > 2
    grouped = feed.batch(spark).groupBy("tenant", F.window("ts", "1 hour")["end"])
    table = grouped.agg(F.lit(1), F.count_if(kept), F.count_distinct(F.when(kept, F.col("kind"))))
    return sorted(tuple(r) for r in table.collect())


def expected(spark: SparkSession, feed: Feed) -> list[tuple[Any, ...]]:
    grouped = feed.batch(spark).where("amount > 2").groupBy("tenant", F.window("ts", "1 hour"), "kind")
    table = grouped.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))
    return sorted(tuple(r) for r in table.select(*COLUMNS).collect())


@pytest.mark.thorough
@pytest.mark.parametrize("probe", [pytest.param("driver", marks=pytest.mark.slow), "executors"])
def test_a_tracker_that_is_killed_and_comes_back_is_waited_for(
    spark: SparkSession, mortal_tracker: Server, feed: Feed, tmp_path: Path, job: str, probe: str
) -> None:
    tracking = pipeline(spark, mortal_tracker.address, feed, tmp_path, job, probe)
    feed.put(row(0, 1, amount=9))
    tracking.process_all_available()
    done = threading.Event()
    restarts = 0

    def kill_now_and_then() -> None:
        nonlocal restarts
        while restarts < 4 and not done.is_set():
            mortal_tracker.restart()  # the first at once, so that there is one however fast the machine is
            restarts += 1
            done.wait(1.0)

    killing = threading.Thread(target=kill_now_and_then)
    killing.start()
    put_all(feed, 4, seed=1)
    tracking.process_all_available()
    done.set()
    killing.join()
    tracking.process_all_available()
    assert restarts
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == expected(spark, feed)
    assert receipts(spark, tmp_path) == receipts_due(spark, feed)
    assert tracking.client.job(job).open_substreams == 0
    tracking.stop()


@pytest.mark.slow  # the round of chaos in CI kills a driver, too
def test_a_driver_that_is_killed_goes_on_from_its_checkpoints(
    spark: SparkSession, tracker: Server, feed: Feed, tmp_path: Path, job: str
) -> None:
    program = [sys.executable, "-m", "tests.spark.test_failures", tracker.address, str(tmp_path), job]
    rng = random.Random(3)
    put = 0

    def run(stop_after: int | None) -> int:
        """Run the driver, and kill it soon after it has planned so many batches more. Return its exit status.

        Until it is killed it never lacks rows, however fast it is; without `stop_after` it comes to its end.
        """
        nonlocal put
        if stop_after is None:
            put_marks(feed)
            (tmp_path / "may-end").touch()
        log = (tmp_path / "driver.log").open("a")
        driver = subprocess.Popen(program, stdout=log, stderr=log, start_new_session=True)
        offsets = tmp_path / "cp2" / "offsets"
        begun = len(list(offsets.glob("[0-9]*")))
        while driver.poll() is None:
            if stop_after is not None and len(list(offsets.glob("[0-9]*"))) - begun >= stop_after:
                time.sleep(rng.uniform(0, 0.5))
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
            elif stop_after is not None and len(list((tmp_path / "cp1" / "commits").glob("[0-9]*"))) >= put:
                put_rows(feed, rng)
                put += 1
            time.sleep(0.02)
        return driver.returncode

    assert run(stop_after=1) == -signal.SIGKILL
    assert run(stop_after=2) == -signal.SIGKILL
    assert run(stop_after=None) == 0, (tmp_path / "driver.log").read_text()[-4000:]
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == expected(spark, feed)
    assert receipts(spark, tmp_path) == receipts_due(spark, feed)
    (said,) = json.loads((tmp_path / "status.json").read_text())
    assert said == {"open": 0, "in_flight": 0, "late": 0}


def drive() -> None:
    """Run the program that is killed: the pipeline until everything has been released."""
    from tests.spark.conftest import session

    address, path, job = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    spark = session("driver")
    tracking = pipeline(spark, address, Feed(path / "raw"), path, job, "driver")
    while not (path / "may-end").exists():
        tracking.check()
        time.sleep(0.05)
    tracking.process_all_available()
    status = tracking.client.job(job)
    said = {"open": status.open_substreams, "in_flight": status.in_flight, "late": status.late_reports}
    (path / "status.json").write_text(json.dumps([said]))
    tracking.stop()


if __name__ == "__main__":
    drive()
