"""Observations for a front are made while a batch's rows are read; and if not, they are read for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Tracking
from spark_client.counting import batch
from spark_client.spark_internals.observations import observed
from tests.client.processes import Server
from tests.spark.feed import START, Feed, row

pytestmark = pytest.mark.spark

SECOND = 1_000_000
MIDNIGHT = (START - datetime(1970, 1, 1)) // timedelta(microseconds=1)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any] | None]:
    """Return a list that grows by what the plan of each batch has observed."""
    said: list[dict[str, Any] | None] = []

    def listening(*args: Any) -> dict[str, Any] | None:
        said.append(observed(*args))
        return said[-1]

    monkeypatch.setattr(batch, "observed", listening)
    return said


def promised(tracking: Tracking, job: str) -> int:
    tracking.process_all_available()
    ((_, time),) = tracking.client.job(job).fronts[0].frontiers.items()
    return (time - MIDNIGHT) // SECOND


def forward(tracking: Tracking, feed: Feed, path: Path, step: Callable[[DataFrame], DataFrame], front: Any) -> None:
    source = tracking.source(
        feed.stream(tracking.spark), "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=front
    )
    writer = source.transform(step).writeStream.channel(tracking.channel("clean", str(path / "clean")))
    writer.option("checkpointLocation", path / "cp").start()


@pytest.mark.thorough
def test_the_plan_of_a_batch_says_what_was_seen_before_any_step(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, seen: list[dict[str, Any] | None]
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    forward(tracking, feed, tmp_path, lambda rows: rows.where("kind = 'x'"), Frontier("1 minute"))
    feed.put(row(1, 5), row(2, 9, kind="y"), row(3, 7))
    assert promised(tracking, job) == 8 * 60
    feed.put(row(4, 3))
    feed.put(row(5, 20))
    assert promised(tracking, job) == 19 * 60
    tracking.stop()
    # The first batch may have been quicker than Spark's word that the query has started.
    assert seen[-1] == {"_newest_0": MIDNIGHT + 20 * 60 * SECOND}
    assert [values for values in seen[1:] if values is None] == []


@pytest.mark.thorough
def test_rows_that_spark_has_optimized_away_are_read_for_the_front(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, seen: list[dict[str, Any] | None]
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    forward(tracking, feed, tmp_path, lambda rows: rows.where(F.lit(False)), Frontier("0 seconds"))
    feed.put(row(1, 5), row(2, 9))
    assert promised(tracking, job) == 9 * 60
    feed.put(row(3, 12))
    assert promised(tracking, job) == 12 * 60
    tracking.stop()
    assert seen == [], "the plan shows that the rows were not read, so nothing was observed of them"


def test_marks_on_rows_that_spark_has_optimized_away_close_their_substreams(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    forward(tracking, feed, tmp_path, lambda rows: rows.where(F.lit(False)), Marks("is_last"))
    feed.put(row(1, 5), row(2, 9, "b", last=True))
    tracking.process_all_available()
    tracking.stop()
    assert [(one.scope, one.closed) for one in tracking.client.substreams(job, include_ended=True)] == [("b", True)]


def test_a_function_that_reads_nothing_holds_no_front_back(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    source = tracking.source(
        feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Frontier("0 seconds")
    )
    writer = source.writeStream.foreachBatch(lambda rows, epoch: None)
    writer.option("checkpointLocation", tmp_path / "cp").start()
    feed.put(row(1, 5))
    assert promised(tracking, job) == 5 * 60
    tracking.stop()


def test_a_spark_without_observations_costs_a_second_reading_only(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mute:
        """A stand-in for a query of a Spark whose internals are others: that one cannot be had."""

    monkeypatch.setattr(batch, "observed", lambda _, *rest: observed(Mute(), *rest))  # type: ignore[arg-type]
    tracking = Tracking(spark, job, tracker.address)
    forward(tracking, feed, tmp_path, lambda rows: rows, Frontier("0 seconds"))
    feed.put(row(1, 5), row(2, 9))
    assert promised(tracking, job) == 9 * 60
    tracking.stop()
