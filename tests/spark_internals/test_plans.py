"""Plans show of rows enough to be certain where it is, and nothing certain where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.spark_internals.plans import (
    has_lambda,
    has_literal,
    is_plain,
    passed_on,
    reads_whole,
    without_call_sites,
)
from tests.spark.feed import Feed, row
from tests.spark_internals.running import run

pytestmark = pytest.mark.spark

Step = Callable[[DataFrame], DataFrame]


@pytest.fixture
def in_batch(spark: SparkSession, feed: Feed, tmp_path: Path) -> Callable[[Callable[[DataFrame], Any]], Any]:
    """Return a function that asks something of a stream's batch, of two rows."""

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
    "a union": (lambda rows: rows.unionByName(rows), False),
    "a filter that nothing passes": (lambda rows: rows.where(F.lit(False)), False),
    "others": (lambda rows: rows.sparkSession.range(3), False),
}


def test_what_passes_on_a_column_as_it_was(in_batch: Any) -> None:
    answers = in_batch(lambda rows: {name: passed_on(rows, step(rows), ["ts"]) for name, (step, _) in PASSED.items()})
    assert answers == {name: certain for name, (_, certain) in PASSED.items()}


def test_what_reads_all_rows(in_batch: Any) -> None:
    answers = in_batch(lambda rows: {name: reads_whole(rows, step(rows)) for name, (step, _) in READ.items()})
    assert answers == {name: certain for name, (_, certain) in READ.items()}


def test_rows_of_the_same_form_are_others(spark: SparkSession) -> None:
    rows, others = spark.range(3), spark.range(4)
    assert reads_whole(rows, rows.where("id > 1"))
    assert not reads_whole(rows, others.where("id > 1"))


def test_a_filter_can_make_an_outer_join_read_in_part(spark: SparkSession) -> None:
    numbers = spark.range(9).withColumn("n", F.col("id") * 2)
    joined = spark.range(5).join(numbers, "id", "left")
    for rows in (joined, spark.range(3).selectExpr("id", "id as n").unionByName(joined)):
        assert not reads_whole(rows, rows.where("n > 3"))


def test_a_number_sign_in_a_name_begins_no_number(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, 2)], "ts long, `ts#1` long")
    changed = rows.withColumn("ts", F.col("ts") + 1)
    assert passed_on(rows, changed, ["ts#1"])
    assert not passed_on(rows, changed, ["ts"])


class Mute:
    """Python's handle of rows in the JVM, in a Spark that keeps plans elsewhere."""

    def __init__(self, rows: Any, error: Exception) -> None:
        self._rows = rows
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name == "queryExecution":
            raise self._error

        def call(*arguments: Any) -> Any:
            made = getattr(self._rows, name)(*arguments)
            of_rows = isinstance(made, JavaObject) and made.getClass().getSimpleName() == "Dataset"
            return Mute(made, self._error) if of_rows else made

        return call


@pytest.mark.parametrize("error", [AttributeError("queryExecution"), Py4JError("no such method")], ids=repr)
def test_nothing_is_certain_where_spark_does_not_answer(spark: SparkSession, error: Exception) -> None:
    rows = spark.createDataFrame([(1, (2, 3), 4)], "id long, inner struct<id: long, other: long>, `inner.id` long")
    silent = type(rows)(Mute(rows._jdf, error), spark)
    assert silent.columns == rows.columns
    for before, after in ((rows, silent), (silent, rows), (silent, silent)):
        assert not passed_on(before, after, ["id"])
        assert not reads_whole(before, after)
    assert is_plain(silent, "id"), "the name of a column can be nothing else"
    for value in (F.col("id"), "inner.id", "inner.other", "ID"):
        assert not is_plain(silent, value), value
    for each in (F.col("id"), "id"):
        assert has_lambda(silent, each)
        assert has_literal(silent, each)


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


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="no setting turns them off")
def test_columns_have_no_call_sites_while_anyone_wants_none(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.errors.utils._enable_debugging_cache", True)  # it is off in these tests

    def shown() -> bool:
        with pytest.raises(ArithmeticException) as failed:
            spark.range(1).select(F.lit(1) / F.lit(0)).collect()
        return Path(__file__).name in str(failed.value)

    one, other = without_call_sites(), without_call_sites()
    found = [shown()]
    for change in (one.__enter__, other.__enter__, lambda: one.__exit__(None, None, None)):
        change()
        found.append(shown())
    other.__exit__(None, None, None)
    assert [*found, shown()] == [True, False, False, False, True]
