"""Kafka as a source of a query that reads a batch again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from examples.services.kafka import Kafka
from spark_client.spark_internals.kafka import ask_for_latest_offsets
from tests.kafka.conftest import broker, topic, write_numbers
from tests.spark.feed import Feed, row
from tests.spark_internals.running import run

pytestmark = pytest.mark.spark

__all__ = ["broker", "topic"]


@pytest.mark.thorough
@pytest.mark.skipif(pyspark.__version__ < "4", reason="the connector is fetched for Spark 4")
@pytest.mark.parametrize(
    "trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}], ids=lambda each: next(iter(each))
)
def test_a_batch_that_is_read_again_does_not_fail_its_query(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    servers = {"kafka.bootstrap.servers": broker.servers}
    written = write_numbers(spark, broker, topic, 12)
    kept: list[str] = []
    deaths = {1}

    def keep(batch: DataFrame, epoch: int) -> None:
        if epoch in deaths:
            deaths.remove(epoch)
            raise ConnectionError("the driver dies")
        ask_for_latest_offsets(batch.sparkSession, identifier)
        kept.extend(each.text for each in batch.selectExpr("cast(value as string) as text").collect())

    stream = spark.readStream.format("kafka").options(**servers, subscribe=topic, startingOffsets="earliest")
    writing = stream.option("maxOffsetsPerTrigger", 4).load().writeStream.foreachBatch(keep).trigger(**trigger)
    identifier = ""
    for _ in range(2):
        query = writing.option("checkpointLocation", str(tmp_path)).start()
        identifier = query.id
        try:
            query.awaitTermination() if "availableNow" in trigger else query.processAllAvailable()
        except StreamingQueryException as error:
            if "the driver dies" not in str(error):
                raise
        finally:
            query.stop()
    assert sorted(kept, key=int) == written


def test_a_query_without_kafka_is_left_alone(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.put(row(1, 1))
    asked: list[int] = []

    def ask(batch: DataFrame, epoch: int) -> None:
        ask_for_latest_offsets(batch.sparkSession, spark.streams.active[0].id)
        ask_for_latest_offsets(batch.sparkSession, "00000000-0000-0000-0000-000000000000")  # that has ended meanwhile
        asked.append(epoch)

    run(feed.stream(spark), tmp_path / "cp", ask)
    assert asked == [0]
