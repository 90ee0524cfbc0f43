"""Queries whose checkpoints, results, receipts and channels are in a store of objects: exact, with few requests."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import DeltaTable, Frontier, Marks, Tracking, UsageError
from spark_client.api.released import Released
from spark_client.destinations.deduplication import ReceivedOnce
from spark_client.spark_internals.stores import Parquet, folder_of
from spark_client.storage.folder import Folder
from tests.buckets.line import Line, Request
from tests.client.processes import Server
from tests.kafka.test_deduplication import epoch, frame, taken
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

WINDOW: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour"), "front": Marks("is_last")}
COLUMNS = ("tenant", "window.end", "kind", "rows", "amount")


def aggs() -> dict[str, Any]:
    return {"rows": F.count("*"), "amount": F.sum("amount")}


def table(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(each) for each in df.select(*COLUMNS).collect())


def batch(feed: Feed, spark: SparkSession) -> list[tuple[Any, ...]]:
    """Return the results of a batch over all rows."""
    return table(feed.batch(spark).groupBy("tenant", F.window("ts", "1 hour"), "kind").agg(*_named()))


def _named() -> list[Any]:
    return [value.alias(name) for name, value in aggs().items()]


def hour(number: int) -> list[dict[str, Any]]:
    """Return rows of one hour, which the last one ends, and one of an hour that stays open."""
    first, minute = 10 * number, 60 * number
    return [row(first, minute), row(first + 1, minute + 1, kind="y"), row(first + 2, minute + 59, amount=5, last=True)]


def release(tracking: Tracking, feed: Feed, bucket: str, receipts: bool = False) -> Released:
    source = tracking.source(feed.stream(tracking.spark), "in", **WINDOW)
    released = tracking.release(source, ["kind"], aggs=aggs())
    writer = released.writeStream
    writer = writer.option("checkpointLocation", f"{bucket}/cp").trigger(processingTime="200 milliseconds")
    (writer.receipts(f"{bucket}/receipts") if receipts else writer).start(f"{bucket}/out")
    return released


@pytest.mark.thorough
def test_results_so_far_are_read_from_a_store(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, bucket: str
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    feed.put(row(1, 5), row(2, 6, kind="y"), row(3, 7))
    released = release(tracking, feed, bucket)
    tracking.process_all_available()
    assert table(released.state(f"{bucket}/cp")) == batch(feed, spark)
    tracking.stop()


def test_a_batch_asks_its_store_rarely_and_lists_nothing(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, store: Line, bucket: str
) -> None:
    """Spark's own requests, and those with which it reads the state, are left out: they are the same without us."""
    tracking = Tracking(spark, job, tracker.address)
    feed.put(*hour(0))
    release(tracking, feed, bucket, receipts=True)
    tracking.process_all_available()
    asked: list[Counter[str]] = []
    for number in range(1, 3):
        since = len(store.asked)
        feed.put(*hour(number))
        tracking.process_all_available()
        asked.append(Counter(each.kind for each in store.asked[since:] if _ours(each)))
    since = len(store.asked)
    time.sleep(1)
    assert not [each for each in store.asked[since:] if _ours(each)], "it is idle"
    tracking.stop()
    again = Tracking(spark, job, tracker.address)
    release(again, feed, bucket, receipts=True)
    again.process_all_available()
    since = len(store.asked)
    time.sleep(1)
    assert not [each for each in store.asked[since:] if _ours(each)], "it is idle after a start without rows"
    again.stop()
    assert table(spark.read.parquet(f"{bucket}/out")) == batch(feed, spark)
    receipts = spark.read.parquet(f"{bucket}/receipts")
    assert [each["rows"] for each in receipts.orderBy("end_time").collect()] == [3] * 3
    print(asked)
    assert all(each["LIST"] == 0 for each in asked), asked
    assert min(sum(each.values()) for each in asked) <= 25, asked


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["before", "after", "500"])
def test_each_request_may_fail_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, store: Line, bucket: str, fault: str
) -> None:
    """In the batches of each hour another request of this package's fails, until an hour needs no more of them."""
    tracking = Tracking(spark, job, tracker.address)
    release(tracking, feed, bucket, receipts=True)
    own: list[Request] = []

    def nth(number: int) -> Callable[[Request], str | None]:
        def fails(request: Request) -> str | None:
            own.extend([request] if request.own else [])
            return fault if request.own and len(own) == number + 1 else None

        return fails

    for number in count():
        own.clear()
        store.fault = nth(number)
        feed.put(*hour(number))
        tracking.process_all_available()
        if len(own) <= number:
            break
    tracking.stop()
    assert table(spark.read.parquet(f"{bucket}/out")) == batch(feed, spark)
    receipts = spark.read.parquet(f"{bucket}/receipts")
    assert [each["rows"] for each in receipts.orderBy("end_time").collect()] == [3] * (number + 1)


