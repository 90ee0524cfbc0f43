"""What a checkpoint tells of the batches of a query with Spark's own watermark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.spark_internals.watermark_batches import batches_of, files_of, last_of_files
from tests.spark.feed import START, Feed, row

pytestmark = pytest.mark.spark


def test_each_batch_has_its_watermark_and_the_files_that_it_read(
    spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    rows = feed.stream(spark).withWatermark("ts", "10 minutes").groupBy(F.window("ts", "1 hour")).count()
    writer = rows.writeStream.format("noop").outputMode("update")
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    try:
        for number in (1, 2, 3):
            feed.put(row(number, 60 * number))
            query.processAllAvailable()
    finally:
        query.stop()
    batches = batches_of(tmp_path / "cp")
    assert [batch.number for batch in batches] == list(range(len(batches)))
    late = START + timedelta(hours=3, minutes=-10)
    assert batches[-1].watermark == late.timestamp() * 1000
    last = [last_of_files(batch, 0) for batch in batches]
    assert sorted(set(last)) == [0, 1, 2]
    assert sorted(number for _, number in files_of(tmp_path / "cp", 0)) == [0, 1, 2]
    assert last_of_files(batches[0], 1) is None
    assert batches_of(tmp_path / "cp", after=batches[-2].number) == batches[-1:]
