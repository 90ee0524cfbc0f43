"""Drivers that die while all that they keep, the tracker's journal too, is in a store of objects."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from pyspark.sql import SparkSession

from tests.buckets.line import Line
from tests.spark.feed import Feed, row
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
