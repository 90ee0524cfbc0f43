"""A job names a journal as its server, and runs no service."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking, TrackingError, UsageError
from tests.client.processes import Server
from tests.embedded.test_embedded import HOLDS, embed_in, jobs
from tests.spark.feed import Feed, row
from tracker.cli.main import main
from tracker.embedded import stop_embedded

pytestmark = pytest.mark.spark


def run(spark: SparkSession, server: str | None, job: str, feed: Feed, path: Path) -> None:
    tracking = Tracking(spark, job, server)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    hourly = tracking.release(source, ["kind"], aggs={"n": F.count("*")})
    hourly.writeStream.option("checkpointLocation", path / "cp").start(path / "out")
    tracking.process_all_available()
    tracking.stop()


def released(spark: SparkSession, path: Path) -> list[tuple[object, ...]]:
    return sorted(map(tuple, spark.read.parquet(str(path / "out")).select("kind", "n").collect()))


@pytest.mark.thorough
@pytest.mark.parametrize("named", [False, True])
def test_a_job_continues_when_its_tracker_has_started_again(
    spark: SparkSession, job: str, feed: Feed, tmp_path: Path, named: bool
) -> None:
    beside = f"file://{tmp_path}/_tracker/{job}"
    server = f"file://{tmp_path}/tracker?lease=1" if named else None
    feed.put(row(1, 5), row(2, 6, kind="y"))
    run(spark, server, job, feed, tmp_path)
    stop_embedded(server or beside)
    feed.put(row(3, 59, last=True))
    run(spark, server, job, feed, tmp_path)
    stop_embedded(server or beside)
    assert released(spark, tmp_path) == [("x", 2), ("y", 1)]


@pytest.mark.thorough
def test_a_job_goes_on_when_its_tracker_moves_to_a_service(
    spark: SparkSession, job: str, feed: Feed, tmp_path: Path
) -> None:
    driver = f"file://{tmp_path}/tracker?lease=1"
    service = Server(tmp_path, f"sqlite:{tmp_path}/service.db", waits=None)
    feed.put(row(1, 5), row(2, 6, kind="y"))
    run(spark, driver, job, feed, tmp_path)
    stop_embedded(driver)
    assert main(["import", driver, "--into", service.journal, "--moved-to", service.address]) == 0
    with pytest.raises(TrackingError, match=f"name '{service.address}' as the server instead of this journal"):
        Tracking(spark, job, driver)
    service.start()
    try:
        feed.put(row(3, 59, last=True))
        run(spark, service.address, job, feed, tmp_path)
    finally:
        service.kill()
    assert released(spark, tmp_path) == [("x", 2), ("y", 1)]


@pytest.mark.thorough
def test_queries_of_one_job_have_their_checkpoints_in_one_folder(
    spark: SparkSession, job: str, feed: Feed, tmp_path: Path
) -> None:
    with Tracking(spark, job) as tracking:
        assert tracking.server == ""
        kept = tracking.channel("kept", str(tmp_path / "channel"))
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        source.writeStream.channel(kept).option("checkpointLocation", tmp_path / "one").start()
        assert tracking.server == f"file://{tmp_path}/_tracker/{job}"
        counted = tracking.release(tracking.receive(kept), aggs={"n": F.count("*")}).writeStream
        with pytest.raises(UsageError, match=rf"server='file://{tmp_path}/_tracker/{job}'"):
            counted.option("checkpointLocation", tmp_path / "deeper" / "two").start(tmp_path / "out")
        counted.option("checkpointLocation", tmp_path / "two").start(tmp_path / "out")
    stop_embedded(f"file://{tmp_path}/_tracker/{job}")


def test_another_application_of_the_job_finds_its_tracker(
    spark: SparkSession, job: str, feed: Feed, tmp_path: Path
) -> None:
    journal = f"file://{tmp_path}/_tracker/{job}"
    with subprocess.Popen([sys.executable, "-c", HOLDS, journal], stdin=-1, stdout=-1, text=True) as other:
        address = embed_in(other)
        feed.put(row(1, 5), row(2, 6, kind="y"))
        run(spark, None, job, feed, tmp_path)
        assert jobs(address) == [job]
        other.kill()  # and from then on this one has it
    feed.put(row(3, 59, last=True))
    run(spark, None, job, feed, tmp_path)
    assert jobs(address) == [job]
    stop_embedded(journal)
    assert released(spark, tmp_path) == [("x", 2), ("y", 1)]


@pytest.mark.thorough
def test_a_driver_that_is_killed_again_and_again_releases_each_window_once(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    for number in range(12):
        feed.put(row(number, 5 * number, kind="xy"[number % 2]), row(100 + number, 60 + number, last=number == 11))
    feed.put(row(12, 59, last=True))
    command = [sys.executable, "-m", "tests.embedded.driver", str(feed.path), str(tmp_path)]
    for batches in (2, 5, 9, None):
        with subprocess.Popen(command) as driver:
            while batches is not None and not (tmp_path / "cp" / "commits" / str(batches)).exists():
                assert driver.poll() is None
                time.sleep(0.02)
            if batches is not None:
                driver.kill()
    assert driver.returncode == 0
    assert released(spark, tmp_path) == [("x", 7), ("x", 12), ("y", 6)]


def test_a_journal_that_cannot_be_used_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'file:tracker': .* no directory"):
        Tracking(spark, "shop", "file:tracker")
    (tmp_path / "file").touch()
    with pytest.raises(TrackingError, match="the tracker's journal 'sqlite:"):
        Tracking(spark, "shop", f"sqlite:{tmp_path}/file/tracker.db")
