"""What plans show of rows: enough to be certain where it is, and nothing certain where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.spark_internals.plans import has_lambda, has_literal, is_plain, partitions_of, passed_on, reads_whole
from tests.spark.feed import Feed, row
from tests.spark_internals.running import run

pytestmark = pytest.mark.spark

Step = Callable[[DataFrame], DataFrame]


@pytest.fixture
def in_batch(spark: SparkSession, feed: Feed, tmp_path: Path) -> Callable[[Callable[[DataFrame], Any]], Any]:
    """Asks something of the rows of a stream's batch, of which there are two."""

    def ask(question: Callable[[DataFrame], Any]) -> Any:
        answers: list[Any] = []
        feed.put(row(1, 5), row(2, 9, kind="y"))
        run(feed.stream(spark), tmp_path / "cp", lambda rows, epoch: answers.append(question(rows)))
        (answer,) = answers
        return answer

    return ask


PASSED: dict[str, tuple[Step, bool]] = {
    "as they are": (lambda rows: rows, True),
    "a filter and another column": (lambda rows: rows.where("amount > 0").withColumn("more", F.lit(1)), True),
    "another column of the name": (lambda rows: rows.withColumn("ts", F.col("ts") + F.expr("interval 1 hour")), False),
    "a column that takes the name": (lambda rows: rows.drop("ts").withColumnRenamed("kind", "ts"), False),
    "the column is gone": (lambda rows: rows.drop("ts"), False),
    "an explode": (lambda rows: rows.withColumn("n", F.explode(F.array(F.lit(1), F.lit(2)))), False),
    "a join": (lambda rows: rows.join(rows.sparkSession.range(1), F.lit(True)), False),
}

READ: dict[str, tuple[Step, bool]] = {
    "as they are": (lambda rows: rows, True),
    "filters and columns": (lambda rows: rows.where("amount > 0").withColumn("more", F.col("amount") + 1), True),
    "an explode": (lambda rows: rows.withColumn("n", F.explode(F.array(F.lit(1), F.lit(2)))), True),
    "a limit": (lambda rows: rows.limit(1), False),
    "a join": (lambda rows: rows.join(rows.sparkSession.range(1), F.lit(True)), False),
    "a filter that nothing passes": (lambda rows: rows.where(F.lit(False)), False),
    "others": (lambda rows: rows.sparkSession.range(3), False),
}


def test_what_passes_on_a_column_as_it_was(in_batch: Any) -> None:
    answers = in_batch(lambda rows: {name: passed_on(rows, step(rows), ["ts"]) for name, (step, _) in PASSED.items()})
    assert answers == {name: certain for name, (_, certain) in PASSED.items()}


def test_what_reads_all_rows(in_batch: Any) -> None:
    answers = in_batch(lambda rows: {name: reads_whole(rows, step(rows)) for name, (step, _) in READ.items()})
    assert answers == {name: certain for name, (_, certain) in READ.items()}


def test_partitions_are_known_unless_rows_are_exchanged(in_batch: Any) -> None:
    def ask(rows: DataFrame) -> list[int | None]:
        several = rows.sparkSession.range(6, numPartitions=3)
        exchanged = several.groupBy(F.col("id") % 2).count()
        return [partitions_of(each) for each in (rows, several, several.coalesce(2), exchanged)]

    assert in_batch(ask) == [1, 3, 2, None]


def test_a_plain_column_is_told_from_an_expression(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, 2, 3)], "a long, `b.c` long, d long")
    plain: list[Any] = ["a", F.col("a"), rows["a"], rows.a, F.col("`b.c`"), "A"]
    assert [is_plain(rows, value) for value in plain] == [True] * len(plain)
    made: list[Any] = [F.col("a") + 1, F.lit(1), F.col("a").alias("b"), F.col("a").cast("string"), F.upper("a")]
    assert [is_plain(rows, value) for value in made] == [False] * len(made)


def test_a_function_of_variables_is_found_wherever_it_is(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("id", "array(id) as items", "string(id) as `lambdafunction(x)`")
    inner = F.transform("items", lambda item: item + 1)
    assert has_lambda(rows, inner)
    assert has_lambda(rows, F.concat_ws(",", inner.cast("array<string>")).alias("named"))
    assert has_lambda(rows, F.expr("exists(items, item -> item > 1)"))
    for other in (F.col("id") + 1, F.upper(F.col("lambdafunction(x)")), F.lit("lambdafunction(x)"), "items"):
        assert not has_lambda(rows, other), other
    assert "lambdafunction(" in rows.select(inner).columns[0]


def test_a_literal_is_told_from_the_column_that_is_written_alike(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("id", "id as `1`", "string(id) as text")
    for function in (F.max, F.count, F.sum, F.stddev, F.approx_count_distinct, F.collect_set, F.bit_xor):
        assert not has_literal(rows, function("id")), function
        assert not has_literal(rows, function(F.col("`1`"))), function
    for literal in (F.max(F.lit("text")), F.count(F.lit(1)), F.max(F.lit(1)), F.max(F.col("id") + 1)):
        assert has_literal(rows, literal), literal
