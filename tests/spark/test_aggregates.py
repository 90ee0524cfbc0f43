"""Every aggregate, over every type, however the rows are split into batches, equals Spark's own over all rows at once.

Parts are written to files and merged as a release does it: the batches' first, some of them merged, and then all.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client import Marks, Tracking, UsageError, aggregates
from spark_client.aggregates.aggregate import BY_NAME, Aggregate, known_as, remade
from spark_client.aggregates.sums import bounded, quotient
from spark_client.plan.streams import Stream
from spark_client.release.aggregation import Aggregation
from spark_client.release.declaring import declare
from spark_client.windows.named import Named
from tests.client.processes import Server
from tests.spark.batches import BatchTracking
from tests.spark.feed import Feed, row, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

NINES = "9" * 38
#: By type, in SQL: values among which are those on which sums, scales and comparisons turn.
VALUES: dict[str, list[str]] = {
    "tinyint": ["127", "-128", "0", "1"],
    "smallint": ["32767", "-32768", "3"],
    "int": ["2147483647", "-2147483648", "7"],
    "bigint": ["9223372036854775807", "-9223372036854775808", "4611686018427387904", "1", "-1"],
    "float": ["1.5", "'NaN'", "-0.0", "0.0", "'Infinity'", "0.1"],
    "double": ["0.1", "'NaN'", "-0.0", "0.0", "'-Infinity'", "1e9", "1e200", "3.7"],
    "decimal(5,2)": ["999.99", "-999.99", "0.01", "1", "2"],
    "decimal(28,6)": ["1", "2", "0.000001", "-3.5"],
    "decimal(28,10)": ["1", "2", "0.0000000001", "-3.5"],
    "decimal(38,18)": ["1", "2", "0.000000000000000001", "99999999999999999999.9"],
    "decimal(38,0)": [NINES, f"-{NINES}", "5", "1"],
    "decimal(38,37)": ["0.1", "-9.9", "0.0000000000000000000000000000000000001"],
    "decimal(38,38)": ["0.1", "-0.3", "0.00000000000000000000000000000000000001"],
    "string": ["'1'", "'2.5'", "''", "'x'", "'1e3'"],
    "boolean": ["true", "false"],
    "binary": ["X'01'", "X''", "X'FF'"],
    "date": ["'2024-03-31'", "'1500-01-01'", "'9999-12-31'"],
    "timestamp": ["'2024-03-31 02:30:00'", "'1500-01-01 00:00:00'", "'9999-12-31 00:00:00'"],
    "timestamp_ntz": ["'2024-03-31 02:30:00'", "'1500-01-01 00:00:00'"],
    "interval day to second": [
        "INTERVAL '1 02:03:04.5' DAY TO SECOND",
        "INTERVAL '-3' DAY",
        "INTERVAL '106751991' DAY",
    ],
    "interval year to month": [
        "INTERVAL '1-2' YEAR TO MONTH",
        "INTERVAL '178956970-7' YEAR TO MONTH",
        "INTERVAL '-0-5' YEAR TO MONTH",
    ],
    "array<double>": ["array(0.0D)", "array(-0.0D)", "array(1.0D, null)"],
    "struct<a:int,b:string>": ["named_struct('a', 1, 'b', 'x')", "named_struct('a', 1, 'b', CAST(null AS string))"],
    "map<string,int>": ["map('a', 1)", "map('a', 2)"],
    "string collate UTF8_LCASE": ["'a'", "'A'", "'b'"],
    "void": ["null"],
}
FUNCTIONS: dict[str, Any] = {
    "count": aggregates.count,
    "count_if": aggregates.count_if,
    "sum": aggregates.sum,
    "min": aggregates.min,
    "max": aggregates.max,
    "avg": aggregates.avg,
    "bool_and": aggregates.bool_and,
    "bool_or": aggregates.bool_or,
    "bit_xor": aggregates.bit_xor,
    "bit_and": aggregates.bit_and,
    "bit_or": aggregates.bit_or,
    "variance": aggregates.variance,
    "stddev": aggregates.stddev,
    "collect_set": aggregates.collect_set,
    "count_distinct": aggregates.count_distinct,
    "approx_count_distinct": aggregates.approx_count_distinct,
    "collect_list": aggregates.collect_list,
    "var_pop": aggregates.var_pop,
    "stddev_pop": aggregates.stddev_pop,
    "covar_pop": lambda x: aggregates.covar_pop(x, "y"),
    "covar_samp": lambda x: aggregates.covar_samp("y", x),
    "corr": lambda x: aggregates.corr(x, "y"),
    "max_by": lambda x: aggregates.max_by(x, "y"),
    "min_by": lambda x: aggregates.min_by(x, "y"),
    "greatest by itself": lambda x: aggregates.max_by(x, x),
    "pairs": lambda x: aggregates.count_distinct(x, F.col("y") > 40),
    "percentile": lambda x: aggregates.percentile(x, [0, 0.3, 0.5, 1]),
    "median": aggregates.median,
    "some": lambda x: aggregates.sum(x).where("y > 40"),
    "ratio": lambda x: aggregates.sum(x) / aggregates.count(x),
    "difference": lambda x: aggregates.avg(x).where("y > 40") - aggregates.avg(x) + 1,
}


@pytest.fixture
def ansi(spark: SparkSession) -> Iterator[Any]:
    before = str(spark.conf.get("spark.sql.ansi.enabled"))
    yield lambda on: spark.conf.set("spark.sql.ansi.enabled", on)
    spark.conf.set("spark.sql.ansi.enabled", before)


class _Input:
    """The part of a stream's input that a release needs, for plans alone."""

    segment = "in"
    rule = Named("g")
    belonging = None


