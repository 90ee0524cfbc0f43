"""A user sees warnings and failures of a query where users look: in the log, and as the first words of an error."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Table, Tables, Tracking, TrackingError
from tests.client.processes import Server
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark

WINDOW: dict[str, Any] = {"scope": "tenant", "window": ("ts", "1 hour")}


@pytest.fixture
def tracking(spark: SparkSession, tracker: Server, job: str) -> Iterator[Tracking]:
    tracking = Tracking(spark, job, tracker.address)
    yield tracking
    tracking.stop()


def start(tracking: Tracking, feed: Feed, path: Path, front: Any = None) -> None:
    source = tracking.source(feed.stream(tracking.spark), "in", **WINDOW, front=front)
    writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
    writer.option("checkpointLocation", path / "cp").start(path / "out")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.name == "spark_client"]


@pytest.mark.thorough
def test_a_batch_with_late_rows_logs_their_number_and_place(
    tracking: Tracking, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(tracking, feed, tmp_path, Marks("is_last"))
    with caplog.at_level(logging.WARNING, "spark_client"):
        feed.put(row(1, 1, last=True), row(2, 2, "b", last=True), row(3, 3, "c"))
        tracking.process_all_available()
        assert warnings_of(caplog) == []
        feed.put(row(4, 4), row(5, 5), row(6, 6, "b"), row(7, 7, "c"))
        tracking.process_all_available()
    (line,) = warnings_of(caplog)
    assert line.startswith("2 substreams, 3 rows came after their end")
    assert f"tracking.late('{tmp_path / 'cp'}')" in line
    assert tracking.late(str(tmp_path / "cp")).count() == 3


def test_a_source_that_can_end_nothing_is_named_at_the_start(
    tracking: Tracking, feed: Feed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "spark_client"):
        start(tracking, feed, tmp_path)
    (line,) = warnings_of(caplog)
    assert "'in' has no front=" in line
    assert "Marks, Schedule or Frontier" in line


def failing(kind: str, path: Path) -> Any:
    if kind == "function":

        def fail(rows: DataFrame, epoch: int) -> None:
            raise TrackingError("the disk is full, so make room")

        return fail
    connect = lambda: sqlite3.connect(path / "results.db")  # noqa: E731
    with connect() as connection:
        connection.execute("create table totals (tenant text, n integer check (n > 9), unique (tenant))")
    by_tenant = Table("totals", key=["tenant"], rows=lambda results: results.select("tenant", "n"))
    return Tables(connect, by_tenant, epochs=None, placeholder="?")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("function", "the disk is full, so make room (query "),
        ("sink", "table totals: the database did not take rows with the columns tenant, n: CHECK constraint failed"),
        ("bad rows", "1 rows of segment 'in' belong"),
    ],
)
def test_the_error_of_a_failed_query_begins_with_the_sentence(
    tracking: Tracking, feed: Feed, tmp_path: Path, kind: str, sentence: str
) -> None:
    source = tracking.source(feed.stream(tracking.spark), "in", **WINDOW, front=Marks("is_last"))
    writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream.option(
        "checkpointLocation", tmp_path / "cp"
    )
    if kind == "function":
        writer.foreachBatch(failing(kind, tmp_path)).start()
    elif kind == "sink":
        writer.sink(failing(kind, tmp_path)).start()
    else:
        writer.start(tmp_path / "out")
    feed.put(row(1, 1, last=True) if kind != "bad rows" else {**row(1, 1), "tenant": None})
    with pytest.raises(TrackingError) as raised:
        tracking.process_all_available()
    assert str(raised.value).startswith(sentence)
    with pytest.raises(TrackingError) as checked:
        tracking.check()
    assert str(checked.value) == str(raised.value)


def test_two_drivers_of_one_checkpoint_are_told_apart_from_other_failures(
    tracking: Tracking, spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    """Another driver's entry for the next batch is in Spark's log already: written here as that driver writes it."""
    start(tracking, feed, tmp_path, Marks("is_last"))
    feed.put(row(1, 1))
    tracking.process_all_available()
    offsets = tmp_path / "cp" / "offsets"
    last = max(int(path.name) for path in offsets.iterdir() if path.name.isdigit())
    (offsets / str(last + 1)).write_text((offsets / str(last)).read_text().replace('"batchTimestampMs"', '"other"'))
    feed.put(row(2, 2))
    with pytest.raises(TrackingError, match=r"^two drivers have run this query with one checkpoint.*start one of them"):
        tracking.process_all_available()
