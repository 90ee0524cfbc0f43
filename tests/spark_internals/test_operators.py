"""Operators of a stream's plan over some rows: those that live by single rows are found, windows are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.spark_internals.plans import that_takes_single_rows
from tests.spark.feed import Feed

pytestmark = pytest.mark.spark


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("ts", "5 minutes")).count()


def same(key: Any, frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    yield from frames


Made = Callable[[DataFrame, DataFrame], DataFrame]

#: Of rows that are meant and of others, and what is found.
FOUND: dict[str, tuple[Made, str | None]] = {
    "as they are": (lambda rows, _: rows.where("amount > 1"), None),
    "windows": (lambda rows, _: counted(rows), None),
    "windows of windows": (
        lambda rows, _: counted(rows).groupBy(F.window(F.window_time("window"), "1 hour")).count(),
        None,
    ),
    "sessions": (
        lambda rows, _: rows.groupBy(F.session_window("ts", "5 minutes"), "kind").count(),
        "session_window",
    ),
    "sessions by another name": (
        lambda rows, _: rows.groupBy(F.session_window("ts", "5 minutes").alias("s")).count().select("s.start"),
        "session_window",
    ),
    "duplicates by time": (lambda rows, _: rows.dropDuplicates(["kind", "ts"]), "dropDuplicates"),
    "duplicates of all time": (lambda rows, _: rows.dropDuplicates(["kind"]), None),
    "duplicates for a while": (
        lambda rows, _: rows.dropDuplicatesWithinWatermark(["kind"]),
        "dropDuplicatesWithinWatermark",
    ),
    "a join of streams": (
        lambda rows, others: rows.alias("a").join(others.alias("b"), F.expr("a.kind = b.kind and a.ts = b.ts")),
        "join",
    ),
    "a join of windows": (lambda rows, others: counted(rows).join(counted(others), "window"), None),
    "a join with a table": (lambda rows, _: rows.join(rows.sparkSession.range(3), F.expr("id = amount")), None),
    "a state": (
        lambda rows, _: rows.groupBy("kind").applyInPandasWithState(
            same, rows.schema, "n int", "append", "EventTimeTimeout"
        ),
        "a state of your own",
    ),
    "only over others": (lambda _, others: others.dropDuplicatesWithinWatermark(["kind"]), None),
    "under a window": (
        lambda rows, _: counted(rows.dropDuplicatesWithinWatermark(["kind"])),
        "dropDuplicatesWithinWatermark",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_lives_by_single_rows_is_found(spark: SparkSession, feed: Feed, name: str) -> None:
    make, expected = FOUND[name]
    rows, others = (feed.stream(spark).withWatermark("ts", "0 seconds") for _ in range(2))
    assert that_takes_single_rows(make(rows.alias("meant"), others), "meant") == expected


def test_where_spark_does_not_answer_nothing_is_found() -> None:
    class Nothing:
        """No DataFrame of Spark."""

    assert that_takes_single_rows(Nothing(), "meant") is None  # type: ignore[arg-type]