def values(spark: SparkSession, kind: str, batches: list[list[str | None]]) -> DataFrame:
    """Return rows in batches: `b`, `x` of a type, `y`, and `_tracker` of one substream; nulls where a value is None."""

    def written(value: str | None) -> str:
        if kind == "void":
            return "null"
        if value is not None and ("interval" in kind or "<" in kind):
            return value
        return f"CAST({value or 'null'} AS {kind})"

    flat = [(b, written(value)) for b, batch in enumerate(batches) for value in batch]
    # Beside each value one that no other row has, or none.
    ys = [f"{place * 37 % 101}.5D" if place % 5 != 3 else "CAST(null AS double)" for place in range(len(flat))]
    listed = ", ".join(f"({b}, {value}, {y})" for (b, value), y in zip(flat, ys, strict=True))
    if "collate" in kind:
        listed = listed.replace(" AS string collate UTF8_LCASE)", " AS string) COLLATE UTF8_LCASE")
    tracker = "named_struct('scope', '', 'name', 'g', 'end', CAST(null AS timestamp), 'label', 0L)"
    return spark.sql(f"SELECT b, x, y, {tracker} AS _tracker FROM VALUES {listed} AS t(b, x, y)")


def release_of(rows: DataFrame, made: dict[str, Any], on_overflow: Any = "fail") -> Aggregation:
    stream = Stream(_Input())  # type: ignore[arg-type]
    return Aggregation(declare(stream, rows.drop("b"), [], made, on_overflow=on_overflow))


def released(release: Aggregation, rows: DataFrame, path: Path) -> DataFrame:
    """Return the results of a release over batches: written one by one, some merged, then all."""
    spark = rows.sparkSession

    def merge(some: list[str]) -> DataFrame:
        return release.parts(spark, some).groupBy("_scope", "_key").agg(*release.merging)

    paths = []
    for number in range(1 + max(r[0] for r in rows.select("b").collect())):
        batch = rows.where(F.col("b") == number).drop("b")
        paths.append(str(path / f"part-{number}"))
        release.partial(batch, {}, labels=False).write.parquet(paths[-1])
    if len(paths) > 2:
        merge(paths[:2]).write.parquet(str(path / "merged"))
        paths = [str(path / "merged"), *paths[2:]]
    return release.results(merge(paths)).drop("g")


