"""A Kafka channel is written at least once and received once: whatever is doubled, results are exact and nothing is
late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.kafka import Kafka
from spark_client import Marks, Tracking
from spark_client.kafka import write_topic
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

COLUMNS = ("tenant", "window.start", "kind", "rows", "amount")


class Pipeline:
    """Two queries joined by a topic; the second releases by tenant, hour and kind."""

    def __init__(
        self,
        spark: SparkSession,
        address: str,
        servers: str,
        topic: str,
        feed: Feed,
        path: Path,
        job: str,
        **given: Any,
    ) -> None:
        self.tracking = Tracking(spark, job, address)
        source = self.tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id"],
            front=Marks("is_last"),
        )
        self.channel = self.tracking.kafka_channel("clean", topic, servers, str(path / "clean"), **given)
        self.path = path
        self.sending = (
            source.where("amount > 2").writeStream.channel(self.channel).option("checkpointLocation", path / "cp1")
        )
        released = self.tracking.release(
            self.tracking.receive(self.channel), ["kind"], aggs={"rows": F.count("*"), "amount": F.sum("amount")}
        )
        self.receiving = released.writeStream.option("checkpointLocation", path / "cp2")

    def start(self) -> None:
        self.sending.start()
        self.receiving.start(self.path / "out")

    def late(self) -> list[str]:
        return [str(path) for path in (self.path / "cp2" / "tracker" / "late").glob("*/*")]

    def kept(self) -> Any:
        """What the receiver still remembers of single labels."""
        versions = sorted((self.path / "clean" / "received").glob("*/version-*.json"))
        return json.loads(versions[-1].read_text())["incomplete"]


def expected(spark: SparkSession, feed: Feed) -> list[tuple[Any, ...]]:
    grouped = feed.batch(spark).where("amount > 2").groupBy("tenant", F.window("ts", "1 hour"), "kind")
    table = grouped.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))
    return sorted(tuple(r) for r in table.select(*COLUMNS).collect())


def records(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """All that is in a topic now."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return reader.option("includeHeaders", "true").load().select("key", "value", "headers").localCheckpoint()


def test_rows_that_are_doubled_on_purpose_change_nothing(
    spark: SparkSession, tracker: Server, kafka: Kafka, topic: str, feed: Feed, tmp_path: Path, job: str
) -> None:
    pipeline = Pipeline(spark, tracker.address, kafka.servers, topic, feed, tmp_path, job)
    feed.put(*[row(i, i * 2, "ab"[i % 2], "xy"[i % 3 % 2], amount=i) for i in range(60)])
    pipeline.sending.start()
    pipeline.tracking.process_all_available()
    first = records(spark, kafka.servers, topic)
    assert first.count() == 57
    write_topic(first, topic, kafka.servers, {})  # before anything was received: copies in one batch
    pipeline.receiving.start(tmp_path / "out")
    pipeline.tracking.process_all_available()

    write_topic(first.limit(20), topic, kafka.servers, {})  # after it was received, of substreams that are open
    feed.put(*[row(100 + i, 60 * (i // 2), "ab"[i % 2], amount=9, last=True) for i in range(4)])
    pipeline.tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == expected(spark, feed)

    write_topic(records(spark, kafka.servers, topic), topic, kafka.servers, {})  # after their end: all of them
    pipeline.tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == expected(spark, feed)
    status = pipeline.tracking.client.job(job)
    assert (status.open_substreams, status.in_flight, status.late_reports) == (0, 0, 0)
    assert pipeline.late() == []
    assert pipeline.kept() == []
    pipeline.tracking.stop()


def test_without_deduplication_doubled_rows_do_damage(
    spark: SparkSession, tracker: Server, kafka: Kafka, topic: str, feed: Feed, tmp_path: Path, job: str
) -> None:
    pipeline = Pipeline(spark, tracker.address, kafka.servers, topic, feed, tmp_path, job, deduplicate=False)
    feed.put(row(1, 1, "a", amount=5), row(2, 2, "a", amount=5), row(3, 3, "b", amount=5, last=True))
    pipeline.sending.start()
    pipeline.tracking.process_all_available()
    of_a = F.col("value").cast("string").contains('"tenant":"a"')
    write_topic(records(spark, kafka.servers, topic).where(of_a), topic, kafka.servers, {})
    pipeline.receiving.start(tmp_path / "out")
    feed.put(row(4, 4, "a", amount=5, last=True))
    pipeline.tracking.process_all_available()
    assert [r[0] for r in rows_of(tmp_path / "out", spark, *COLUMNS)] == ["b"]  # a's result never comes
    (stuck,) = pipeline.tracking.client.substreams(job)
    on = {segment.segment: segment for segment in stuck.segments}["clean"]
    assert (stuck.scope, on.sent, on.received) == ("a", 3, 5)
    pipeline.tracking.stop()
