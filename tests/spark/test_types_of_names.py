"""Scopes, names and keys of every type: rows that Spark groups as one are one, or the type is refused when declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Schedule, Tracking, UsageError
from spark_client.aggregates.decomposition import storable
from spark_client.fronts import timetable
from spark_client.windows import declaration
from spark_client.windows.named import Named
from tests.client.processes import Server

pytestmark = pytest.mark.spark

#: Values of each type that Spark has, the hard ones among them: zeros, ends of the range, escapes, what looks alike.
VALUES = {
    "boolean": "true, false",
    "tinyint": "cast(-128 as tinyint), cast(0 as tinyint)",
    "smallint": "cast(-1 as smallint), cast(0 as smallint)",
    "int": "-2147483648, 0, 1",
    "bigint": "-9223372036854775808, 0L",
    "float": "float('-0.0'), float('0.0'), float('NaN'), float('1e-45'), float('0.1')",
    "double": "-0.0D, 0.0D, cast('NaN' as double), cast('-Infinity' as double), 4.9E-324D, 0.1D, 1e23D",
    "decimal(10,2)": "cast(1.5 as decimal(10,2)), cast(0 as decimal(10,2)), cast(-0.01 as decimal(10,2))",
    "decimal(38,18)": "cast(1 as decimal(38,18)), cast('0.000000000000000001' as decimal(38,18))",
    "string": "'', ' ', 'a', 'A', 'null', 'a\\\\nb', 'ﬀ'",
    "varchar": "cast('a' as varchar(3)), cast('a ' as varchar(3))",
    "char": "cast('a' as char(3)), cast('a ' as char(3))",
    "binary": "X'', X'61', X'00', X'6100'",
    "date": "date'0001-01-01', date'1582-10-15', date'9999-12-31', date'2024-02-29'",
    "timestamp_ntz": "timestamp_ntz'2024-01-01 00:00:00', timestamp_ntz'2024-01-01 00:00:00.000001'",
    "day": "interval '1' day, interval '-1' day",
    "second": "interval '1 00:00:00.000001' day to second, interval '1' day",
    "year": "interval '1' year, interval '12' month, interval '-1' month",
    "hour": "interval '24' hour, interval '1' hour",
    "struct": "struct('a' as x, 'b, c' as y), struct('a, b' as x, 'c' as y)",
    "array": "array('a, b'), array('a', 'b')",
    "map": "map('a', 1), map('b', 1)",
    "variant": "parse_json('1'), parse_json('2')",
}
REFUSED = {"struct", "array", "map", "variant"}


def rows_of(spark: SparkSession, kind: str) -> DataFrame:
    values = VALUES[kind]
    try:
        table = spark.sql(f"select explode(array({values})) as value, timestamp'2024-01-01 00:00:00' as ts")
        return table.union(table) if kind != "variant" else table
    except Exception:  # Spark puts no such values into an array
        pytest.skip(f"this Spark has no {kind}")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("place", ["scope", "substream"])
def test_a_text_names_what_spark_groups_as_one(spark: SparkSession, kind: str, place: str) -> None:
    rows = rows_of(spark, kind)

    def declared() -> tuple[Any, Column]:
        if place == "scope":
            found = declaration.declare(rows, "value", ("ts", "1 day"), None)
            return found.rule.scope_type, found.scope
        found = declaration.declare(rows, None, None, "value")
        assert isinstance(found.rule, Named)
        return found.rule.name_type, found.key

    if kind in REFUSED:
        with pytest.raises(UsageError, match=f"{place}='value' is .*F.to_json"):
            declared()
        return
    given_type, text = declared()
    grouped = rows.groupBy("value").count().select(F.col("value").cast("string").alias("value"), "count")
    named = rows.groupBy(text.alias("text")).count()
    shown = named.select(F.col("text").cast(given_type).cast("string").alias("value"), "count")
    assert sorted(shown.collect()) == sorted(grouped.collect())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "given", "named"),
    [
        ("cast(1.5 as decimal(10,2))", [Decimal("1.5")], {"1.50"}),
        ("cast(1.5 as decimal(10,2))", "cast(1.5 as decimal(4,1))", {"1.50"}),
        ("cast(5 as double)", [5], {"5.0"}),
        ("cast(5 as double)", "5L", {"5.0"}),
        ("cast(-0.0 as double)", [-0.0], {"0.0"}),
        ("cast(0.1 as float)", [0.1], {"0.1"}),
        ("5L", [Decimal(5)], {"5"}),
        ("cast(5 as smallint)", [5.0], {"5"}),
        ("date'2024-01-01'", ["2024-01-01"], {"2024-01-01"}),
        ("date'2024-01-01'", [date(2024, 1, 1)], {"2024-01-01"}),
        ("'5'", [5], {"5"}),
        ("'a'", ["a", "b"], {"a", "b"}),
        ("true", [True], {"true"}),
    ],
)
def test_a_schedules_scopes_and_names_are_the_sources(
    spark: SparkSession, source: str, given: Any, named: set[str]
) -> None:
    for by_scope in (True, False):
        assert read(spark, source, given, by_scope) == named


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("source", "given"),
    [
        ("cast(1.5 as decimal(10,2))", [Decimal("1.555")]),
        ("5L", [5.5]),
        ("5L", ["five"]),
        ("'1.5'", [Decimal("1.5")]),
        ("'1.5'", [1.5]),
        ("date'2024-01-01'", ["yesterday"]),
        ("cast(5 as tinyint)", [300]),
    ],
)
def test_a_schedules_scope_that_no_row_can_have_is_refused(spark: SparkSession, source: str, given: Any) -> None:
    for by_scope in (True, False):
        with pytest.raises(UsageError, match=r"Schedule: .*(give values of that type|give texts)"):
            read(spark, source, given, by_scope)


def read(spark: SparkSession, source: str, given: Any, by_scope: bool) -> set[str]:
    """Return the scopes, or the names, that a schedule has for a source of one type."""
    rows = spark.sql(f"select {source} as value, timestamp'2024-01-01 00:00:00' as ts")
    window, name = (("ts", "1 day"), None) if by_scope else (None, "value")
    rule = declaration.declare(rows, "value" if by_scope else None, window, name).rule
    when = [date(2024, 1, 1)] if by_scope else []
    if isinstance(given, str):
        day = "date'2024-01-01', " if by_scope else ""
        return names_in(timetable.read(spark, spark.sql(f"select {given} as value, {day} 1L as n"), rule), by_scope)
    return names_in(timetable.read(spark, [(each, *when, 1) for each in given], rule), by_scope)


def names_in(due: Any, by_scope: bool) -> set[str]:
    return {each.scope if by_scope else each.name for each in due}


@pytest.fixture
def tracking(spark: SparkSession, tracker: Server, job: str) -> Iterator[Tracking]:
    tracking = Tracking(spark, job, tracker.address)
    yield tracking
    tracking.stop()


@pytest.mark.thorough
def test_zeros_of_either_sign_are_one_result(tracking: Tracking, spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("select explode(array(0.0D, -0.0D, 1.5D)) as value, timestamp'2024-01-01 00:00:00' as ts")
    rows.coalesce(1).write.parquet(str(tmp_path / "raw"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "raw"))
    counts = Schedule([(-0.0, date(2024, 1, 1), 2), (1.5, date(2024, 1, 1), 1)])
    source = tracking.source(stream, "in", scope="value", window=("ts", "1 day"), front=counts)
    released = tracking.release(source, aggs={"n": F.count("*")})
    released.writeStream.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
    tracking.process_all_available()
    found = spark.read.parquet(str(tmp_path / "out")).select("value", "n").collect()
    assert sorted(tuple(row) for row in found) == [(0.0, 2), (1.5, 1)]


Key = Callable[[], Column]


@pytest.mark.parametrize("kind", VALUES)
def test_a_key_of_each_type_is_grouped_by_or_refused(
    tracking: Tracking, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    rows = rows_of(spark, kind)
    stream = spark.readStream.format("rate").load().select("timestamp", F.lit("x").alias("shop"))
    value = F.expr(VALUES[kind].split(", ")[0] if kind not in REFUSED else "parse_json('1')").alias("value")
    if kind != "variant":
        value = F.element_at(F.expr(f"array({VALUES[kind]})"), 1).alias("value")
    source = tracking.source(stream, "in", scope="shop", window=("timestamp", "1 day"))
    refusal = "'value' is .* which files of the state cannot hold"
    try:
        rows.groupBy("value").count()
    except Exception:
        refusal = r"keys: .*'value'"
    else:
        if storable(rows.schema["value"].dataType):
            tracking.release(source, [value], aggs={"n": F.count("*")})
            return
    with pytest.raises(UsageError, match=refusal):
        tracking.release(source, [value], aggs={"n": F.count("*")})


def test_a_session_that_drops_what_is_grouped_by_is_refused(tracking: Tracking, spark: SparkSession, conf: Any) -> None:
    stream = spark.readStream.format("rate").load().select("timestamp", F.lit("x").alias("shop"))
    source = tracking.source(stream, "in", scope="shop", window=("timestamp", "1 day"))
    conf("spark.sql.retainGroupColumns", "false")
    with pytest.raises(UsageError, match=r"spark.sql.retainGroupColumns=false"):
        tracking.release(source, aggs={"n": F.count("*")})