def same(got: Any, expected: Any) -> bool:
    if isinstance(expected, float) and isinstance(got, float):
        return math.isnan(got) if math.isnan(expected) else got == pytest.approx(expected, rel=1e-9, abs=1e-12)
    if isinstance(expected, list) and any(isinstance(each, float) for each in expected) and len(got) == len(expected):
        ordered = [sorted(each, key=lambda value: (math.isnan(value), value)) for each in (got, expected)]
        return all(map(same, *ordered))
    if isinstance(expected, list) and got != expected:  # a set has no order; of equal values, either may be the least
        return sorted(map(repr, got)) == sorted(map(repr, expected))
    return bool(got == expected)


ERRORS = ("OVERFLOW", "DIVIDE_BY_ZERO", "OUT_OF_RANGE", "CAST_INVALID", "does not fit")


def shown_as(kind: T.DataType) -> T.DataType:
    """Return the type in which Python can hold a value: intervals are texts."""
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(shown_as(kind.elementType))
    return T.StringType() if "interval" in kind.simpleString() else kind


def answers(df: DataFrame) -> dict[str, Any]:
    """Return the values by name; or the failure, as a computation that overflows may have."""
    shown = [F.col(field.name).cast(shown_as(field.dataType)) for field in df.schema.fields]
    try:
        return dict(zip(df.columns, df.select(*shown).collect()[0], strict=True))
    except Exception as error:
        if not any(each in str(error) for each in ERRORS):
            raise
        return dict.fromkeys(df.columns, "fails")


def compare(rows: DataFrame, made: dict[str, Aggregate], path: Path, batches: list[list[str | None]]) -> None:
    case = (rows.schema["x"].dataType.simpleString(), batches)
    expected = rows.groupBy().agg(*[each.native.alias(name) for name, each in made.items()])
    other = answers(expected)
    try:
        got = released(release_of(rows, made), rows, path)
    except Exception:  # a value that cannot be cast fails its batch
        if set(other.values()) != {"fails"}:
            raise
        return
    for ours, sparks in zip(got.schema.fields, expected.schema.fields, strict=True):
        assert ours.dataType.simpleString() == sparks.dataType.simpleString(), (sparks.name, case)
        assert ours.nullable == sparks.nullable, (sparks.name, case)
    one = answers(got)
    for name in made:
        if not same(one[name], other[name]):
            known = depends_on_order(name, rows.schema["x"].dataType, batches) or cancels(
                name, batches, one[name], other[name]
            )
            assert known, (name, case, one[name], other[name])


def cancels(name: str, batches: list[list[str | None]], *results: Any) -> bool:
    """Return whether two results differ by no more than doubles round products of which large ones cancel."""
    if name not in ("covar_pop", "covar_samp") or not all(isinstance(each, float) for each in results):
        return False
    largest = max(abs(float(value.strip("'"))) for batch in batches for value in batch if value is not None)
    return abs(results[0] - results[1]) <= 1e-13 * largest * 101  # the ys are below 101


def depends_on_order(name: str, kind: T.DataType, batches: list[list[str | None]]) -> bool:
    """Return whether Spark's own answer depends on the rows' order, since sums overflow on the way and come back."""
    if name not in ("sum", "avg", "some", "ratio", "difference"):
        return False
    with localcontext() as context:
        context.prec = 100
        numbers = [Decimal(value) for batch in batches for value in batch if value is not None]
        above, below = sum(n for n in numbers if n > 0), sum(n for n in numbers if n < 0)
        limit = Decimal(2) ** 63
        if isinstance(kind, T.DecimalType):
            limit = Decimal(10) ** (min(kind.precision + 10, 38) - kind.scale)
        return (above >= limit or below <= -limit) and -limit <= above + below < limit


#: Types in which something overflows, is rounded, is no number, or is refused: drawn once in every run of the tests.
SOON = ["double", "decimal(38,18)", "string", "interval day to second", "void"]


