"""An observer: what ends is what an untouched query has committed, and nothing of that query changes."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_client import Frontier, SuccessMarkers, Tracking, TrackingError, UsageError
from tests.client.processes import Server
from tests.observe.untouched import Untouched, ended, fails, observing
from tests.spark.feed import Feed, appear, put_hours, row
from tests.spark.waiting import soon

pytestmark = pytest.mark.spark


def test_ends_are_what_the_query_has_committed(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, query: Untouched, tmp_path: Path
) -> None:
    put_hours(feed, 2)
    feed.put(row(1, 130), row(2, 140, "b"))
    query.run()
    before = query.digest()
    tracking, observer = observing(spark, tracker, job, feed.stream(spark), query.checkpoint, tmp_path / "own")
    with tracking:
        tracking.process_all_available()
        assert ended(tracking) == query.whole(spark)
        assert len(ended(tracking)) == 4
        assert observer.lag == 0
        assert observer.isActive
        assert query.digest() == before
        feed.put(row(3, 150, last=True))
        tracking.process_all_available()
        assert len(ended(tracking)) == 4, "the last row is there, and is not committed"
        query.run()
        soon(lambda: ended(tracking) == query.whole(spark) and len(ended(tracking)) == 5)
    put_hours(feed, 1)
    feed.put(row(4, 170, "b", last=True))
    query.run()
    with observing(spark, tracker, job, feed.stream(spark), query.checkpoint, tmp_path / "own")[0] as tracking:
        tracking.process_all_available()
        late = tracking.client.job(job).late_reports
    assert late, "what comes after an end is late"


@pytest.mark.thorough
def test_no_hour_ends_while_its_last_batch_is_in_hand(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    """Spark has planned the batch, and written it, and has not committed it."""
    held, written = threading.Event(), threading.Event()
    held.set()

    def write(rows: DataFrame, epoch: int) -> None:
        rows.write.mode("overwrite").parquet(str(tmp_path / "table" / str(epoch)))
        written.set()
        held.wait()

    feed.put(row(1, 5), row(2, 6, "b", last=True))
    writer = feed.stream(spark).writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path / "cp")).start()
    query.processAllAvailable()
    tracking, observer = observing(spark, tracker, job, feed.stream(spark), query, tmp_path / "own")
    with tracking:
        tracking.process_all_available()
        assert [(scope, rows) for scope, _, rows in ended(tracking)] == [("b", 1)]
        held.clear()
        written.clear()
        feed.put(row(3, 7, last=True))
        written.wait()
        assert (tmp_path / "cp" / "offsets" / "1").exists()
        assert (tmp_path / "table" / "1" / "_SUCCESS").exists()
        tracking.process_all_available()
        assert len(ended(tracking)) == 1
        assert observer.lag == 0
        held.set()
        soon(lambda: {(scope, rows) for scope, _, rows in ended(tracking)} == {("a", 2), ("b", 1)})
    query.stop()
    assert not observer.isActive
    assert observer.exception() is None


@pytest.mark.thorough
def test_what_the_query_had_committed_before_can_be_left_out(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, query: Untouched, tmp_path: Path
) -> None:
    put_hours(feed, 1)
    feed.put(row(1, 65))
    query.run()
    for start in range(2):  # the second time it goes on
        rows, own = feed.stream(spark), tmp_path / "own"
        tracking, _ = observing(spark, tracker, job, rows, query.checkpoint, own, from_now=True)
        with tracking:
            tracking.process_all_available()
            assert len(ended(tracking)) == start
            feed.put(row(2 + start, 66 + 60 * start, last=True))
            query.run()
            tracking.process_all_available()
            assert {rows for _, _, rows in ended(tracking)} == {1}, "only the rows from then on"
    assert len(ended(tracking)) == 2


@pytest.mark.thorough
def test_files_that_were_overwritten_are_named(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, query: Untouched, tmp_path: Path
) -> None:
    feed.put(row(1, 5), row(2, 6, last=True))
    query.run()
    appear(feed.path / "000001.json", [row(1, 5, last=True)], time.time())
    tracking, observer = observing(spark, tracker, job, feed.stream(spark), query.checkpoint, tmp_path / "own")
    fails(
        tracking, observer, r"cannot be read again: file:/.*000001.json was overwritten after that query had found it"
    )
    assert not ended(tracking)


@pytest.mark.thorough
def test_files_that_are_gone_are_named_and_nothing_is_lost(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, query: Untouched, tmp_path: Path
) -> None:
    """Spark itself passes over a file that is gone when it reads a batch again."""
    feed.put(row(1, 5))
    query.run()
    own, rows = tmp_path / "own", feed.stream(spark)
    with observing(spark, tracker, job, rows, query.checkpoint, own)[0] as tracking:
        tracking.process_all_available()
    feed.put(row(2, 6))
    feed.put(row(3, 7, last=True))
    query.run()
    gone = feed.path / "000002.json"
    gone.rename(tmp_path / "away")
    for _ in range(2):
        tracking, observer = observing(spark, tracker, job, rows, query.checkpoint, own)
        fails(tracking, observer, r"after batch 0, up to batch 2, cannot be read again: .*000002.json")
        assert observer.lag == 2
        assert not ended(tracking)
    (tmp_path / "away").rename(gone)
    with observing(spark, tracker, job, rows, query.checkpoint, own)[0] as tracking:
        tracking.process_all_available()
        assert ended(tracking) == query.whole(spark)
        assert {rows for _, _, rows in ended(tracking)} == {3}


@pytest.mark.thorough
def test_one_of_two_sources_is_followed(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    other = Feed(tmp_path / "other")
    query = Untouched(other.stream(spark).unionByName(feed.stream(spark)), tmp_path / "theirs")
    other.put(row(1, 5), row(2, 6, "b", last=True))
    query.run()
    feed.put(row(3, 7, last=True))
    other.put(row(4, 8, "c", last=True))
    query.run()
    with observing(spark, tracker, job, feed.stream(spark), query.checkpoint, tmp_path / "own", source=1)[0] as one:
        one.process_all_available()
        assert [(scope, rows) for scope, _, rows in ended(one)] == [("a", 1)]
    tracking, observer = observing(spark, tracker, f"{job}-b", feed.stream(spark), query.checkpoint, tmp_path / "none")
    fails(tracking, observer, "reads 2 sources, and one of them is followed: give source=0")


def test_a_drain_ends_what_is_open(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, query: Untouched, tmp_path: Path
) -> None:
    feed.put(row(1, 5), row(2, 6, "b", last=True))
    query.run()
    rows = feed.stream(spark)
    with observing(spark, tracker, job, rows, query.checkpoint, tmp_path / "own", Frontier("1 hour"))[0] as tracking:
        tracking.process_all_available()
        assert not ended(tracking)
        tracking.drain(timeout=300)
        assert {(scope, rows) for scope, _, rows in ended(tracking)} == {("a", 1), ("b", 1)}


def test_what_cannot_be_observed_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, query: Untouched, tmp_path: Path
) -> None:
    def refused(match: str, rows: DataFrame | None = None, place: Path = query.checkpoint, own: str = "own") -> None:
        with pytest.raises(TrackingError, match=match):
            observing(spark, tracker, job, feed.stream(spark) if rows is None else rows, place, tmp_path / own)

    refused("no query was started with the checkpoint")
    feed.put(row(1, 5, last=True))
    query.run()
    before = query.digest()
    refused("one inside the other", own="theirs/cp/tracker")
    refused("one inside the other", own=".")
    for option, value in {"cleanSource": "delete", "ignoreMissingFiles": "true"}.items():
        reader = spark.readStream.schema(feed.stream(spark).schema).option(option, value)
        refused(f"{option.lower()}={value}: ", reader.json(str(feed.path)))
    tracking = Tracking(spark, f"{job}-b", tracker.address)
    some = tracking.source(feed.stream(spark), "rows", substream="tenant")
    with pytest.raises(UsageError, match=r"takes the result of tracking\.source as it is"):
        tracking.observe(some.where("amount > 1"), query.checkpoint, tmp_path / "more")
    with pytest.raises(UsageError, match="has to be above zero"):
        tracking.observe(some, query.checkpoint, tmp_path / "more", every=0)
    tracking, observer = observing(spark, tracker, job, feed.stream(spark), query.checkpoint, tmp_path / "own")
    with tracking:
        tracking.process_all_available()
    assert query.digest() == before, "nothing of all this is in the checkpoint of the query"

    (query.checkpoint / "metadata").write_text('{"id":"another"}')
    tracking, observer = observing(spark, tracker, job, feed.stream(spark), query.checkpoint, tmp_path / "own")
    fails(tracking, observer, "is the checkpoint of query another now")


def test_rows_that_nobody_can_read_again_are_refused(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    rate = spark.readStream.format("rate").load().selectExpr("timestamp as ts", "'a' as tenant", "false as is_last")
    query = Untouched(rate, tmp_path)
    started = query.start()
    soon(lambda: (query.checkpoint / "commits" / "0").exists())
    started.stop()
    tracking, observer = observing(spark, tracker, job, rate, query.checkpoint, tmp_path / "own")
    fails(tracking, observer, "gives rows that nobody can read again")
    assert not list((tmp_path / "own").glob("offsets/*"))


@pytest.mark.thorough
def test_a_marker_that_comes_after_the_last_batch_ends_its_hour(
    spark: SparkSession, tracker: Server, job: str, tmp_path: Path
) -> None:
    """The front looks for itself, while there is no batch to read."""
    path = tmp_path / "in"
    hour = path / "tenant=a" / "hour=2024-01-01T00"
    spark.sql("select timestamp '2024-01-01 00:10:00' as ts, id from range(3)").write.parquet(str(hour))
    (hour / "_SUCCESS").unlink()
    rows = spark.readStream.schema("ts timestamp, id long, tenant string, hour string").parquet(str(path))
    query = Untouched(rows, tmp_path / "theirs")
    query.run()
    front = SuccessMarkers(path, "hour", "tenant", refresh=0.05)
    tracking, _ = observing(spark, tracker, job, rows, query.checkpoint, tmp_path / "own", front)
    with tracking:
        tracking.process_all_available()
        assert not ended(tracking)
        (hour / "_SUCCESS").touch()
        soon(lambda: [(tenant, number) for tenant, _, number in ended(tracking)] == [("a", 3)])
