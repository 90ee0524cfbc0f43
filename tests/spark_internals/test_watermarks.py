"""A watermark that one stream carries for another."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.spark_internals.plans import under_watermark_of
from tests.spark.feed import START, Feed, row

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_marks_move_the_watermark_and_are_seen_by_no_operator(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    marks = Feed(tmp_path / "marks")
    data, moving = feed.stream(spark), marks.stream(spark)
    under = under_watermark_of(moving.select(*reversed(moving.columns)), data, "`ts`")
    assert sorted(under.columns) == sorted(data.columns), "nothing tells marks from rows afterwards"
    counted = under.groupBy(F.window("ts", "1 hour")).count()
    out: list[tuple[int, int]] = []

    def take(rows: DataFrame, epoch: int) -> None:
        out.extend(((each.window.start - START).seconds // 3600, each["count"]) for each in rows.collect())

    query = counted.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        feed.put(row(1, 5), row(2, 59), row(3, 61))
        query.processAllAvailable()
        feed.put(row(4, 600))
        query.processAllAvailable()
        assert out == [], "rows far ahead move nothing"
        marks.put(row(9, 60))
        query.processAllAvailable()
        assert out == [(0, 2)], "the mark is at the window's end, comes with no data, and is no row"
        feed.put(row(5, 62))
        marks.put(row(9, 601))
        query.processAllAvailable()
        assert out == [(0, 2), (1, 2)]
        assert query.lastProgress is not None
        assert query.lastProgress["eventTime"]["watermark"] == "2024-01-01T10:01:00.000Z"
        feed.put(row(6, 7))
        query.processAllAvailable()
        assert sum(each["numRowsDroppedByWatermark"] for each in query.lastProgress["stateOperators"]) == 1
        assert out == [(0, 2), (1, 2)]
    finally:
        query.stop()