@pytest.mark.thorough
def test_numbers_beside_decimals_and_constant_values_are_as_sparks_own(
    spark: SparkSession, ansi: Any, tmp_path: Path
) -> None:
    """Spark types an integer beside a decimal by its digits if it is a literal; a deviation of zero is no error."""
    made = {
        "difference": aggregates.avg("x") - aggregates.max("x") + 1,
        "share": aggregates.sum("x") / 7 * 3,
        "half": aggregates.min("x") * Decimal("0.5"),
        "corr": aggregates.corr("x", "y"),
        "backwards": aggregates.corr("y", "x"),
    }
    for number, (kind, in_ansi) in enumerate([("decimal(38,38)", True), ("decimal(5,2)", False), ("bigint", True)]):
        ansi(in_ansi)
        if in_ansi and spark.version < "4.2":  # its own correlation divides by a deviation of zero
            made = {name: each for name, each in made.items() if name not in ("corr", "backwards")}
        value = VALUES[kind][-1]
        batches: list[list[str | None]] = [[value, None], [value, value]]
        compare(values(spark, kind, batches), made, tmp_path / str(number), batches)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "draws"),
    [
        *((kind, 2 if kind == "double" else 1) for kind in SOON),
        *(pytest.param(kind, 8, marks=pytest.mark.slow) for kind in VALUES),
    ],
)
def test_every_aggregate_over_every_type_equals_sparks_own_or_is_refused(
    spark: SparkSession, ansi: Any, tmp_path: Path, kind: str, draws: int
) -> None:
    rng = random.Random(f"{kind}/{draws}")
    for draw in range(draws):
        in_ansi = (draw + list(VALUES).index(kind)) % 2 == 0
        ansi(in_ansi)
        pool: list[str | None] = [*VALUES[kind], None]
        if kind == "string":  # else nearly every draw fails
            pool = rng.choice([pool, ["'1'", "'2.5'", "'1e3'", None]])
        if kind == "double" and draw % 2 == 1:  # finite ones: with the others, nearly every answer is NaN
            pool = ["1e200", "-1e160", "3.7", "0.1", None]
        batches = [[rng.choice(pool) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 4))]
        rows = values(spark, kind, batches)
        together: dict[str, Aggregate] = {}
        perhaps: dict[str, Aggregate] = {}
        refused = set()
        for name, make in FUNCTIONS.items():
            made = make("x")
            try:
                rows.groupBy().agg(made.native).schema  # noqa: B018
            except Exception:
                with pytest.raises(UsageError, match="is not an aggregate over these rows"):
                    release_of(rows, {name: made})
                continue
            try:
                release_of(rows, {name: made})
            except UsageError:
                refused.add(name)
                continue
            if name in MAY_FAIL and (in_ansi or "interval" in kind):
                perhaps[name] = made
            else:
                together[name] = made
        assert refused == REFUSED.get(kind, set())
        own = answers(rows.groupBy().agg(F.lit(1), *[made.native.alias(name) for name, made in perhaps.items()]))
        if "fails" in own.values():  # one of them does, and then all that are asked for with it
            for name in rng.sample(list(perhaps), len(perhaps) if draws > 2 else 4):
                compare(rows, {name: perhaps[name]}, tmp_path / f"{draw}-{name}", batches)
        else:
            together |= perhaps
        compare(rows, together, tmp_path / f"{draw}", batches)


MAY_FAIL = {
    *("sum", "avg", "variance", "stddev", "var_pop", "stddev_pop", "covar_pop", "covar_samp", "corr"),
    *("percentile", "median", "some", "ratio", "difference"),
}
OF_NO_TYPE = {"greatest by itself", "pairs"}
#: Aggregates of Spark that a release refuses.
REFUSED = {
    "map<string,int>": {"count_distinct", "approx_count_distinct", "pairs"},
    "string collate UTF8_LCASE": {"count_distinct", "approx_count_distinct", "pairs"},
    "interval day to second": {"percentile", "median"},
    "interval year to month": {"percentile", "median"},
    "void": {"min", "max", "collect_set", "count_distinct", "collect_list", "max_by", "min_by", *OF_NO_TYPE},
}


