"""Memory of a query that has ended: nothing is left, neither in the driver's JVM nor in its Python."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client import Frontier, Marks, Tracking
from tests.client.processes import Server
from tests.spark.feed import Feed, row
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark


def sends(tracking: Tracking, spark: SparkSession, feed: Feed, path: Path) -> StreamingQuery:
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.channel("clean", str(path / "clean"))
    return source.writeStream.channel(channel).option("checkpointLocation", path / "cp").start()


def releases(tracking: Tracking, spark: SparkSession, feed: Feed, path: Path) -> StreamingQuery:
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    released = tracking.release(source, aggs={"rows": F.count("*")})
    return released.writeStream.option("checkpointLocation", path / "cp").start(path / "out")


def has_a_watermark(tracking: Tracking, spark: SparkSession, feed: Feed, path: Path) -> StreamingQuery:
    source = tracking.source(
        feed.stream(spark), "in", window=("ts", "1 hour"), identity=["row_id"], front=Frontier("0 seconds")
    )
    counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "1 hour")).count()
    writer = tracking.write_stream(counted, source).foreachBatch(lambda rows, epoch: rows.count())
    return writer.option("checkpointLocation", path / "cp").start()


@pytest.mark.thorough
@pytest.mark.parametrize("start", [sends, releases, has_a_watermark], ids=lambda start: start.__name__)
def test_a_query_that_has_ended_is_forgotten(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, start: Callable[..., StreamingQuery]
) -> None:
    jvm: Any = spark._jvm
    feed.put(row(1, 1), row(2, 61))
    with Tracking(spark, job, tracker.address) as tracking:
        query = start(tracking, spark, feed, tmp_path)
        tracking.process_all_available()
        in_jvm = jvm.java.lang.ref.WeakReference(query._jsq)
        in_python = weakref.ref(query), weakref.ref(tracking)
    del query, tracking

    def is_forgotten() -> bool:
        gc.collect()
        jvm.System.gc()
        return in_jvm.get() is None and [found() for found in in_python] == [None, None]

    soon(is_forgotten)
