"""An observer of a query whose checkpoint is in an object store, as its own is."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_client.spark_internals.stores import folder_of
from spark_client.storage.folder import Folder
from tests.buckets.conftest import bucket, store
from tests.client.processes import Server
from tests.observe.untouched import ended, observing
from tests.spark.feed import Feed, put_hours, row

__all__ = ["bucket", "store"]

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


def content(folder: Folder) -> dict[str, bytes | None]:
    return {name: folder.content(name) for name in folder.below()}


def test_a_query_in_a_store_is_followed_and_nothing_is_written_there(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, bucket: str, tmp_path: Path
) -> None:
    checkpoint = folder_of(spark, f"{bucket}/cp", "the checkpoint")

    def run() -> None:
        writer = feed.stream(spark).writeStream.format("parquet").option("path", str(tmp_path / "table"))
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        query.processAllAvailable()
        query.stop()

    put_hours(feed, 1)
    run()
    for start in range(2):
        tracking, observer = observing(spark, tracker, job, feed.stream(spark), str(checkpoint), f"{bucket}/own")
        with tracking:
            feed.put(row(start, 70 + start))
            feed.put(row(start, 72 + start, "cd"[start], last=True))
            run()
            before = content(checkpoint)
            tracking.process_all_available()
            assert {(tenant, rows) for tenant, _, rows in ended(tracking)} >= {("a", 5), ("b", 5), ("cd"[start], 1)}
            assert observer.lag == 0
            assert content(checkpoint) == before
