"""An observer of a query that reads Kafka: by its offsets alone, and told when the broker has forgotten records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.kafka import Kafka
from tests.client.processes import Server
from tests.kafka.conftest import broker, topic
from tests.observe.untouched import Untouched, ended, fails, observing
from tests.spark.feed import SCHEMA

__all__ = ["broker", "topic"]

pytestmark = pytest.mark.spark


def read(spark: SparkSession, broker: Kafka, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    given = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2", **options}
    raw = reader.options(**given).load()
    return raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row")).select("row.*")


def send(spark: SparkSession, broker: Kafka, topic: str, *rows: tuple[str, str, bool]) -> None:
    """Send records of a tenant, a minute and whether it is the last of its hour."""
    times = [(tenant, f"2024-01-01 00:{minute}:00", last) for tenant, minute, last in rows]
    values = spark.createDataFrame(times, "tenant string, ts string, is_last boolean").select(
        F.to_json(F.struct("*")).alias("value")
    )
    to = values.coalesce(1).write.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    to.option("topic", topic).save()


@pytest.mark.thorough
def test_ends_are_of_the_offsets_that_the_query_has_committed(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, job: str, tmp_path: Path
) -> None:
    rows = read(spark, broker, topic)
    query = Untouched(rows, tmp_path / "theirs")
    send(spark, broker, topic, ("a", "01", False), ("b", "02", False), ("a", "03", True), ("b", "04", False))
    query.run()
    before = query.digest()
    for start in range(2):
        tracking, observer = observing(spark, tracker, job, rows, query.checkpoint, tmp_path / "own")
        with tracking:
            tracking.process_all_available()
            assert len(ended(tracking)) == 1 + start
            assert query.digest() == before
            send(spark, broker, topic, ("bc"[start], f"1{start}", True))
            tracking.process_all_available()
            assert len(ended(tracking)) == 1 + start, "the record is there, and is not committed"
            query.run()
            tracking.process_all_available()
            assert ended(tracking) == query.whole(spark)
            assert observer.lag == 0
            before = query.digest()


@pytest.mark.thorough
def test_records_that_the_broker_has_removed_are_named(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, job: str, tmp_path: Path
) -> None:
    rows = read(spark, broker, topic)
    query = Untouched(rows, tmp_path / "theirs")
    send(spark, broker, topic, ("a", "01", False), ("a", "02", False))
    query.run()
    with observing(spark, tracker, job, rows, query.checkpoint, tmp_path / "own")[0] as tracking:
        tracking.process_all_available()
    send(spark, broker, topic, ("a", "03", False), ("a", "04", True))
    query.run()
    remove(broker, topic, tmp_path / "removed.json")
    fails(
        *observing(spark, tracker, job, rows, query.checkpoint, tmp_path / "own"), "cannot be read again: .*[Oo]ffset"
    )
    assert not ended(tracking)
    lossy = read(spark, broker, topic, failOnDataLoss="false")
    with pytest.raises(ValueError, match="failondataloss=false: rows that are gone"):
        observing(spark, tracker, f"{job}-b", lossy, query.checkpoint, tmp_path / "other")
    options: dict[str, Any] = {"from_now": True}
    tracking, _ = observing(spark, tracker, f"{job}-c", rows, query.checkpoint, tmp_path / "new", **options)
    with tracking:
        tracking.process_all_available()
        send(spark, broker, topic, ("b", "05", True))
        query.run()
        tracking.process_all_available()
        assert [(tenant, number) for tenant, _, number in ended(tracking)] == [("b", 1)]


def remove(broker: Kafka, topic: str, path: Path) -> None:
    """Remove all records of a topic, as its retention would."""
    partitions = [{"topic": topic, "partition": partition, "offset": -1} for partition in range(2)]
    path.write_text(json.dumps({"partitions": partitions, "version": 1}))
    asked = ("--bootstrap-server", broker.servers, "--offset-json-file", str(path))
    broker._java("org.apache.kafka.tools.DeleteRecordsCommand", *asked)
