"""Spark's observations of a batch's rows on the way: at hand in the batch, and in its progress afterwards."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.spark_internals.observations import observation_name, observe, observed
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

SEGMENT = "a/b.c"  # a name as users give them


def as_dict(metrics: Any) -> dict[str, Any]:
    """Return a row of metrics; before Spark 4.0 it is a dict."""
    return metrics if isinstance(metrics, dict) else metrics.asDict()


def started(rows: DataFrame, checkpoint: Path, batch: Any) -> StreamingQuery:
    writer = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    return writer.start()


def test_a_batch_shows_what_was_observed_once_its_rows_were_read(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    aggregates = {
        "newest": F.max("row_id"),
        "some": F.count_if(F.col("amount") > 1),
        "none": F.max(F.lit(None).cast("long")),  # null, though there are rows
    }
    rows = observe(feed.stream(spark), SEGMENT, aggregates)
    seen: list[tuple[Any, Any]] = []
    query: list[StreamingQuery] = []

    def look(rows: DataFrame, epoch: int) -> None:
        if epoch == 0:  # it may come before `start` has returned
            rows.write.format("noop").mode("overwrite").save()
            return
        before = observed(query[0], SEGMENT, list(aggregates))
        rows.write.format("noop").mode("overwrite").save()
        seen.append((before, observed(query[0], SEGMENT, list(aggregates))))

    feed.put(row(1, 1))
    query.append(started(rows, tmp_path / "cp", look))
    try:
        query[0].processAllAvailable()
        feed.put(row(7, 1, amount=5), row(3, 2))
        query[0].processAllAvailable()
        (before, after) = seen[0]
        assert after == {"newest": 7, "some": 1, "none": None}
        assert before is None or before == {"newest": None, "some": 0, "none": None}, "nothing of the batch before"
        assert observed(query[0], SEGMENT, ["none"]) is None, "it cannot be told from rows that nobody has read"
        assert observed(query[0], "another", ["newest"]) is None
        assert observed(None, SEGMENT, ["newest"]) is None
        told = {
            progress["batchId"]: as_dict(progress["observedMetrics"][observation_name(SEGMENT)])
            for progress in query[0].recentProgress
            if progress["numInputRows"]
        }
        first = {"newest": 1, "some": 0, "none": None}
        assert told == {0: first, 1: {"newest": 7, "some": 1, "none": None}}
    finally:
        query[0].stop()


def test_nothing_is_observed_where_nothing_is_asked(spark: SparkSession) -> None:
    rows = spark.range(1)
    assert observe(rows, SEGMENT, {}) is observe(rows, SEGMENT, None) is rows


@pytest.mark.parametrize(
    "query",
    [
        SimpleNamespace(),
        SimpleNamespace(_jsq=SimpleNamespace(streamingQuery="no method any more")),
        SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: None)),
    ],
)
def test_a_spark_that_does_not_say_has_seen_nothing(query: Any) -> None:
    assert observed(query, SEGMENT, ["newest"]) is None


def test_each_source_of_a_batch_shows_its_own(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    other = Feed(tmp_path / "other")
    feed.put(row(1, 1))
    other.put(row(5, 1))
    sources = {"first": feed, "second": other}
    first, second = (observe(each.stream(spark), name, {"newest": F.max("row_id")}) for name, each in sources.items())
    query: list[StreamingQuery] = []
    known = threading.Event()
    seen: list[Any] = []

    def look(rows: DataFrame, epoch: int) -> None:
        assert known.wait(300)
        rows.write.format("noop").mode("overwrite").save()
        seen.append([observed(query[0], name, ["newest"]) for name in sources])

    query.append(started(first.unionByName(second), tmp_path / "cp", look))
    known.set()
    try:
        query[0].processAllAvailable()
    finally:
        query[0].stop()
    assert seen == [[{"newest": 1}, {"newest": 5}]]


@pytest.mark.thorough
def test_progress_counts_the_rows_that_a_watermark_has_dropped(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    late = feed.stream(spark).withWatermark("ts", "0 seconds").groupBy(F.window("ts", "1 hour")).count()
    query = started(late, tmp_path / "cp", lambda rows, epoch: rows.collect() and None)
    try:
        for number, minute in enumerate((5, 200, 7)):
            feed.put(row(number, minute))
            query.processAllAvailable()
        dropped = [
            sum(operator["numRowsDroppedByWatermark"] for operator in progress["stateOperators"])
            for progress in query.recentProgress
        ]
        assert sum(dropped) == 1
        assert query.lastProgress is not None
        assert query.lastProgress["batchId"] == query.recentProgress[-1]["batchId"]
    finally:
        query.stop()
