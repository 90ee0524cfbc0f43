"""The texts of columns, from which an aggregate of Spark's is read."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import Column, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from spark_client.aggregates.aggregate import BY_NAME
from spark_client.aggregates.decomposition import _WITH_CLAUSE, decompose
from spark_client.errors import UsageError
from spark_client.spark_internals.columns import call_in, plain_name

pytestmark = pytest.mark.spark


def test_plain_columns_show_their_names(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1,)], "a long")
    assert [plain_name(value) for value in ("a", F.col("a"), rows.a, rows["a"])] == ["a"] * 4
    others = [F.col("a") + 1, F.col("a.b"), F.col("a").alias("b").cast("string"), F.lit("a b"), F.count("a")]
    assert [plain_name(value) for value in others] == [None] * len(others)


@pytest.mark.parametrize("function", sorted(set(BY_NAME) - {"any", "std"}))
def test_an_aggregate_shows_its_function_and_what_it_is_over(spark: SparkSession, function: str) -> None:
    made = getattr(F, function, None)
    if made is None:  # it can only be written in SQL
        assert function in ("any",)
        return
    besides: tuple[str | float, ...] = (
        ("other",) if BY_NAME[function].columns == 2 else (0.5,) if function == "percentile" else ()
    )
    name, over = call_in(made("value", *besides))
    assert over.split(", ")[: 1 + len(besides)] == ["value", *map(str, besides)]
    assert BY_NAME[name] is BY_NAME[function]


def test_what_an_aggregate_has_besides_shows(spark: SparkSession) -> None:
    value = F.sum("a")
    more: list[Column] = [
        value.over(Window.partitionBy("b")),
        value.alias("c"),
        F.expr("sum(a) filter (where b > 1)"),
        F.expr("sum(distinct a)"),
    ]
    # Before Spark 4.0 a text lacks the last two; the name of what it resolves to does not.
    shown = len(more) if pyspark.__version__ >= "4" else 2
    assert [bool(_WITH_CLAUSE.search(str(column))) for column in more] == [True] * shown + [False] * (len(more) - shown)
    for column in more:
        with pytest.raises(UsageError, match=r"aggs\['n'\]"):
            decompose("n", column, spark.range(1).select(F.col("id").alias("a"), F.col("id").alias("b")))
    assert not _WITH_CLAUSE.search(str(value))
    assert call_in(F.lit(1)) == ("", "")
    assert call_in(F.max("two\nlines"))[0] == "max"
    assert call_in(value + 1) == call_in(value.alias("c")) == ("", "")
    assert call_in(F.count("*")) == ("count", "*") or call_in(F.count("*")) == ("count", "1")
