"""A Kafka channel is written at least once and received once: whatever is doubled, results are exact and nothing is
late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.kafka import Kafka
from spark_client import Channel, FileChannel, Marks, Topic, Tracking, TrackingError, UsageError
from spark_client.columns import TRACKER
from spark_client.destinations.kafka_channel import KafkaChannel
from spark_client.spark_internals import kafka
from spark_client.storage.folder import Folder
from spark_client.windows.named import Named
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
        """Return the single labels that the receiver still remembers."""
        versions = sorted((self.path / "clean" / "received").glob("*/version-*.json"))
        return json.loads(versions[-1].read_text())["incomplete"]


def expected(spark: SparkSession, feed: Feed) -> list[tuple[Any, ...]]:
    grouped = feed.batch(spark).where("amount > 2").groupBy("tenant", F.window("ts", "1 hour"), "kind")
    table = grouped.agg(F.count("*").alias("rows"), F.sum("amount").alias("amount"))
    return sorted(tuple(r) for r in table.select(*COLUMNS).collect())


def records(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """Read all that is in a topic now."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return reader.option("includeHeaders", "true").load().select("key", "value", "headers").localCheckpoint()


@pytest.mark.slow
def test_rows_that_are_doubled_on_purpose_change_nothing(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, feed: Feed, tmp_path: Path, job: str
) -> None:
    pipeline = Pipeline(spark, tracker.address, broker.servers, topic, feed, tmp_path, job)
    feed.put(*[row(i, i * 2, "ab"[i % 2], "xy"[i % 3 % 2], amount=i) for i in range(60)])
    pipeline.sending.start()
    pipeline.tracking.process_all_available()
    first = records(spark, broker.servers, topic)
    assert first.count() == 57
    kafka.write(first, topic, broker.servers, {})  # before anything was received: copies in one batch
    pipeline.receiving.start(tmp_path / "out")
    pipeline.tracking.process_all_available()

    kafka.write(first.limit(20), topic, broker.servers, {})  # after it was received, of substreams that are open
    broker.restart()
    feed.put(*[row(100 + i, 60 * (i // 2), "ab"[i % 2], amount=9, last=True) for i in range(4)])
    pipeline.tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == expected(spark, feed)

    kafka.write(records(spark, broker.servers, topic), topic, broker.servers, {})  # after their end: all of them
    pipeline.tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == expected(spark, feed)
    status = pipeline.tracking.client.job(job)
    assert (status.open_substreams, status.in_flight, status.late_reports) == (0, 0, 0)
    assert pipeline.late() == []
    assert pipeline.kept() == []
    assert len(list((tmp_path / "clean" / "outbox").glob("*/*"))) == 2
    pipeline.tracking.stop()


@pytest.mark.thorough
def test_without_deduplication_doubled_rows_do_damage(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, feed: Feed, tmp_path: Path, job: str
) -> None:
    pipeline = Pipeline(spark, tracker.address, broker.servers, topic, feed, tmp_path, job, deduplicate=False)
    feed.put(row(1, 1, "a", amount=5), row(2, 2, "a", amount=5), row(3, 3, "b", amount=5, last=True))
    pipeline.sending.start()
    pipeline.tracking.process_all_available()
    of_a = F.col("value").cast("string").contains('"tenant":"a"')
    kafka.write(records(spark, broker.servers, topic).where(of_a), topic, broker.servers, {})
    pipeline.receiving.start(tmp_path / "out")
    feed.put(row(4, 4, "a", amount=5, last=True))
    pipeline.tracking.process_all_available()
    assert [r[0] for r in rows_of(tmp_path / "out", spark, *COLUMNS)] == ["b"]  # a's result never comes
    (stuck,) = pipeline.tracking.client.substreams(job)
    on = {segment.segment: segment for segment in stuck.segments}["clean"]
    assert (stuck.scope, on.sent, on.received) == ("a", 3, 5)
    pipeline.tracking.stop()


@pytest.mark.slow
def test_a_driver_killed_between_write_and_commit_doubles_no_result(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, feed: Feed, tmp_path: Path, job: str
) -> None:
    for hour in range(3):
        feed.put(*[row(100 * hour + i, 60 * hour + i, "ab"[i % 2], amount=i) for i in range(20)])
    feed.put(*[row(1000 + i, 60 * (i // 2), "ab"[i % 2], amount=9, last=True) for i in range(6)])
    program = [sys.executable, "-m", "tests.kafka.test_channel", tracker.address, broker.servers, topic]
    with (tmp_path / "driver.log").open("w") as log:
        ended = subprocess.run(
            [*program, str(tmp_path), job], stdout=log, stderr=log, start_new_session=True, timeout=200
        )
    assert ended.returncode == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-4000:]
    written = records(spark, broker.servers, topic).count()
    assert written == 34  # two epochs of 17; the second was not committed

    pipeline = Pipeline(spark, tracker.address, broker.servers, topic, feed, tmp_path, job)
    pipeline.start()
    pipeline.tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, *COLUMNS) == expected(spark, feed)
    keys = records(spark, broker.servers, topic).select("key")
    assert (keys.count(), keys.distinct().count()) == (3 * 17 + 6 + 17, 3 * 17 + 6)
    status = pipeline.tracking.client.job(job)
    assert (status.open_substreams, status.in_flight, status.late_reports) == (0, 0, 0)
    assert pipeline.late() == []
    assert pipeline.kept() == []
    pipeline.tracking.stop()


def drive() -> None:
    """Run the program that is killed right after it has written its second epoch to Kafka."""
    from tests.spark.conftest import session

    address, servers, topic, path, job = *sys.argv[1:4], Path(sys.argv[4]), sys.argv[5]
    written: list[str] = []
    write = kafka.write

    def write_and_die(*given: Any) -> None:
        write(*given)
        written.append(topic)
        if len(written) == 2:
            os.killpg(0, signal.SIGKILL)

    kafka.write = write_and_die  # type: ignore[assignment]
    pipeline = Pipeline(session("driver"), address, servers, topic, Feed(path / "raw"), path, job)
    pipeline.start()
    pipeline.tracking.process_all_available()


def test_values_arrive_as_they_were_sent(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, feed: Feed, tmp_path: Path, job: str
) -> None:
    def rich(rows: DataFrame) -> DataFrame:
        return rows.withColumns(
            {
                "exact": F.lit("12345678901234567890.123456789").cast("decimal(38,9)") + F.col("row_id"),
                "nan": F.lit(float("nan")),
                "small": F.lit(-1e-300).cast("double"),
                "bytes": F.unhex(F.lit("00ff10")),
                "micros": F.lit(datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)),
                "ntz": F.lit("2024-02-29 23:59:59.123456").cast("timestamp_ntz"),
                "day": F.lit("0999-12-31").cast("date"),
                "list": F.array(F.lit(1), F.lit(None), F.lit(3)),
                "pairs": F.create_map(F.lit('ä"\n'), F.lit(2**62)),
                "struct": F.struct(F.lit(None).cast("string").alias("nothing"), F.lit(True).alias("yes")),
                "absent": F.lit(None).cast("long"),
            }
        )

    feed.put(row(1, 1), row(2, 2, last=True))
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    channel = tracking.kafka_channel("rich", topic, broker.servers, str(tmp_path / "rich"))
    source.transform(rich).writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1").start()
    got: list[str] = []

    def take(rows: DataFrame, epoch: int) -> None:
        got.extend(repr(r) for r in rows.select(*wanted.columns).collect())

    wanted = rich(feed.batch(spark))
    tracking.receive(channel).writeStream.foreachBatch(take).option("checkpointLocation", tmp_path / "cp2").start()
    tracking.process_all_available()
    assert sorted(got) == sorted(repr(r) for r in wanted.collect())
    tracking.stop()


@pytest.mark.thorough
def test_a_topic_takes_results_under_keys_that_copies_share(spark: SparkSession, broker: Kafka, topic: str) -> None:
    results = spark.range(4).select(
        F.col("id").alias("n"),
        F.when(F.col("id") > 0, F.col("id").cast("string")).alias("tenant"),
        F.struct(F.lit(datetime(2024, 1, 1)).alias("start"), F.lit(datetime(2024, 1, 2)).alias("end")).alias("window"),
    )
    sink = Topic(topic, broker.servers, ["tenant", "window"])
    for _ in range(2):
        sink.write(results, "query", 3)
    written = records(spark, broker.servers, topic).withColumn("origin", F.col("headers")[0]["value"].cast("string"))
    assert written.count() == 8
    assert written.select("key").distinct().count() == 4
    (origin,) = written.select("origin").distinct().collect()
    assert json.loads(origin[0]) == {"query": "query", "epoch": 3}
    with pytest.raises(UsageError, match="key='airport' is not a column of the rows"):
        Topic(topic, broker.servers, ["airport"]).write(results, "query", 4)


def tracked(spark: SparkSession, labels: int, first: int = 0) -> DataFrame:
    """Return four rows of one substream, with so many different labels."""
    fields = [
        F.lit("").alias("scope"),
        F.lit("s").alias("name"),
        F.lit(None).cast("timestamp").alias("end"),
        (F.col("id") % labels + 1).alias("label"),
    ]
    return spark.range(first, first + 4).select("id", F.struct(*fields).alias(TRACKER))


NAMED = Named("name")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [pytest.param("files", marks=pytest.mark.thorough), "kafka"])
def test_a_repeated_epoch_is_sent_as_it_was_first_computed(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, kind: str
) -> None:
    channel: Channel = FileChannel("clean", Folder(tmp_path))
    if kind == "kafka":
        channel = KafkaChannel("clean", topic, broker.servers, Folder(tmp_path))
    channel.describe(tracked(spark, 4).schema, NAMED)
    for attempt in range(2):
        seen = Observation()
        rows = tracked(spark, 4, first=attempt * 4).observe(seen, F.count("*").alias("rows"))
        published = channel.in_files(spark, [channel.write(rows, "sender", 0, ()).folder])
        assert seen.get == {"rows": 4}  # what is observed on the way has to be said again, too
        assert sorted(row["id"] for row in published.collect()) == [0, 1, 2, 3]
    if kind == "kafka":
        written = records(spark, broker.servers, topic)
        assert (written.count(), written.distinct().count()) == (8, 4)


def test_what_a_channel_cannot_carry_is_refused(spark: SparkSession, tracker: Server, tmp_path: Path, job: str) -> None:
    tracking = Tracking(spark, job, tracker.address)
    with pytest.raises(UsageError, match="'startingOffsets' is the channel's own"):
        tracking.kafka_channel("a", "topic", "nowhere:1", str(tmp_path / "a"), options={"startingOffsets": "latest"})
    channel = KafkaChannel("clean", "topic", "nowhere:1", Folder(tmp_path / "clean"))
    rows = tracked(spark, 1)
    with pytest.raises(UsageError, match="use strings as keys"):
        channel.describe(rows.withColumn("map", F.create_map("id", "id")).schema, NAMED)
    channel.describe(rows.schema, NAMED)
    with pytest.raises(TrackingError, match=r"4 rows have only 1 different labels.*ordinal="):
        channel.write(rows, "query", 0, ())
    tracking.stop()


@pytest.mark.slow
def test_a_double_key_publishes_nothing_and_each_advice_repairs_it(
    spark: SparkSession, tracker: Server, broker: Kafka, feed: Feed, tmp_path: Path, job: str
) -> None:
    feed.put(row(1, 1), row(2, 2), row(1, 1), row(3, 3, amount=5), row(3, 3, amount=7), row(4, 4, last=True))

    def start(way: str, repair: str | None) -> Tracking:
        if repair is None:
            broker.create(f"{job}-{way}")
        tracking = Tracking(spark, f"{job}-{way}", tracker.address)
        raw = feed.stream(spark)
        if way != "quarantine":
            raw = raw.where("not (row_id = 1)")
        source = tracking.source(
            raw,
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            identity=["row_id", "amount"] if repair in ("identity", "routed") else ["row_id"],
            front=Marks("is_last"),
            on_bad_rows="quarantine" if repair == "quarantine" else "fail",
        )
        channel = tracking.kafka_channel("clean", f"{job}-{way}", broker.servers, str(tmp_path / way / "clean"))
        ordinal = ["amount"] if repair == "ordinal" else []
        writer = source.writeStream
        writer = writer.route([(channel, None)]) if way == "routed" else writer.channel(channel, ordinal)
        writer.option("checkpointLocation", tmp_path / way / "cp1").start()
        released = tracking.release(tracking.receive(channel), aggs={"rows": F.count("*"), "amount": F.sum("amount")})
        writing = released.writeStream.option("checkpointLocation", tmp_path / way / "cp2")
        writing.start(tmp_path / way / "out")
        return tracking

    for way, rows in (
        ("ordinal", (4, 14)),
        ("identity", (4, 14)),
        ("routed", (4, 14)),
        ("quarantine", (4, 8)),
    ):
        tracking = start(way, None)
        with pytest.raises(Exception, match=r"different labels.*ordinal=.*identity=.*on_bad_rows='quarantine'"):
            tracking.process_all_available()
        tracking.stop()
        assert list((tmp_path / way / "clean" / "outbox").glob("*/[0-9]*")) == []
        tracking = start(way, way)
        tracking.process_all_available()
        late = tracking.late(str(tmp_path / way / "cp1")).select("kind", "scope", "reason").collect()
        tracking.stop()
        assert rows_of(tmp_path / way / "out", spark, "rows", "amount") == [rows]
        if way == "quarantine":
            assert [(r.kind, r.scope) for r in late] == [("doubled-clean", "a")] * 2


if __name__ == "__main__":
    drive()