@pytest.mark.thorough
def test_an_idle_query_with_the_exact_watermark_asks_its_store_for_nothing(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, store: Line, bucket: str
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", window=("ts", "1 hour"), front=Frontier("0 seconds"))
    counted = tracking.with_watermark(source, "ts", "windows").groupBy(F.window("ts", "1 hour")).count()
    writer = tracking.write_stream(counted, source).format("memory").queryName("hours").outputMode("append")
    writer.option("checkpointLocation", f"{bucket}/cp").start()
    for number in range(2):
        feed.put(*hour(number))
        tracking.process_all_available()
    assert [each["count"] for each in spark.table("hours").collect()] == [3]
    since = len(store.asked)
    time.sleep(1)
    assert not store.asked[since:]
    tracking.stop()


@pytest.mark.thorough
def test_copies_routes_and_an_outbox_are_kept_without_lists(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, store: Line, bucket: str
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", **WINDOW, identity=["row_id"], deduplicate=True)
    table = DeltaTable(f"{bucket}/table")
    clean, rest = tracking.lake_channel("clean", table, f"{bucket}/clean"), tracking.channel("rest", f"{bucket}/rest")
    writer = source.writeStream.route([(clean, "kind = 'x'"), (rest, None)])
    writer.option("checkpointLocation", f"{bucket}/cp").trigger(processingTime="200 milliseconds").start()
    listed: list[list[Request]] = []
    for number in range(5):
        since = len(store.asked)
        feed.put(*hour(number), *hour(number)[:1])
        tracking.process_all_available()
        listed.append([each for each in store.asked[since:] if each.own and each.kind == "LIST"])
    tracking.stop()
    assert listed[0], "it looks at what drivers before it have left"
    assert not [each for later in listed[1:] for each in later]
    own = [each.path for each in store.asked if each.own and each.kind == "GET" and each.path.endswith(".parquet")]
    assert not [path for path in own if "/routed/" in path or "/outbox/" in path], "tasks count what they write"
    assert spark.read.format("delta").load(f"{bucket}/table").count() == 10
    opened = folder_of(spark, bucket, "the place")
    for place in ("cp/tracker/routed", "clean/outbox"):
        assert len({name.split("/_", 1)[0] for name in (opened / place).below()}) <= 5, "what was sent is removed"


@pytest.mark.thorough
def test_looks_count_for_files_that_stand_only(spark: SparkSession, bucket: str) -> None:
    def rows_in(table: pa.Table) -> str:
        return str(table.num_rows)

    folder = folder_of(spark, bucket, "the place")
    first, second = Parquet(spark.range(3), rows_in), Parquet(spark.range(5), rows_in)
    seen: list[list[str] | None] = []

    def overtaken(_: Folder) -> None:
        seen.append(second.publish(folder, "7", lambda _: None))

    assert first.publish(folder, "7", overtaken) is None
    assert [sum(map(int, each or ())) for each in seen] == [5]
    assert spark.read.parquet(f"{bucket}/7").count() == 5


@pytest.mark.thorough
def test_labels_of_a_channel_are_kept_without_lists(spark: SparkSession, store: Line, bucket: str) -> None:
    sent = [
        epoch("one", number, number - 1 if number else None, [3 * number + n for n in range(3)]) for number in range(4)
    ]
    once = ReceivedOnce(folder_of(spark, f"{bucket}/received", "the place"))
    got: list[int] = []
    for number, records in enumerate(sent):
        since = len(store.asked)
        earlier = sent[number - 1][2:] if number else []
        got += taken(once.rows(frame(spark, [*records[:2], *earlier]), number))  # an epoch comes in two batches
        asked = [each for each in store.asked[since:] if each.own and each.kind == "LIST"]
        assert number == 0 or not asked, asked
    assert sorted(got) == list(range(11))


def _ours(request: Request) -> bool:
    """Return whether a request is this package's: Spark never looks into `tracker` but for rows of the state."""
    own = any(part in request.path for part in ("/tracker/", "/out/", "/receipts/", "?delete"))
    looked = request.kind == "GET" and ("/commits/" in request.path or "/offsets/" in request.path)
    return looked or (own and not (request.kind in ("HEAD", "GET", "LIST") and ".parquet" in request.path))


@pytest.mark.thorough
def test_a_channel_in_a_store_brings_each_row_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, bucket: str
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    for number in range(3):
        feed.put(*hour(number))
    source = tracking.source(feed.stream(spark), "in", **WINDOW)
    channel = tracking.channel("clean", f"{bucket}/clean")
    sent = source.where("kind <> 'z'").writeStream.option("checkpointLocation", f"{bucket}/cp1").channel(channel)
    received = tracking.receive(channel)
    sent.trigger(processingTime="200 milliseconds").start()
    writer = tracking.release(received, ["kind"], aggs=aggs()).writeStream.trigger(processingTime="200 milliseconds")
    writer.option("checkpointLocation", f"{bucket}/cp2").start(f"{bucket}/out")
    tracking.process_all_available()
    tracking.stop()
    assert table(spark.read.parquet(f"{bucket}/out")) == batch(feed, spark)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_requests_that_fail_before_or_after_their_effect_change_no_result(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, store: Line, bucket: str, seed: int
) -> None:
    """Answers are lost, so what has happened is asked for again; drivers die of what stays away, and others go on."""
    rng = random.Random(seed)
    for number in range(6):
        feed.put(*hour(number))
    broken = Counter[str]()

    def fault(request: Request) -> str | None:
        if ("/tracker/" not in request.path and "/out/" not in request.path) or rng.random() > (
            0.4 if request.kind == "CREATE" else 0.1
        ):
            return None
        broken[request.kind] += 1
        return rng.choice(["before", "after"])

    store.fault = fault
    try:
        for _ in range(40):
            tracking = Tracking(spark, job, tracker.address)
            try:
                release(tracking, feed, bucket)
                tracking.process_all_available()
                break
            except Exception as error:
                print(type(error).__name__, str(error)[:200])
            finally:
                tracking.stop()
        else:
            pytest.fail("it never came through")
    finally:
        store.fault = lambda request: None
    assert broken["CREATE"], broken
    assert table(spark.read.parquet(f"{bucket}/out")) == batch(feed, spark)


def test_who_may_not_write_there_is_told_so_at_the_start(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, bucket: str
) -> None:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    secret = hadoop.get("fs.s3a.secret.key")
    hadoop.set("fs.s3a.secret.key", "another")
    try:
        with pytest.raises(UsageError, match=r"It takes a store in which this process may read, write"):
            release(Tracking(spark, job, tracker.address), feed, bucket)
    finally:
        hadoop.set("fs.s3a.secret.key", secret)
