"""Files of HDFS, through Spark's JVM; and queries that keep there all that they have, while the name node is killed."""

from __future__ import annotations

import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from pyspark.sql import SparkSession

from examples.services.hdfs import Hdfs
from spark_client import Tracking, TrackingError, UsageError
from spark_client.spark_internals.hadoop import HadoopStore
from spark_client.spark_internals.stores import folder_of
from tests.buckets.conftest import hadoop, hdfs
from tests.buckets.test_queries import WINDOW, aggs, batch, hour, table
from tests.client.processes import Server
from tests.spark.feed import Feed
from tests.store.test_stores import (
    test_a_file_is_read_as_it_was_put_last,
    test_a_file_whose_last_piece_is_missing_never_appears,
    test_files_are_listed_in_order_and_removed,
    test_one_of_several_writers_creates_a_file,
)

__all__ = [
    "hadoop",
    "hdfs",
    "test_a_file_is_read_as_it_was_put_last",
    "test_a_file_whose_last_piece_is_missing_never_appears",
    "test_files_are_listed_in_order_and_removed",
    "test_one_of_several_writers_creates_a_file",
]

pytestmark = pytest.mark.spark


@pytest.fixture
def store(spark: SparkSession, hadoop: str) -> HadoopStore:
    return HadoopStore(spark.sparkContext._gateway, hadoop)


@pytest.mark.parametrize("size", [0, 1, 256 << 10, (256 << 10) + 1, 3 << 20])
def test_bytes_come_back_whatever_their_number(spark: SparkSession, hadoop: str, size: int) -> None:
    folder = folder_of(spark, hadoop, "the folder")
    content = bytes(range(256)) * (size // 256) + b"\xff" * (size % 256)
    folder.put("as bytes", content)
    folder.put("in pieces", iter([content[:7], content[7:]]))
    assert folder.content("as bytes") == folder.content("in pieces") == content
    assert folder.names() == ["as bytes", "in pieces"]


def test_a_file_that_several_move_is_there_once(spark: SparkSession, hadoop: str) -> None:
    folder = folder_of(spark, hadoop, "the folder")

    def fill(attempt: object) -> list[str]:
        raise AssertionError("another attempt stands")

    folder.put("_attempts/part/1/rows", b"rows")
    folder.put("_decided/part.json", {"attempt": "part/1", "files": ["rows"]})
    with ThreadPoolExecutor(4) as drivers:
        assert [*drivers.map(lambda _: folder.publish("part", fill), range(4))] == [False] * 4
    assert folder.below() == ["_decided/part.json", "_published/part.json", "part/rows"]
    folder.unpublish("part")
    assert (folder.below(), folder.names()) == ([], [])


def test_another_process_of_the_machine_reaches_the_folder(spark: SparkSession, hadoop: str) -> None:
    folder = folder_of(spark, hadoop, "the folder") / "deep"
    folder.put("a", {"is": "here"})
    again = pickle.loads(pickle.dumps(folder))
    assert (again, again.read("a")) == (folder, {"is": "here"})
    assert (again.parent.names(), again.parent.parent.real) == (["deep/"], hadoop.rpartition("/")[0])


def test_a_whole_file_system_is_a_folder_too(spark: SparkSession, hdfs: Hdfs) -> None:
    root, name = folder_of(spark, f"{hdfs.url}/", "the folder"), uuid.uuid4().hex
    root.put(f"{name}/a", {})
    assert (root / name).names() == ["a"]
    assert f"{name}/a" in root.below()


def test_the_default_file_system_needs_no_name(spark: SparkSession, hdfs: Hdfs) -> None:
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    before, name = settings.get("fs.defaultFS"), uuid.uuid4().hex
    with pytest.raises(UsageError, match=r"checkpointLocation 'hdfs:///x': .*system is file:///: name the"):
        folder_of(spark, "hdfs:///x", "checkpointLocation")
    settings.set("fs.defaultFS", hdfs.url)
    try:
        folder_of(spark, f"hdfs:///{name}", "the folder").put("a", {})
    finally:
        settings.set("fs.defaultFS", before)
    assert folder_of(spark, f"{hdfs.url}/{name}", "the folder").names() == ["a"]


def test_a_name_node_that_is_away_is_named(spark: SparkSession) -> None:
    with pytest.raises(TrackingError, match=r"hdfs://127\.0\.0\.1:1/x/a: ConnectException.*start the query again"):
        folder_of(spark, "hdfs://127.0.0.1:1/x", "checkpointLocation").read("a")
    with pytest.raises(UsageError, match=r"checkpointLocation hdfs://127\.0\.0\.1:1/x: ConnectException"):
        folder_of(spark, "hdfs://127.0.0.1:1/x", "checkpointLocation").check("checkpointLocation")


def start(tracking: Tracking, feed: Feed, place: str) -> None:
    """Start two queries with a channel between them."""
    source = tracking.source(feed.stream(tracking.spark), "in", **WINDOW)
    clean = tracking.channel("clean", f"{place}/clean")
    sent = source.where("kind <> 'z'").writeStream.option("checkpointLocation", f"{place}/cp1").channel(clean)
    sent.trigger(processingTime="200 milliseconds").start()
    hourly = tracking.release(tracking.receive(clean), ["kind"], aggs=aggs()).writeStream
    hourly = hourly.trigger(processingTime="200 milliseconds").receipts(f"{place}/receipts")
    hourly.option("checkpointLocation", f"{place}/cp2").start(f"{place}/out")


@pytest.mark.parametrize("starts", [1, pytest.param(3, marks=pytest.mark.thorough)])
def test_a_job_goes_on_where_it_stopped(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, hadoop: str, starts: int
) -> None:
    for number in range(starts):
        feed.put(*hour(number))
        tracking = Tracking(spark, job, tracker.address)
        start(tracking, feed, hadoop)
        tracking.process_all_available()
        tracking.stop()
    assert table(spark.read.parquet(f"{hadoop}/out")) == batch(feed, spark)
    receipts = spark.read.parquet(f"{hadoop}/receipts")
    assert [each["rows"] for each in receipts.orderBy("end_time").collect()] == [3] * starts
    assert not [name for name in folder_of(spark, hadoop, "the place").below() if "unfinished" in name]


@pytest.mark.thorough
def test_a_name_node_that_was_killed_changes_no_result(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, hdfs: Hdfs, hadoop: str
) -> None:
    for number in range(3):
        feed.put(*hour(number))
        tracking = Tracking(spark, job, tracker.address)
        start(tracking, feed, hadoop)
        tracking.process_all_available()
        hdfs.kill()
        try:
            feed.put(*hour(10 + number))
            with pytest.raises(Exception, match="Exception"):
                tracking.process_all_available()
            with suppress(TrackingError):  # of the query that had not failed yet
                tracking.stop()
        finally:
            hdfs.start()
    tracking = Tracking(spark, job, tracker.address)
    start(tracking, feed, hadoop)
    tracking.process_all_available()
    tracking.stop()
    assert table(spark.read.parquet(f"{hadoop}/out")) == batch(feed, spark)
