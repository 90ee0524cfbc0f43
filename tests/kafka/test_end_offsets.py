"""A hand-off that is bounded by offsets: it is all read, nothing behind it is part of it, and it finishes by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.services.kafka import Kafka
from spark_client import EndOffsets, Tracking, TrackingError, UsageError, end_offsets
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.feed import rows_of
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark


class Writer:
    """A writer in transactions: each leaves an offset without a record behind its last one.

    Through the client that Spark's connector brings, so that no other is needed.
    """

    def __init__(self, spark: SparkSession, servers: str, topic: str) -> None:
        self._jvm = jvm = cast(Any, spark._jvm)
        self._topic = topic
        given = jvm.java.util.HashMap()
        for key, value in {"bootstrap.servers": servers, "transactional.id": topic, "acks": "all"}.items():
            given.put(key, value)
        text = jvm.org.apache.kafka.common.serialization.StringSerializer
        self._producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(given, text(), text())
        self._producer.initTransactions()

    def write(self, *records: tuple[int, str, str], commit: bool = True) -> None:
        """Write a transaction of records (partition, key, value)."""
        with self.open(*records, commit=commit):
            pass

    @contextmanager
    def open(self, *records: tuple[int, str, str], commit: bool = True) -> Iterator[None]:
        """Open a transaction that ends with the block."""
        self._producer.beginTransaction()
        for partition, key, value in records:
            record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(self._topic, partition, key, value)
            self._producer.send(record).get()
        yield
        (self._producer.commitTransaction if commit else self._producer.abortTransaction)()

    def close(self) -> None:
        self._producer.close()


def handed_off(spark: SparkSession, address: str, servers: str, topic: str, path: Path, job: str) -> Tracking:
    """Return a job that counts the keys of a hand-off, two offsets a batch."""
    ends = end_offsets(spark, servers, topic, keep=path / "ends.json")
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="3")
        .load()
        .withColumn("name", F.col("key").cast("string"))
    )
    tracking = Tracking(spark, job, address)
    source = tracking.source(
        raw.where(ends.within()), "in", substream="name", identity=["topic", "partition", "offset"], front=ends
    )
    released = tracking.release(source, aggs={"rows": F.count("*"), "last": F.max("offset")})
    released.writeStream.option("checkpointLocation", path / "cp").start(path / "out")
    return tracking


def finished(tracking: Tracking) -> bool:
    tracking.check()
    return tracking.client.job(tracking.job).fronts[0].finished


@pytest.mark.thorough
def test_a_hand_off_finishes_where_it_ended_when_it_began(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, job: str, tmp_path: Path
) -> None:
    writer = Writer(spark, broker.servers, topic)
    writer.write((0, "a", "1"), (1, "a", "2"), (1, "b", "3"))
    writer.write((0, "gone", "4"), commit=False)  # the last offsets of both partitions have no record
    writer.write((1, "b", "5"))
    path = str(tmp_path / "ends.json")
    ends = end_offsets(spark, broker.servers, topic, keep=path)
    assert ends.ends == {topic: {"0": 4, "1": 5}}
    writer.write((0, "a", "6"), (1, "c", "7"))  # that is not part of it
    assert end_offsets(spark, broker.servers, topic, keep=path).ends == ends.ends, "a restart means the same"
    with handed_off(spark, tracker.address, broker.servers, topic, tmp_path, job) as tracking:
        soon(lambda: len(list((tmp_path / "cp" / "commits").glob("[0-9]*"))) > 0)  # it is stopped somewhere in it
    with handed_off(spark, tracker.address, broker.servers, topic, tmp_path, job) as tracking:
        soon(lambda: finished(tracking))
        tracking.process_all_available()
        status = tracking.client.job(job)
        assert (status.open_substreams, status.late_reports) == (0, 0)
        writer.write((0, "a", "8"))
        tracking.process_all_available()
    with handed_off(spark, tracker.address, broker.servers, topic, tmp_path, job) as tracking:
        tracking.process_all_available()  # the promise comes again
        assert tracking.client.job(job).late_reports == 0
    writer.close()
    batch = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", broker.servers)
        .option("kafka.isolation.level", "read_committed")
        .options(subscribe=topic, startingOffsets="earliest", endingOffsets=json.dumps(ends.ends))
        .load()
    )
    expected = batch.groupBy(F.col("key").cast("string")).agg(F.count("*"), F.max("offset")).collect()
    out = rows_of(tmp_path / "out", spark, "name", "rows", "last")
    assert out == sorted(tuple(row) for row in expected) == [("a", 2, 0), ("b", 2, 3)]


@pytest.mark.thorough
def test_a_hand_off_of_nothing_finishes_and_of_no_topic_is_refused(
    spark: SparkSession, tracker: Server, broker: Kafka, topic: str, job: str, tmp_path: Path
) -> None:
    with handed_off(spark, tracker.address, broker.servers, topic, tmp_path, job) as tracking:
        soon(lambda: finished(tracking))
    with pytest.raises(TrackingError, match="end offsets of 'nowhere' cannot be read"):
        end_offsets(spark, broker.servers, "nowhere", keep=tmp_path / "none.json")


# ---------------------------------------------------------------- without a broker


def test_an_end_is_reached_by_positions_of_all_its_partitions(tmp_path: Path, spark: SparkSession) -> None:
    front = EndOffsets('{"orders": {"0": 4, "1": 2}, "other": {"0": 0}}')
    front.name = "in"
    living = front.live(spark)
    (tmp_path / "offsets").mkdir()
    for epoch, own in enumerate(['{"orders":{"0":4,"1":1}}', '{"orders":{"0":9,"1":2}}']):
        (tmp_path / "offsets" / str(epoch)).write_text(f'v1\n{{}}\n{own}\n{{"seq": 7}}')
        living.look(Folder(tmp_path), epoch)
        assert bool(living.due()) == bool(epoch)
    living.promised(living.due())
    assert not living.due()


def reaches(path: Path, ends: dict[str, dict[int, int]], *sources: str) -> bool:
    """Return whether a query finishes a hand-off with a batch whose sources are at these positions."""
    front = EndOffsets(ends)
    front.name = "in"
    living = front.live(None)  # type: ignore[arg-type]
    (path / "offsets").mkdir(exist_ok=True)
    (path / "offsets" / "0").write_text("\n".join(["v1", "{}", *sources, '{"seq": 7}', '{"logOffset": 3}', "-"]))
    living.look(Folder(path), 0)
    return bool(living.due())


def test_an_end_is_reached_by_several_sources_together(tmp_path: Path) -> None:
    two = {"a": {0: 4}, "b": {0: 2}}
    assert reaches(tmp_path, two, '{"a":{"0":4}}', '{"b":{"0":9}}'), "a union of two topics"
    assert not reaches(tmp_path, two, '{"a":{"0":4}}', '{"b":{"0":1}}')
    assert not reaches(tmp_path, two, '{"a":{"0":4}}')
    one = {"a": {0: 4, 1: 2}}
    assert not reaches(tmp_path, one, '{"a":{"0":9,"1":2}}', '{"a":{"0":1,"1":2}}'), "a topic is read twice"
    assert reaches(tmp_path, one, '{"a":{"0":9,"1":2}}', '{"a":{"0":4,"1":2}}')
    assert reaches(tmp_path, one, '{"a":{"0":4}}', '{"a":{"1":2}}'), "each source has its partitions"


def test_offsets_that_were_kept_of_other_topics_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ends.json"
    path.write_text('{"a": {"0": 4}, "b": {"0": 2}}')
    spark: Any = None
    assert end_offsets(spark, "nowhere:9092", "b, a", keep=path).ends == {"a": {"0": 4}, "b": {"0": 2}}
    for topics in ("a", "a,c", "a,b,c"):
        with pytest.raises(UsageError, match=r"ends.json has the ends of 'a,b', not of '.*give another file"):
            end_offsets(spark, "nowhere:9092", topics, keep=path)


def test_records_behind_the_end_belong_to_nothing(spark: SparkSession) -> None:
    front = EndOffsets({"t": {0: 3, 1: 1}})
    rows = spark.createDataFrame(
        [("t", 0, 2), ("t", 0, 3), ("t", 1, 0), ("t", 2, 0), ("u", 0, 0)], "topic string, partition int, offset long"
    )
    (condition,) = front.conditions(rows)
    assert [row[0] for row in rows.select(condition.holds).collect()] == [True, False, True, False, False]
    assert "raw.where(ends.within())" in condition.fault
    with pytest.raises(UsageError, match="is not a column of the rows"):
        front.conditions(rows.drop("offset"))


@pytest.mark.parametrize("offsets", ["latest", '{"t": 3}', {"t": {"x": 1}}, {}, {"t": {}}, {"t": {0: -1}}])
def test_what_is_no_offsets_is_refused(offsets: Any) -> None:
    with pytest.raises(UsageError, match=r"EndOffsets: .*"):
        EndOffsets(offsets)


@pytest.mark.thorough
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_a_hand_off_with_an_open_transaction_is_refused(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, level: str
) -> None:
    """Committed later, its records would be in front of the end or behind it, by the level at which was asked."""
    writer, ends = Writer(spark, broker.servers, topic), tmp_path / "ends.json"
    options = {"kafka.isolation.level": level}
    writer.write((0, "a", "1"), (1, "a", "2"))
    with writer.open((1, "a", "3")), pytest.raises(TrackingError, match=f"open in partition 1 of '{topic}'"):
        end_offsets(spark, broker.servers, topic, keep=ends, options=options)
    assert not ends.exists()
    assert end_offsets(spark, broker.servers, topic, keep=ends, options=options).ends == {topic: {"0": 2, "1": 4}}
    writer.close()
