"""Drivers that die while all that they keep, the tracker's journal too, is in a store of objects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.hdfs import Hdfs
from tests.buckets.line import Line
from tests.buckets.table_driver import TABLE
from tests.client.processes import Server
from tests.lake.conftest import catalog_at
from tests.spark.feed import Feed, put_hours, row
from tests.spark.waiting import soon
from tracker.store import open_store

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_a_driver_that_is_killed_again_and_again_releases_each_window_once(
    spark: SparkSession, feed: Feed, store: Line, bucket: str
) -> None:
    for number in range(8):
        feed.put(row(number, 5 * number, kind="xy"[number % 2]), row(100 + number, 60 + number, last=number == 7))
    feed.put(row(8, 59, last=True))
    settings = [f"fs.s3a.{name}={value}" for name, value in store.settings.items()]
    command = [sys.executable, "-m", "tests.embedded.driver", str(feed.path), bucket, *settings]
    keys = {"access_key_id": "access.key", "secret_access_key": "secret.key", "endpoint": "endpoint"}
    opened = {name: store.settings[key] for name, key in keys.items()}
    commits = open_store(f"{bucket.replace('s3a', 's3')}/cp/commits", settings={**opened, "region": "us-east-1"})
    for batches in (1, 4, None):
        with subprocess.Popen(command) as driver:
            while batches is not None and commits.get(str(batches)) is None:
                assert driver.poll() is None
                time.sleep(0.02)
            if batches is not None:
                driver.kill()
    assert driver.returncode == 0
    found = spark.read.parquet(f"{bucket}/out").select("kind", "n").collect()
    assert sorted(map(tuple, found)) == [("x", 5), ("x", 8), ("y", 4)]


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "in_bucket"), [("delta", True), ("iceberg", True), ("delta", False)])
def test_a_driver_that_comes_to_itself_late_changes_no_table(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    store: Line,
    tmp_path: Path,
    kind: str,
    in_bucket: bool,
) -> None:
    put_hours(feed, 3)
    bucket = request.getfixturevalue("bucket" if in_bucket else "hadoop")
    settings = [f"fs.s3a.{name}={value}" for name, value in store.settings.items()]
    settings += [f"{name}={value}" for name, value in Hdfs.quick.items()]
    command = [sys.executable, "-m", "tests.buckets.table_driver", tracker.address, job, str(feed.path), bucket, kind]
    command += [str(tmp_path), *settings]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True) as first:
        try:
            soon((tmp_path / "shown").exists)
            os.killpg(first.pid, signal.SIGSTOP)
            subprocess.run(command, check=True, timeout=900)
            os.killpg(first.pid, signal.SIGCONT)
            said, _ = first.communicate(timeout=300)
        finally:
            with suppress(ProcessLookupError):  # Spark's JVM may have ended with it
                os.killpg(first.pid, signal.SIGKILL)
    assert first.returncode == 1
    assert "ended with: " in said
    reader = spark.newSession()  # its catalog of this name is the drivers'
    for name, value in catalog_at(f"{bucket}/warehouse", tmp_path).items():
        reader.conf.set(name, value)
    found = reader.table(TABLE) if kind == "iceberg" else spark.read.format("delta").load(f"{bucket}/table")
    batch = feed.batch(spark).groupBy("tenant", F.window("ts", "1 hour").alias("window"), "kind")
    columns = ["tenant", "window.start", "kind", "n"]
    wanted = batch.agg(F.count("*").alias("n")).select(*columns)
    assert sorted(map(tuple, found.select(*columns).collect())) == sorted(map(tuple, wanted.collect()))
