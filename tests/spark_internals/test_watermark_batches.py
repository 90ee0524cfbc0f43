"""Batches of a query with Spark's own watermark, as its checkpoint shows them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from datetime import timedelta
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.spark_internals.checkpoints import WatermarkBatch, batches_of, files_of, last_of_files
from spark_client.storage.folder import Folder
from tests.spark.feed import START, Feed, row
from tests.spark_internals.running import run

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
    batches = batches_of(Folder(tmp_path / "cp"))
    assert [batch.number for batch in batches] == list(range(len(batches)))
    late = START + timedelta(hours=3, minutes=-10)
    assert batches[-1].watermark == late.timestamp() * 1000
    assert {last_of_files(batch, 0) for batch in batches} == {0, 1, 2}
    assert sorted(number for _, number in files_of(Folder(tmp_path / "cp"), 0)) == [0, 1, 2]
    assert last_of_files(batches[0], 1) is None
    assert batches_of(Folder(tmp_path / "cp"), after=batches[-2].number) == batches[-1:]


def test_of_many_batches_each_has_what_it_read_of_each_source(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    others = {name: Feed(tmp_path / name) for name in ("short", "silent")}
    for number in range(12):  # the tenth entry of a source's log has all before it
        feed.put(row(number, number))
    others["short"].put(row(99, 1))
    streams = [each.stream(spark) for each in (feed, *others.values())]
    before = time.time_ns() // 1_000_000
    run(reduce(DataFrame.unionByName, streams), tmp_path / "cp", lambda rows, epoch: None)
    batches = batches_of(Folder(tmp_path / "cp"))
    assert [batch.number for batch in batches] == list(range(12))
    times = [before, *[batch.at for batch in batches], time.time_ns() // 1_000_000]
    assert times == sorted(times)
    come = [[last_of_files(batch, source) for source in range(4)] for batch in batches]
    assert come == [[number, 0, -1, None] for number in range(12)]
    assert last_of_files(replace(batches[0], offsets=('{"flights":{"0":23}}',)), 0) is None, "it is of another kind"
    assert (tmp_path / "cp" / "sources" / "0" / "9.compact").exists()
    read = [
        {Path(path).name: number for path, number in files_of(Folder(tmp_path / "cp"), source)} for source in range(3)
    ]
    assert read == [{f"{number + 1:06d}.json": number for number in range(12)}, {"000001.json": 0}, {}]


def test_a_batch_that_spark_has_deleted_meanwhile_is_left_out(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.put(row(1, 1))
    feed.put(row(2, 2))
    run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: None)
    log = tmp_path / "cp" / "offsets"
    (log / "0").unlink()
    (log / "0").symlink_to("gone")  # it is listed, and cannot be read
    assert [batch.number for batch in batches_of(Folder(tmp_path / "cp"))] == [1]


def test_batches_are_noted_as_json(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.put(row(1, 1))
    run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: None)
    (batch,) = batches_of(Folder(tmp_path / "cp"))
    assert WatermarkBatch.from_json(json.loads(json.dumps(asdict(batch)))) == batch