@pytest.mark.thorough
def test_quotients_of_decimals_are_exact_and_rounded_half_up(spark: SparkSession) -> None:
    rng = random.Random(4)
    for precision, scale in ((12, 2), (38, 0), (38, 18), (20, 20), (38, 37)):
        kind, result = T.DecimalType(precision, scale), bounded(T.DecimalType(precision, scale), 4, 4)
        cases = []
        for _ in range(60):
            unscaled = rng.randrange(-(10 ** rng.randint(1, precision)), 10 ** rng.randint(1, precision))
            number = rng.choice([1, 2, 3, 7, 8, 2**31, 2**63 - 1, rng.randint(1, 10**6)])
            with localcontext() as context:
                context.prec = 60
                cases.append((Decimal(unscaled).scaleb(-scale), number))
        rows = spark.createDataFrame(cases, T.StructType().add("total", kind).add("number", T.LongType()))
        value = quotient(F.col("total"), F.col("number"), kind, result)
        for (total, number), (got,) in zip(cases, rows.select(value).collect(), strict=True):
            with localcontext() as context:
                context.prec = 120
                exact = (total / number).quantize(Decimal(1).scaleb(-result.scale), ROUND_HALF_UP)
                fits = abs(exact) < Decimal(10) ** (result.precision - result.scale)
                assert got == (exact if fits else None), (kind, total, number)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: F.expr("sum(amount) FILTER (WHERE part = 1)"), "FILTER, DISTINCT, OVER and aliases are not taken"),
        (lambda: F.expr("sum(DISTINCT amount)"), "FILTER, DISTINCT, OVER"),
        (lambda: F.expr("sum(amount) OVER ()"), "is not an aggregate|FILTER, DISTINCT, OVER"),
        (lambda: F.sum("amount").alias("total"), "the result is called as its key"),
    ],
)
def test_forms_of_aggregates_that_are_not_taken_are_refused(
    spark: SparkSession, feed: Feed, given: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        release_of(feed.stream(spark), {"n": given()})


@pytest.mark.thorough
def test_where_is_sparks_filter_and_sparks_aggregates_of_two_columns_are_taken(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = values(spark, "int", [["1", "5", None, "-3"], ["4"], ["4", "2", None, "9", "7"]])
    condition = "x > 1 and y > 10"
    filtered = {
        f"{name}({arguments})": make.where(condition)
        for name, arguments, make in [
            ("count", "*", aggregates.count()),
            ("sum", "x", aggregates.sum("x")),
            ("avg", "x", aggregates.avg(F.col("x"))),
            ("max_by", "x, y", aggregates.max_by("x", "y")),
            ("corr", "x, y", aggregates.corr("x", "y")),
            ("count", "DISTINCT x, y", aggregates.count_distinct("x", "y")),
            ("percentile", "x, 1", aggregates.percentile("x", 1)),
            ("min", "x", aggregates.min("x").where("y > 10").where(F.col("x") > 1)),
        ]
    }
    expected = rows.groupBy().agg(*[F.expr(f"{call} FILTER (WHERE {condition})").alias(call) for call in filtered])
    pairs = {"best": F.max_by("x", "y"), "together": F.corr("x", "y"), "middle": F.median("x")}
    pairs |= {"some": F.count("x"), "distinct": F.count_distinct("x"), "pairs": F.count_distinct("x", "y")}
    both = expected.crossJoin(rows.groupBy().agg(*[value.alias(name) for name, value in pairs.items()]))
    got = answers(released(release_of(rows, {**filtered, **pairs}), rows, tmp_path))
    assert got == {name: pytest.approx(value) for name, value in answers(both).items()}
    with pytest.raises(UsageError, match="Spark does not let us see into"):
        release_of(rows, {"n": F.max_by("x", F.col("y") + 1)})
    with pytest.raises(UsageError, match=r"aggregates.sum\('a'\) / aggregates.sum\('b'\)"):
        release_of(rows, {"n": F.sum("x") / F.count("x")})
    with pytest.raises(UsageError, match="give aggregates of"):
        aggregates.combine(lambda x: x, F.sum("x"))  # type: ignore[arg-type]


def test_an_aggregate_from_outside_is_taken_by_its_name_in_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = values(spark, "int", [["2", "5"], [None], ["3", "-1"]])
    with pytest.raises(UsageError, match="cannot be merged from parts"):
        release_of(rows, {"n": F.product("x")})
    monkeypatch.setitem(BY_NAME, "product", BY_NAME["sum"])  # so that it is gone after the test

    @known_as("product")
    def product(value: str) -> Aggregate:
        return remade(lambda x: Aggregate(F.product(x), (F.product(x),), (F.product,)), value)

    made: dict[str, Any] = {"all": F.product("x"), "some": product("x").where("x > 0"), "half": product("x") / 2}
    got = answers(released(release_of(rows, made), rows, tmp_path))
    assert got == {"all": -30.0, "some": 30.0, "half": -15.0}


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(F, "kll_merge_agg_double"), reason="sketches of this kind came with Spark 4.1.2")
def test_percentiles_of_a_sketch_are_values_of_about_that_rank(spark: SparkSession, tmp_path: Path) -> None:
    tracker = "named_struct('scope', '', 'name', 'g', 'end', CAST(null AS timestamp), 'label', 0L) AS _tracker"
    for cast in ("bigint", "double"):
        rows = spark.range(20_000).selectExpr(
            "int(id % 4) as b", f"cast(pmod(id * 7919, 20011) as {cast}) as x", tracker
        )
        made = {"two": aggregates.approx_percentile("x", [0.5, 0.99]), "none": aggregates.approx_percentile("x", 0.5)}
        made["none"] = made["none"].where("x < 0")
        (got,) = released(release_of(rows, made), rows, tmp_path / cast).collect()
        ordered = sorted(r[0] for r in rows.select("x").collect())
        ranks = [sum(value <= found for value in ordered) / len(ordered) for found in got["two"]]
        assert ranks == pytest.approx([0.5, 0.99], abs=0.04)
        assert got["none"] is None
    with pytest.raises(UsageError, match="a sketch takes numbers, not string"):
        release_of(values(spark, "string", [["'1'"]]), {"n": aggregates.approx_percentile("x", 0.5)})


@pytest.mark.thorough
def test_an_overflowing_result_fails_as_sparks_and_the_advice_repairs_it(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path, ansi: Any
) -> None:
    ansi(True)

    def start(**options: Any) -> Tracking:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        source = tracking.source(feed.stream(spark), "in", substream="tenant", front=Marks("is_last"))
        released = tracking.release(source, aggs={"total": F.sum("amount")}, **options).writeStream
        released.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
        return tracking

    most = 2**63 - 1
    tracking = start()
    feed.put(row(1, 1, "back", amount=most), row(2, 1, "back", amount=5), row(3, 1, "beyond", amount=most))
    feed.put(row(4, 1, "back", amount=-6, last=True))  # what a batch alone would overflow by comes back
    tracking.process_all_available()
    assert rows_of(tmp_path / "out", spark, "tenant", "total") == [("back", most - 1)]
    feed.put(row(5, 1, "beyond", amount=1, last=True), row(6, 1, "other", last=True))
    with pytest.raises(Exception, match=r"'total' of .*beyond.* does not fit bigint.*on_overflow='null'"):
        tracking.process_all_available()
    tracking.stop()
    tracking = start(on_overflow="null")
    tracking.process_all_available()
    tracking.stop()
    got = {tuple(r) for r in spark.read.parquet(str(tmp_path / "out")).select("tenant", "total").collect()}
    assert got == {("back", most - 1), ("beyond", None), ("other", 1)}


def test_state_that_another_version_kept_otherwise_is_refused_with_what_to_do(
    spark: SparkSession, tracker: Server, job: str, feed: Feed, tmp_path: Path
) -> None:
    def start() -> None:
        tracking = BatchTracking(feed, spark, job, tracker.address)
        try:
            source = tracking.source(feed.stream(spark), "in", substream="tenant", front=Marks("is_last"))
            released = tracking.release(source, aggs={"total": F.sum("amount"), "n": F.count("*")}).writeStream
            released.option("checkpointLocation", tmp_path / "cp").start(tmp_path / "out")
            tracking.process_all_available()
        finally:
            tracking.stop()

    feed.put(row(1, 1))
    start()
    note = tmp_path / "cp" / "tracker" / "query.json"
    was = json.loads(note.read_text())
    was["aggregates"]["total"] = "Column<'sum(amount)'> kept as bigint"
    note.write_text(json.dumps(was))
    with pytest.raises(UsageError, match="another version of this package kept them otherwise: go back to it"):
        start()
