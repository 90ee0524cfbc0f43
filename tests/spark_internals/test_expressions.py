"""Expressions at a restart: one that computes something else is refused, one that is only written anew goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Tracking, UsageError, aggregates
from spark_client.plan.state import changed_forms
from spark_client.spark_internals.columns import expression_form
from tests.client.processes import Server
from tests.spark.feed import Feed, row, rows_of

pytestmark = pytest.mark.spark

Make = Callable[[], Column]


def suffixed(text: str, times: int = 1) -> Make:
    """Make a key by a Python function; the functions of two calls have one name."""

    def named(value: str) -> str:
        return value + text * times

    return lambda: F.udf(named, "string")("kind")


def more(by: int) -> Make:
    return lambda: F.aggregate(F.array("amount"), F.lit(0).cast("long"), lambda a, b: a + b + F.lit(by))


#: Each makes an expression over the rows of a feed; no two compute the same.
EXPRESSIONS: dict[str, Make] = {
    "lower": lambda: F.lower("kind"),
    "upper": lambda: F.upper("kind"),
    "column": lambda: F.col("kind"),
    "other": lambda: F.col("tenant"),
    "literal": lambda: F.lit("kind"),
    "minus": lambda: F.concat("kind", F.lit("-")),
    "hash 1": lambda: F.concat("kind", F.lit("#1")),
    "hash 2": lambda: F.concat("kind", F.lit("#2")),
    "swapped": lambda: F.concat(F.lit("-"), "kind"),
    "first": lambda: F.substring("kind", 1, 1),
    "second": lambda: F.substring("kind", 2, 1),
    "narrow": lambda: F.col("value").cast("decimal(10,1)"),
    "wide": lambda: F.col("value").cast("decimal(10,2)"),
    "field": lambda: F.struct("kind", "tenant")["kind"],
    "other field": lambda: F.struct("kind", "tenant")["tenant"],
    "lambda": lambda: F.transform(F.array("amount"), lambda item: item + 1),
    "other lambda": lambda: F.transform(F.array("amount"), lambda item: item + 2),
    "nested": lambda: F.transform(F.array("amount"), lambda a: F.exists(F.array("part"), lambda b: a > b)),
    "nested, swapped": lambda: F.transform(F.array("amount"), lambda a: F.exists(F.array("part"), lambda b: b > a)),
    "function": suffixed("x"),
    "other constant": suffixed("y"),
    "other closure": suffixed("x", 2),
    "sum of a lambda": lambda: F.sum(more(0)()),
    "sum of another": lambda: F.sum(more(1)()),
    "distinct": lambda: F.count_distinct("kind"),
    "not distinct": lambda: F.count("kind"),
}


def forms(spark: SparkSession, feed: Feed) -> dict[str, Any]:
    rows = feed.batch(spark)
    for _ in range(3):
        rows.select(F.transform(F.array("amount"), lambda item: item)).schema  # noqa: B018 - numbers are given away
    return {name: expression_form(rows, make()) for name, make in EXPRESSIONS.items()}


@pytest.mark.thorough
def test_an_expression_has_one_form_at_each_start(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feed.put(row(1, 1))
    program = [sys.executable, "-m", "tests.spark_internals.test_expressions", str(feed.path)]
    other = json.loads(subprocess.run(program, check=True, capture_output=True).stdout.splitlines()[-1])
    here = forms(spark, feed)
    assert here == other
    digests = {name: form["form"] for name, form in here.items()}
    assert len(set(digests.values())) == len(digests), digests


def test_an_expression_that_differs_each_time_has_no_form(spark: SparkSession, feed: Feed) -> None:
    feed.put(row(1, 1))
    unsteady = F.udf(lambda value: value, "string").asNondeterministic()
    for value in (F.rand(), F.expr("uuid()"), unsteady("kind")):
        assert expression_form(feed.batch(spark), value) is None


def test_what_a_type_lets_be_null_is_no_part_of_a_form(spark: SparkSession, feed: Feed) -> None:
    feed.put(row(1, 1))
    rows = feed.batch(spark)
    filled = rows.withColumn("kind", F.coalesce("kind", F.lit("")))
    for value in (F.col("kind"), F.struct("kind"), F.array(F.lower("kind"))):
        assert expression_form(rows, value) == expression_form(filled, value)


def test_across_versions_the_text_of_an_expression_counts() -> None:
    before = {"text": "lower(kind)", "form": "1", "by": "Spark 4.0.0"}
    now = {"text": "lower(kind)", "form": "2", "by": "Spark 4.3.0"}
    assert not changed_forms({"f": {"kind": before}}, {"f": {"kind": now}}, "f")
    assert changed_forms({"f": {"kind": before}}, {"f": {"kind": {**now, "text": "upper(kind)"}}}, "f")
    assert changed_forms({"f": {"kind": before}}, {"f": {"kind": {**now, "by": "Spark 4.0.0"}}}, "f")


def start(
    spark: SparkSession,
    tracker: Server,
    job: str,
    feed: Feed,
    path: Path,
    scope: Make,
    time: Make,
    key: Make,
    total: Make,
) -> list[tuple[Any, ...]]:
    """Run a query until it has read what there is, and stop it with a window open, or drain it."""
    tracking = Tracking(spark, job, tracker.address)
    window = (time().alias("at"), "1 hour")
    source = tracking.source(feed.stream(spark), "in", scope=scope().alias("shop"), window=window)
    released = tracking.release(source, [key().alias("kind")], aggs={"n": aggregates.sum(total())})
    try:
        released.writeStream.option("checkpointLocation", path / "cp").start(path / "out")
        tracking.process_all_available()
    finally:
        tracking.stop()
    return rows_of(path / "out", spark, "shop", "kind", "n")


USUAL: dict[str, Make] = {
    "scope": lambda: F.lower("tenant"),
    "time": lambda: F.col("ts") + F.expr("interval 1 hour"),
    "key": suffixed("x"),
    "total": more(0),
}
OTHERS: dict[str, Make] = {
    "scope": lambda: F.upper("tenant"),
    "time": lambda: F.col("ts") + F.expr("interval 2 hours"),
    "key": suffixed("y"),
    "total": more(1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("place", OTHERS)
def test_a_changed_expression_is_refused_at_a_restart(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, place: str
) -> None:
    feed.put(row(1, 1), row(2, 2))
    start(spark, tracker, job, feed, tmp_path, **USUAL)
    with pytest.raises(UsageError, match="the query has changed since its checkpoint"):
        start(spark, tracker, job, feed, tmp_path, **{**USUAL, place: OTHERS[place]})
    again = {**USUAL, "key": suffixed("x"), "total": more(0)}
    start(spark, tracker, job, feed, tmp_path, **again)


def main() -> None:
    """Print the forms as another process with a JVM of its own has them."""
    from tests.spark.conftest import session

    spark = session()
    print(json.dumps(forms(spark, Feed(Path(sys.argv[1])))))
    spark.stop()


if __name__ == "__main__":
    main()
