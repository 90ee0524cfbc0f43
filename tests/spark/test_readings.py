"""A user's function reads what it likes of a batch: what it did not read is accounted for, and no promise is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking
from spark_client.spark_internals.plans import reads_whole
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import START, Feed, row
from tracker.client import SubstreamStatus

pytestmark = pytest.mark.spark


def fails_and_is_caught(rows: DataFrame) -> None:
    with pytest.raises(Exception, match="on purpose"):
        rows.select(F.raise_error(F.lit("on purpose"))).collect()


def cached(rows: DataFrame, read: Callable[[DataFrame], object]) -> None:
    rows.persist()
    read(rows)
    read(rows)
    rows.unpersist()


READINGS: dict[str, Callable[[DataFrame], object]] = {
    "nothing": lambda rows: None,
    "all": lambda rows: rows.collect(),
    "count": lambda rows: rows.count(),
    "twice": lambda rows: (rows.count(), rows.where("amount > 1").collect()),
    "show": lambda rows: rows.limit(1).collect(),
    "empty": lambda rows: rows.isEmpty(),
    "take": lambda rows: rows.take(2),
    "first": lambda rows: rows.first(),
    "some then all": lambda rows: (rows.take(1), rows.collect()),
    "one file": lambda rows: rows.coalesce(1).write.format("noop").mode("overwrite").save(),
    "one file, some": lambda rows: rows.coalesce(1).take(1),
    "shuffled": lambda rows: rows.repartition(3).orderBy("row_id").collect(),
    "a filter": lambda rows: rows.where(F.lit(False)).collect(),
    "cached": lambda rows: cached(rows, lambda read: read.count()),
    "cached, some": lambda rows: cached(rows, lambda read: read.take(1)),
    "fails, caught": fails_and_is_caught,
}


def accounts(tracking: Tracking) -> list[SubstreamStatus]:
    return list(tracking.client.substreams(tracking.job, include_ended=True))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("probe", "partitions"),
    [
        ("executors", 1),
        pytest.param("driver", 4, marks=pytest.mark.slow),
        pytest.param("driver", 1, marks=pytest.mark.slow),
        pytest.param("executors", 4, marks=pytest.mark.slow),
    ],
)
def test_whatever_a_function_reads_every_window_ends_with_all_its_rows(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, probe: Any, partitions: int
) -> None:
    """Each batch is read in another way, drawn at random; in each a window gets its rows and its mark."""
    rng = random.Random(f"{probe}-{partitions}")
    ways = rng.sample(sorted(READINGS), len(READINGS) if partitions == 4 else 3)
    for number in range(len(ways)):
        hour = 60 * number
        feed.put(
            *[row(100 * number + place, hour + place, "ab"[place % 2], amount=place) for place in range(9)],
            *[row(100 * number + 90 + place, hour + 59, tenant, last=True) for place, tenant in enumerate("ab")],
        )
    due = {(tenant, number): 6 - (tenant == "b") for number in range(len(ways)) for tenant in "ab"}

    tracking = BatchTracking(feed, spark, job, tracker.address, probe=probe)
    where: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour")}

    def source(segment: str, front: Any) -> Any:
        rows = feed.stream(spark).repartition(partitions, "row_id")
        return tracking.source(rows, segment, **where, identity=["row_id"], front=front)

    def reading(rows: DataFrame, epoch: int) -> None:
        READINGS[ways[epoch % len(ways)]](rows)

    direct = source("direct", Marks("is_last"))
    expected = [(tenant, START + timedelta(hours=number), rows) for (tenant, number), rows in due.items()]
    counted = source("counted", Schedule(expected))
    sent = source("sent", Marks("is_last"))
    channel = tracking.channel("clean", str(tmp_path / "clean"))
    writers = [
        direct.writeStream.foreachBatch(reading),
        counted.where("amount >= 0").writeStream.foreachBatch(reading),
        sent.writeStream.channel(channel),
        tracking.receive(channel, max_epochs_per_trigger=1).writeStream.foreachBatch(reading),
    ]
    for number, writer in enumerate(writers):
        writer.option("checkpointLocation", tmp_path / f"cp{number}").start()
    tracking.process_all_available()
    found = accounts(tracking)
    assert len(found) == len(due)
    wrong = [
        (account.segment, account.sent, account.received, account.ended, one.waiting_for, one.scope, one.name)
        for one in found
        for account in one.segments
        if not account.ended or account.sent != account.received
    ]
    assert wrong == [], ways
    clean = {
        (one.scope, one.name): account.sent for one in found for account in one.segments if account.segment == "clean"
    }
    assert sorted(clean.values()) == sorted(due.values())
    assert tracking.client.job(job).open_substreams == 0
    tracking.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("probe", ["driver", pytest.param("executors", marks=pytest.mark.slow)])
def test_a_step_that_cuts_rows_off_loses_no_mark_and_no_count(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, probe: Any
) -> None:
    nobody = spark.createDataFrame([], "tenant string, more int")
    steps: list[Callable[[DataFrame], DataFrame]] = [
        lambda rows: rows.limit(1),
        lambda rows: rows.join(nobody, "tenant"),
        lambda rows: rows.where(F.lit(False)),
    ]
    tracking = Tracking(spark, job, tracker.address, probe=probe)
    where: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour")}
    writers = []
    for number, step in enumerate(steps):
        rows = feed.stream(spark).repartition(3, "row_id")
        source = tracking.source(rows, f"in-{number}", **where, identity=["row_id"], front=Marks("is_last"))
        channel = tracking.channel(f"all-{number}", str(tmp_path / f"all-{number}"))
        out = tracking.channel(f"cut-{number}", str(tmp_path / f"cut-{number}"))
        writers.append(source.writeStream.channel(channel))
        writers.append(tracking.receive(channel).transform(step).writeStream.channel(out))
        writers.append(tracking.receive(out).writeStream.foreachBatch(lambda rows, epoch: None))
        alone = tracking.source(rows, f"alone-{number}", **where, front=Marks("is_last"))
        writers.append(alone.transform(step).writeStream.foreachBatch(lambda rows, epoch: rows.count()))
    feed.put(*[row(number, number, "ab"[number % 2]) for number in range(8)])
    feed.put(row(8, 8, "a", last=True), row(9, 9, "b", last=True))
    for number, writer in enumerate(writers):
        writer.option("checkpointLocation", tmp_path / f"cp{number}").trigger(
            availableNow=True
        ).start().awaitTermination()
    tracking.process_all_available()
    found = accounts(tracking)
    assert [one.scope for one in found if not all(account.ended for account in one.segments)] == []
    assert {one.scope for one in found} == {"a", "b"}
    tracking.stop()


@pytest.mark.thorough
def test_a_frontier_is_right_whatever_was_read(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    rows = feed.stream(spark).repartition(3, "row_id")
    source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), front=Frontier("0 seconds"))
    ways = sorted(READINGS)
    writer = source.writeStream.foreachBatch(lambda rows, epoch: READINGS[ways[epoch]](rows))
    writer.option("checkpointLocation", tmp_path / "cp").start()
    for number in range(len(ways)):
        feed.put(*[row(10 * number + place, 10 * number + place) for place in range(5)])
        tracking.process_all_available()
        ((_, time),) = tracking.client.job(job).fronts[0].frontiers.items()
        assert time == int(START.timestamp() + 60 * (10 * number + 4)) * 1_000_000, ways[number]
    tracking.stop()


def test_what_reads_all_is_known_by_its_plan(spark: SparkSession) -> None:
    rows = spark.range(10).withColumn("items", F.array(F.lit(1), F.lit(2)))
    other = spark.range(3)
    assert reads_whole(rows, rows)
    assert reads_whole(rows, rows.where("id > 3").select("id", F.explode("items")).drop("id"))
    for cut in (
        rows.limit(5),
        rows.where("id > 3").limit(5).select("id"),
        rows.join(other, "id"),
        rows.join(other, "id", "left").where("id > 0"),
        other.join(rows, "id"),
        rows.mapInArrow(lambda batches: batches, rows.schema),
        rows.groupBy("id").count(),
        spark.range(10),
        rows.where(F.lit(False)),
        rows.where("id > 3 and null"),
        rows.where("id is null"),
    ):
        assert not reads_whole(rows, cut)
