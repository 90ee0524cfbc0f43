"""Release: each substream's results come out once, equal to a batch's, when it has ended; the state is then gone."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Schedule, Tracking, aggregates
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.conftest import CHANNELS
from tests.spark.feed import START, Feed, row, rows_of
from tests.spark.states import hinder

pytestmark = pytest.mark.spark


def parts_of(checkpoint: Path) -> list[str]:
    """Return the parts that a release's state consists of, after its last batch."""
    newest = max((checkpoint / "tracker" / "state").glob("version-*.json"))
    parts: list[str] = json.loads(newest.read_text())["parts"]
    return parts


def by_hour(df: DataFrame) -> DataFrame:
    return df.groupBy("tenant", F.window("ts", "1 hour"), "kind").agg(
        F.count("*").alias("rows"), F.sum("amount").alias("amount")
    )


def aggs() -> dict[str, Column]:
    return {"rows": F.count("*"), "amount": F.sum("amount")}


COLUMNS = ("tenant", "window.end", "kind", "rows", "amount")


def test_a_substream_is_released_when_it_has_ended_and_not_before(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    released = tracking.release(source, ["kind"], aggs=aggs())
    released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    out = tmp_path / "out"

    feed.put(row(1, 5), row(2, 6, kind="y"), row(3, 5, "b"), row(4, 200))  # rows far ahead end nothing
    tracking.process_all_available()
    assert rows_of(out, spark, *COLUMNS) == []

    feed.put(row(5, 59, "b", amount=5, last=True))
    tracking.process_all_available()
    assert [(r[0], r[2], r[3], r[4]) for r in rows_of(out, spark, *COLUMNS)] == [("b", "x", 2, 6)]

    feed.put(row(6, 30, last=True), row(7, 210, last=True))
    tracking.process_all_available()
    assert rows_of(out, spark, *COLUMNS) == sorted(
        tuple(r) for r in by_hour(feed.batch(spark)).select(*COLUMNS).collect()
    )
    assert parts_of(tmp_path / "cp") == []
    tracking.stop()


@pytest.mark.thorough
def test_every_aggregate_equals_sparks_own(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    rng = random.Random(5)
    tracking = BatchTracking(feed, spark, job, tracker.address)
    source = tracking.source(feed.stream(spark), "in", substream="tenant", front=Marks("is_last"))
    plain = {
        "rows": F.count("*"),
        "filled": F.count("amount"),
        "sum": F.sum("amount"),
        "least": F.min("value"),
        "most": F.max("ts"),
        "mean": F.avg("value"),
        "all": F.bool_and("is_last"),
        "any": F.bool_or("is_last"),
        "xor": F.bit_xor("row_id"),
        "deviation": F.stddev("value"),
        "variance": F.variance("value"),
    }
    expressions = {
        "big": aggregates.count_if(F.col("amount") > 50),
        "twice": aggregates.sum(F.col("amount") * 2),
        "kinds": aggregates.count_distinct("kind"),
        "about": aggregates.approx_count_distinct("row_id"),
    }
    (
        tracking.release(source, aggs={**plain, **expressions})
        .writeStream.option("checkpointLocation", tmp_path / "cp")
        .option("compact_from", 2)  # so that merged parts are merged again
        .start(tmp_path / "out")
    )
    number = 0
    for batch in range(4):
        rows = []
        for _ in range(40):
            number += 1
            made = row(number, rng.uniform(0, 600), rng.choice("abc"), rng.choice("xyz"), rng.randrange(100))
            if rng.random() < 0.1:
                made["amount"] = made["value"] = None
            rows.append(made)
        if batch == 3:
            rows += [row(1000 + i, 1, tenant, last=True) for i, tenant in enumerate("abc")]
        feed.put(*rows)
    tracking.process_all_available()
    native = plain | {
        "big": F.count_if(F.col("amount") > 50),
        "twice": F.sum(F.col("amount") * 2),
        "kinds": F.count_distinct("kind"),
        "about": F.count_distinct("row_id"),
    }
    names = list(native)
    expected = feed.batch(spark).groupBy("tenant").agg(*[value.alias(name) for name, value in native.items()])
    got = spark.read.parquet(str(tmp_path / "out"))
    assert [f.dataType for f in got.select(*plain).schema] == [f.dataType for f in expected.select(*plain).schema]
    for one, other in zip(got.orderBy("tenant").collect(), expected.orderBy("tenant").collect(), strict=True):
        for name in ["tenant", *names]:
            close = name == "about" or isinstance(other[name], float)
            assert one[name] == (pytest.approx(other[name]) if close else other[name]), name
    tracking.stop()


@CHANNELS
def test_two_queries_joined_by_a_channel_equal_a_batch(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    names = spark.createDataFrame([("x", "ex"), ("y", "why")], "kind string, long_name string")
    expected_rows = [("a", START, 4), ("b", START, 2), ("a", START.replace(hour=1), 1)]
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark),
        "in",
        scope="tenant",
        window=("ts", "1 hour"),
        identity=["row_id"],
        front=Schedule(expected_rows),
    )
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    kept = source.where("amount > 0").join(names, "kind", "left").withColumn("doubled", F.col("amount") * 2)
    sending = kept.writeStream.channel(channel).option("checkpointLocation", tmp_path / "cp1")
    received = tracking.receive(channel).where("kind <> 'z'")
    released = tracking.release(received, ["long_name"], aggs={"rows": F.count("*"), "doubled": F.sum("doubled")})
    sending.start()
    released.writeStream.option("checkpointLocation", tmp_path / "cp2").start(tmp_path / "out")
    columns = ("tenant", "window.end", "long_name", "rows", "doubled")

    feed.put(row(1, 5), row(2, 6, "b"), row(3, 65, kind="y"))
    feed.put(row(4, 7, amount=-1), row(5, 8, "b", kind="z"))
    feed.put(row(6, 9), row(7, 59, amount=-1))
    tracking.process_all_available()
    batch = feed.batch(spark).where("amount > 0 and kind <> 'z'").join(names, "kind", "left")
    expected = batch.groupBy("tenant", F.window("ts", "1 hour"), "long_name").agg(
        F.count("*").alias("rows"), F.sum(F.col("amount") * 2).alias("doubled")
    )
    assert rows_of(tmp_path / "out", spark, *columns) == sorted(tuple(r) for r in expected.select(*columns).collect())
    status = tracking.client.job(job)
    assert (status.open_substreams, status.in_flight, status.late_reports) == (0, 0, 0)
    assert parts_of(tmp_path / "cp2") == []
    tracking.stop()


@pytest.mark.thorough
def test_a_release_goes_on_from_its_checkpoint_and_releases_each_substream_once(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start() -> Tracking:
        tracking = Tracking(spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark),
            "in",
            scope="tenant",
            window=("ts", "1 hour"),
            front=Schedule([("a", START, 3), ("b", START, 2)]),
        )
        released = tracking.release(source, ["kind"], aggs=aggs())
        released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = start()
    feed.put(row(1, 5), row(2, 6, "b"))
    tracking.process_all_available()
    tracking.stop()
    feed.put(row(3, 7, amount=10), row(4, 8, "b"))  # while nobody reads
    tracking = start()
    tracking.process_all_available()
    assert [(r[0], r[3], r[4]) for r in rows_of(tmp_path / "out", spark, *COLUMNS)] == [("b", 2, 2)]
    tracking.stop()
    tracking = start()
    feed.put(row(5, 9, amount=100))
    tracking.process_all_available()
    assert [(r[0], r[3], r[4]) for r in rows_of(tmp_path / "out", spark, *COLUMNS)] == [("a", 3, 111), ("b", 2, 2)]
    tracking.stop()


def test_a_batch_that_fails_after_its_report_is_replayed_without_trace(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start() -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        released = tracking.release(source, ["kind"], aggs=aggs())
        released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = start()
    feed.put(row(1, 5), row(2, 6, last=True))
    tracking.process_all_available()
    hindrance = hinder(tmp_path / "cp" / "tracker" / "state")  # the next batch does everything but publish its state
    feed.put(row(3, 65, amount=7), row(4, 66, last=True))
    with pytest.raises(Exception, match="version"):
        tracking.process_all_available()
    tracking.stop()
    hindrance.rmdir()
    tracking = start()
    tracking.process_all_available()
    assert [(r[3], r[4]) for r in rows_of(tmp_path / "out", spark, *COLUMNS)] == [(2, 2), (2, 8)]
    assert tracking.client.job(job).late_reports == 0
    tracking.stop()


@pytest.mark.thorough
def test_a_table_of_another_query_is_refused(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    feed.put(row(1, 5, last=True))
    for number in (1, 2):  # the second would find its first epoch published, and leave it
        tracking = BatchTracking(feed, spark, f"{job}-{number}", tracker.address)
        source = tracking.source(feed.stream(spark), "in", window=("ts", "1 hour"), front=Marks("is_last"))
        released = tracking.release(source, aggs={"rows": F.count("*")})
        released.writeStream.option("checkpointLocation", tmp_path / f"cp{number}").start(tmp_path / "out")
        if number == 1:
            tracking.process_all_available()
        else:
            with pytest.raises(StreamingQueryException, match="results of another query"):
                tracking.process_all_available()
        tracking.stop()


@pytest.mark.thorough
def test_what_comes_after_its_substreams_end_goes_to_the_side_output(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start() -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        writer = tracking.release(source, ["kind"], aggs=aggs()).writeStream.option("late_path", tmp_path / "late")
        writer.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    tracking = start()
    feed.put(row(1, 5, last=True))
    tracking.process_all_available()
    feed.put(row(2, 6, amount=40), row(3, 70))
    tracking.process_all_available()
    tracking.stop()
    tracking = start()  # it has forgotten what it released: the tracker has not
    feed.put(row(4, 7, amount=50))
    tracking.process_all_available()
    feed.put(row(5, 71, last=True))
    tracking.process_all_available()
    assert [r[4] for r in rows_of(tmp_path / "out", spark, *COLUMNS)] == [1, 2]
    late = spark.read.parquet(str(tmp_path / "late"))
    values = F.get_json_object("data", "$.amount").cast("long")
    assert sorted((r[0], r[1], r[2]) for r in late.select("scope", "kind", values).collect()) == [
        ("a", "aggregate", 50),
        ("a", "row", 40),
    ]
    assert parts_of(tmp_path / "cp") == []
    tracking.stop()


def release_twice(
    tracking: Tracking, rows: DataFrame, path: Path, by_kind: dict[str, Column], total: dict[str, Column]
) -> None:
    """Start a query that sends rows on, a release of these by kind, and a release of its results into files."""
    source = tracking.source(
        rows, "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    clean = tracking.channel("clean", str(path / "clean"))
    sums = tracking.channel("sums", str(path / "sums"))
    first = source.writeStream.channel(clean).option("checkpointLocation", path / "cp1")
    kinds = tracking.release(tracking.receive(clean), ["kind"], aggs=by_kind)
    second = kinds.writeStream.channel(sums, ordinal="kind").option("checkpointLocation", path / "cp2")
    third = tracking.release(tracking.receive(sums), aggs=total).writeStream.option("checkpointLocation", path / "cp3")
    first.start()
    second.start()
    third.start(path / "out")


@pytest.mark.thorough
def test_results_go_on_into_a_channel_and_hold_what_follows_open(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    total = {"kinds": F.count("*"), "amount": F.sum("amount")}
    release_twice(tracking, feed.stream(spark), tmp_path, {"amount": F.sum("amount")}, total)

    feed.put(row(1, 5), row(2, 6, kind="y", amount=2))
    tracking.process_all_available()
    (open_substream,) = tracking.client.substreams(job)
    held = {account.segment: account.sent - account.received for account in open_substream.segments}
    assert held["clean.held"] == 1
    feed.put(row(3, 7, kind="y", amount=4, last=True))
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "tenant", "kinds", "amount") == [("a", 2, 7)]
    assert list(tracking.client.substreams(job)) == []
    tracking.stop()
