"""Results that continue others: no table with a key takes the rest of a window for all of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Table, Tables
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row

pytestmark = pytest.mark.spark


def test_the_rest_of_a_drained_window_takes_no_results_place(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def run(deployment: str, key: list[str], drain: bool = False, **release: Any) -> None:
        tracking = BatchTracking(feed, spark, job, tracker.address, deployment)
        source = tracking.source(
            feed.stream(spark), "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last")
        )
        released = tracking.release(source, aggs={"n": F.count("*")}, **release)
        columns: list[Any] = ["tenant", F.col("window.start").cast("string").alias("hour"), "n", *release]
        table = Table("hourly", key=key, rows=lambda results: results.select(*columns))
        sink = Tables(lambda: sqlite3.connect(tmp_path / "db"), table, epochs=None, placeholder="?")
        released.writeStream.sink(sink).option("checkpointLocation", tmp_path / "cp").start()
        try:
            tracking.process_all_available()
            if drain:
                tracking.drain(120)
        finally:
            tracking.stop()

    def ask(sql: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(tmp_path / "db") as database:
            return sorted(database.execute(sql).fetchall())

    ask("create table hourly (tenant text, hour text, n integer)")
    ask("create unique index by_hour on hourly (tenant, hour)")
    feed.put(row(1, 1), row(2, 2), row(3, 3, "b", last=True))
    run("1", ["tenant", "hour"], drain=True)
    assert ask("select tenant, n from hourly") == [("a", 2), ("b", 1)]
    feed.put(row(4, 4, last=True), row(5, 5, "c", last=True))
    with pytest.raises(StreamingQueryException, match=r"lacks 'completeness'.* would take the place of the result"):
        run("2", ["tenant", "hour"])
    assert ask("select tenant, n from hourly") == [("a", 2), ("b", 1)]
    ask("alter table hourly add column completeness text")
    ask("drop index by_hour")
    ask("create unique index by_hour on hourly (tenant, hour, completeness)")
    run("2", ["tenant", "hour", "completeness"], completeness=True)
    assert ask("select tenant, n, coalesce(completeness, '') from hourly") == [
        ("a", 1, "rest"),
        ("a", 2, ""),
        ("b", 1, ""),
        ("c", 1, "whole"),
    ]
