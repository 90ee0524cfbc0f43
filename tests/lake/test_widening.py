"""Columns of a table that are wider than the rows': rows are cast where no value changes, and refused otherwise."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client import UsageError
from spark_client.destinations.lake import fitted, holds_all
from tests.lake.test_tables import OF_FORMAT, there, values

pytestmark = pytest.mark.spark

_BITS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_FLOATS: dict[type[T.DataType], tuple[int, int, int]] = {
    T.FloatType: (24, 127, -149),
    T.DoubleType: (53, 1023, -1074),
}  # digits, largest and smallest exponent

NUMBERS = st.one_of(
    st.sampled_from([kind() for kind in (*_BITS, *_FLOATS)]),
    st.integers(1, 38).flatmap(lambda digits: st.builds(T.DecimalType, st.just(digits), st.integers(0, digits))),
)
OTHERS = st.sampled_from([kind() for kind in (T.StringType, T.BinaryType, T.BooleanType, T.DateType, T.TimestampType)])


def extremes(kind: T.DataType) -> list[Fraction]:
    """Return the values of a type of numbers that lie at its limits."""
    if (bits := _BITS.get(type(kind))) is not None:
        return [Fraction(-(2 ** (bits - 1))), Fraction(2 ** (bits - 1) - 1)]
    if isinstance(kind, T.DecimalType):
        return [Fraction(10**kind.precision - 1, 10**kind.scale), Fraction(1, 10**kind.scale)]
    digits, largest, smallest = _FLOATS[type(kind)]
    return [Fraction(2**digits - 1) * Fraction(2) ** (largest - digits + 1), Fraction(2) ** smallest]


def has(kind: T.DataType, value: Fraction) -> bool:
    """Return whether a value is one of a type, to the last digit."""
    if type(kind) in _BITS:
        low, high = extremes(kind)
        return value.denominator == 1 and low <= value <= high
    if isinstance(kind, T.DecimalType):
        return (value * 10**kind.scale).denominator == 1 and abs(value) <= extremes(kind)[0]
    digits, _, smallest = _FLOATS[type(kind)]
    odd = abs(value.numerator)
    while odd and odd % 2 == 0:
        odd //= 2
    is_binary = value.denominator & (value.denominator - 1) == 0
    return is_binary and odd < 2**digits and value.denominator <= 2**-smallest and abs(value) <= extremes(kind)[0]


def answer(kind: T.DataType, to: T.DataType) -> bool:
    """Return by the values themselves whether nothing is lost. Infinity and NaN are values of floats alone."""
    if type(kind) in _FLOATS and type(to) not in _FLOATS:
        return False
    return all(has(to, value) for value in extremes(kind))


@given(NUMBERS, NUMBERS)
def test_numbers_are_widened_just_where_all_values_fit(kind: T.DataType, to: T.DataType) -> None:
    assert holds_all(kind, to) == answer(kind, to)


@given(st.one_of(NUMBERS, OTHERS), OTHERS)
def test_what_is_no_number_is_only_ever_itself(kind: T.DataType, to: T.DataType) -> None:
    assert holds_all(kind, to) == (kind == to)
    assert holds_all(to, kind) == (kind == to)


@given(NUMBERS, NUMBERS, st.booleans())
def test_parts_of_a_type_are_widened_alike(kind: T.DataType, to: T.DataType, null: bool) -> None:
    whole = answer(kind, to)
    assert holds_all(T.ArrayType(kind, null), T.ArrayType(to, not null)) == whole
    assert holds_all(T.MapType(kind, kind), T.MapType(to, to, null)) == whole
    its, other = (T.StructType().add("a", T.StringType()).add("b", each, null) for each in (kind, to))
    assert holds_all(its, other) == whole
    assert not holds_all(its, T.StructType([*reversed(other.fields)])), "a cast takes fields by their places"
    assert not holds_all(kind, T.ArrayType(to))


def in_python(value: Fraction, kind: T.DataType) -> object:
    if isinstance(kind, T.DecimalType):
        return Decimal(int(value * 10**kind.scale)).scaleb(-kind.scale)
    return float(value) if type(kind) in _FLOATS else int(value)


def test_spark_casts_each_extreme_value_to_itself(spark: SparkSession) -> None:
    kinds = [*(kind() for kind in (*_BITS, *_FLOATS)), *(T.DecimalType(*each) for each in ((5, 2), (20, 2), (38, 20)))]
    pairs = [(kind, to) for kind in kinds for to in kinds if kind != to and holds_all(kind, to)]
    assert len(pairs) > 15
    for place in range(2):
        rows = [tuple(in_python(extremes(kind)[place], kind) for kind, _ in pairs)]
        fields = [T.StructField(f"c{number}", kind) for number, (kind, _) in enumerate(pairs)]
        wide = T.StructType([T.StructField(f"C{number}", to) for number, (_, to) in enumerate(pairs)])
        cast = fitted(spark.createDataFrame(rows, T.StructType(fields)), wide)
        assert cast.columns == wide.names
        (found,) = cast.collect()
        assert [Fraction(value) for value in found] == [extremes(kind)[place] for kind, _ in pairs]


@pytest.mark.thorough
@pytest.mark.parametrize("key", [(), ("ID",)])
def test_rows_go_into_wider_columns_of_another_case_and_order(
    spark: SparkSession, table: tuple[str, str], key: tuple[str, ...]
) -> None:
    columns = "price decimal(20,2), ID bigint, part struct<a: double, b: array<bigint>>, note string"
    if table[0] == "iceberg" and not key:
        columns += ", _query string, _epoch bigint"
    name = f"delta.`{table[1]}`" if table[0] == "delta" else table[1]
    spark.sql(f"create table {name} ({columns}) using {table[0]}").collect()
    sink = OF_FORMAT[table[0]](table[1], key=[each.lower() for each in key])
    part = "named_struct('a', 0.5f, 'b', array(7)) as part"
    for epoch in range(2):
        rows = spark.sql(f"select 5 as id, {part}, cast({epoch} + 0.25 as decimal(10,2)) as price")
        sink.check(rows.limit(0))
        sink.write(rows, "query", epoch)
    found = values(there(spark, table).selectExpr("id", "part.a", "part.b[0]", "cast(price as string)", "note"))
    epochs = range(1 if key else 0, 2)
    assert found == [(5, 0.5, 7, f"{epoch}.25", None) for epoch in epochs]
    with pytest.raises(UsageError, match=r"has other types than the rows: `price` is decimal\(20,2\), `id` is bigint"):
        sink.check(spark.sql(f"select cast(1 as double) as price, cast(5 as decimal(5,1)) as id, {part}"))
