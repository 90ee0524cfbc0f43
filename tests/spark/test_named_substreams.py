"""Substreams that no clock ends, as in docs/howto/windows.md: each ends by itself and equals a batch of its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Marks, Schedule, Tracking
from spark_client.storage.folder import Folder
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.conftest import CLOSURE
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

FIELDS = "id long, user string, number int, session string, what string, load string"


def values() -> dict[str, Column]:
    return {"n": F.count("*"), "ids": F.sum("id")}


def block() -> Column:
    """Return a block of every three rows of a user."""
    return F.floor((F.col("number") - 1) / 3).alias("block")


def event(number: int, user: str, seq: int, session: str, what: str, load: str) -> dict[str, Any]:
    return {"id": number, "user": user, "number": seq, "session": session, "what": what, "load": load}


def by_batch(rows: DataFrame, *keys: Column | str) -> list[tuple[Any, ...]]:
    return sorted(
        map(tuple, rows.groupBy(*keys).agg(*[value.alias(name) for name, value in values().items()]).collect())
    )


@pytest.mark.slow
def test_files_loads_sessions_and_blocks_end_by_themselves(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = Tracking(spark, job, tracker.address)
    raw = spark.readStream.schema(FIELDS).option("maxFilesPerTrigger", 1).json(str(feed.path))
    control = tmp_path / "control"
    control.mkdir()

    def counts() -> DataFrame:
        return spark.read.schema("load string, n long").json(str(control))

    sources = {
        "file": tracking.source(
            raw.withColumn("file", F.col("_metadata.file_name")), "files", substream="file", front=Marks(F.lit(True))
        ),
        "load": tracking.source(raw, "loads", substream="load", front=Schedule(counts, refresh=0.1)),
        "session": tracking.source(
            raw, "sessions", scope="user", substream="session", front=Marks(F.col("what") == "logout")
        ),
        "block": tracking.source(
            raw, "blocks", scope="user", substream=block(), front=Marks(F.col("number") % 3 == 0)
        ),
    }  # fmt: skip
    for name, source in sources.items():
        writer = tracking.release(source, aggs=values()).writeStream.option(
            "checkpointLocation", tmp_path / f"cp-{name}"
        )
        writer.start(tmp_path / name)

    def released(name: str, *columns: str) -> list[tuple[Any, ...]]:
        tracking.process_all_available()
        return rows_of(tmp_path / name, spark, *columns, "n", "ids")

    feed.put(event(1, "ann", 1, "s1", "login", "A"), event(2, "bob", 1, "t1", "login", "A"))
    feed.put(event(3, "ann", 2, "s1", "click", "B"), event(4, "ann", 3, "s1", "logout", "A"))
    assert released("session", "user", "session") == [("ann", "s1", 3, 8)]
    assert released("block", "user", "block") == [("ann", 0, 3, 8)]
    assert [n for _, n, _ in released("file", "file")] == [2, 2]
    assert released("load", "load") == []
    (control / "1.json").write_text(json.dumps({"load": "A", "n": 3}))  # the load's own count, from whoever loads
    feed.put(event(5, "bob", 2, "t1", "click", "B"), event(6, "ann", 4, "s2", "login", "B"))
    (control / "2.json").write_text(json.dumps({"load": "B", "n": 4}))
    feed.put(event(7, "bob", 3, "t1", "logout", "B"))
    tracking._running.queries[1].fronts[0].look(Folder(tmp_path), None, at_once=True)
    everything = spark.read.schema(FIELDS).json(str(feed.path))
    named = everything.withColumn("file", F.col("_metadata.file_name"))
    assert released("file", "file") == by_batch(named, "file")
    assert released("session", "user", "session") == by_batch(everything.where("session != 's2'"), "user", "session")
    assert released("block", "user", "block") == by_batch(everything.where("id != 6"), "user", block())
    tracking.drain(timeout=600)
    assert released("load", "load") == by_batch(everything, "load")
    assert released("session", "user", "session") == by_batch(everything, "user", "session")
    tracking.stop()


@CLOSURE
@pytest.mark.thorough
def test_a_transactions_count_may_come_in_its_own_stream(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    raw = (
        spark.readStream.schema("txn string, id long, count long").option("maxFilesPerTrigger", 1).json(str(feed.path))
    )
    tracking = Tracking(spark, job, tracker.address)
    changes = tracking.source(raw.where("count is null"), "changes", substream="txn", front=Schedule())
    writer = tracking.release(changes, aggs=values()).writeStream.option("checkpointLocation", tmp_path / "cp")
    writer.start(tmp_path / "out")

    def expect(commits: DataFrame, epoch: int) -> None:
        tracking.expect(changes, commits.select("txn", "count"))

    commits = raw.where("count is not null").writeStream.foreachBatch(expect)
    query = commits.option("checkpointLocation", str(tmp_path / "commits")).start()
    feed.put({"txn": "x", "id": 1}, {"txn": "y", "id": 2}, {"txn": "y", "count": 2})
    feed.put({"txn": "x", "count": 1})
    query.processAllAvailable()
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "txn", "n", "ids") == [("x", 1, 1)]
    feed.put({"txn": "y", "id": 3})
    query.processAllAvailable()
    tracking.process_all_available()
    rows = spark.read.schema("txn string, id long, count long").json(str(feed.path)).where("count is null")
    assert rows_of(tmp_path / "out", spark, "txn", "n", "ids") == by_batch(rows, "txn")
    query.stop()
    tracking.stop()


@pytest.mark.thorough
def test_hours_and_their_day_are_released_from_a_source_each(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    tracking = BatchTracking(feed, spark, job, tracker.address)
    sources = {
        name: tracking.source(
            feed.stream(spark), f"{name}s", scope="tenant", window=("ts", f"1 {name}"), front=Frontier("10 minutes")
        )
        for name in ("hour", "day")
    }
    for name, source in sources.items():
        writer = tracking.release(source, aggs={"n": F.count("*")}).writeStream
        writer.option("checkpointLocation", tmp_path / f"cp-{name}").start(tmp_path / name)

    def released(name: str) -> list[tuple[Any, ...]]:
        return rows_of(tmp_path / name, spark, "tenant", "window.end", "n")

    feed.put(row(1, 5), row(2, 30, "b"), row(3, 61), row(4, 185))
    tracking.process_all_available()
    assert (len(released("hour")), released("day")) == (3, [])
    feed.put(row(5, 1430), row(6, 1455))
    tracking.process_all_available()
    rows = feed.batch(spark).where("row_id != 6")
    for name in ("hour", "day"):
        counted = rows.groupBy("tenant", F.window("ts", f"1 {name}").alias("window")).agg(F.count("*").alias("n"))
        assert released(name) == sorted(map(tuple, counted.select("tenant", "window.end", "n").collect()))
    tracking.stop()
