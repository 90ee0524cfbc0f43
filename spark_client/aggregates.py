"""Aggregates that can be taken in parts: of each batch first, then of the parts.

A release keeps one partial row for each substream, key and batch, and merges them natively when the substream has
ended. So it serves aggregates that decompose into a few values which can be added to one another. Nothing here looks
at data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError
from spark_client.substreams import ColumnOrName, column, names_of

_Native: TypeAlias = Callable[[Column], Column]
_Finish: TypeAlias = Callable[..., Column]


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a release: made by the functions of this module.

    Attributes:
        native: what Spark itself would compute in one go; it gives the result's type.
        partial: the values to keep of each batch.
        merge: how each of them is merged with those of other batches.
        finish: the result, from the merged values in the order of `partial`.
        reads: the columns that it is over; None: an expression, whose are not known.
    """

    native: Column
    partial: tuple[Column, ...]
    merge: tuple[_Native, ...]
    finish: _Finish = lambda value: value
    reads: frozenset[str] | None = None


def count(value: ColumnOrName = "*") -> Aggregate:
    """Rows; or those in which the column is not null."""
    counted = F.count("*") if isinstance(value, str) and value == "*" else F.count(column(value))
    reads = frozenset[str]() if isinstance(value, str) and value == "*" else names_of([value])
    return Aggregate(counted, (counted,), (F.sum,), reads=reads)


def count_if(condition: ColumnOrName) -> Aggregate:
    """Rows in which the condition is true."""
    counted = F.count_if(column(condition))
    return Aggregate(counted, (counted,), (F.sum,), reads=names_of([condition]))


def sum(value: ColumnOrName) -> Aggregate:  # noqa: A001 - Spark's own name
    """The sum."""
    return _itself(F.sum, F.sum, value)


def min(value: ColumnOrName) -> Aggregate:  # noqa: A001
    """The least value."""
    return _itself(F.min, F.min, value)


def max(value: ColumnOrName) -> Aggregate:  # noqa: A001
    """The greatest value."""
    return _itself(F.max, F.max, value)


def avg(value: ColumnOrName) -> Aggregate:
    """The mean, kept as a sum and a count."""
    values = column(value)
    return Aggregate(F.avg(values), (F.sum(values), F.count(values)), (F.sum, F.sum), _mean, names_of([value]))


def bool_and(value: ColumnOrName) -> Aggregate:
    """Whether it is true in all rows."""
    return _itself(F.bool_and, F.bool_and, value)


def bool_or(value: ColumnOrName) -> Aggregate:
    """Whether it is true in any row."""
    return _itself(F.bool_or, F.bool_or, value)


def bit_xor(value: ColumnOrName) -> Aggregate:
    """The XOR of integers."""
    return _itself(F.bit_xor, F.bit_xor, value)


def bit_and(value: ColumnOrName) -> Aggregate:
    """The bitwise AND of integers."""
    return _itself(F.bit_and, F.bit_and, value)


def bit_or(value: ColumnOrName) -> Aggregate:
    """The bitwise OR of integers."""
    return _itself(F.bit_or, F.bit_or, value)


def variance(value: ColumnOrName) -> Aggregate:
    """The sample variance, by the pairwise method: count, mean and sum of squared deviations."""
    return _deviation(F.var_samp, value, lambda n, m2: F.when(n > 1, m2 / (n - 1)))


def stddev(value: ColumnOrName) -> Aggregate:
    """The sample standard deviation."""
    return _deviation(F.stddev_samp, value, lambda n, m2: F.when(n > 1, F.sqrt(m2 / (n - 1))))


def collect_set(value: ColumnOrName) -> Aggregate:
    """The distinct values, in no order. The state grows with them."""
    return Aggregate(
        F.collect_set(column(value)),
        (F.collect_set(column(value)),),
        (lambda parts: F.array_distinct(F.flatten(F.collect_list(parts))),),
        reads=names_of([value]),
    )


def count_distinct(value: ColumnOrName) -> Aggregate:
    """How many distinct values, exactly; null is none. The state grows with them: see `approx_count_distinct`."""
    distinct = collect_set(value)
    return Aggregate(F.count_distinct(column(value)), distinct.partial, distinct.merge, F.size, distinct.reads)


def approx_count_distinct(value: ColumnOrName) -> Aggregate:
    """About how many distinct values (a HyperLogLog sketch of 4 KB at most, about 1.6 % off); null is none."""
    values = column(value)
    return Aggregate(
        F.approx_count_distinct(values),
        (F.hll_sketch_agg(values),),
        (F.hll_union_agg,),
        lambda sketch: F.coalesce(F.hll_sketch_estimate(sketch), F.lit(0)),
        names_of([value]),
    )


_BY_NAME: Final[Mapping[str, Callable[[ColumnOrName], Aggregate]]] = {
    "count": count,
    "count_if": count_if,
    "sum": sum,
    "min": min,
    "max": max,
    "avg": avg,
    "mean": avg,
    "bool_and": bool_and,
    "every": bool_and,
    "bool_or": bool_or,
    "some": bool_or,
    "any": bool_or,
    "bit_xor": bit_xor,
    "bit_and": bit_and,
    "bit_or": bit_or,
    "var_samp": variance,
    "variance": variance,
    "stddev": stddev,
    "stddev_samp": stddev,
    "std": stddev,
    "collect_set": collect_set,
    "approx_count_distinct": approx_count_distinct,
}


def decompose(name: str, value: Aggregate | Column, rows: DataFrame) -> Aggregate:
    """Makes an aggregate of what a user wrote: one of this module's, or Spark's own over a plain column.

    Args:
        name: what the result is called.
        value: an `Aggregate`, or a column such as ``F.avg("delay")``.
        rows: that it is over.

    Raises:
        UsageError: it cannot be taken in parts, or Spark's column does not show over what it is.
    """
    if isinstance(value, Aggregate):
        _field(rows, name, value.native)
        return value
    if not isinstance(value, Column):
        raise UsageError(f"aggs[{name!r}] is {value!r}: give an aggregate, such as F.avg('delay')")
    field = _field(rows, name, value)
    called = re.fullmatch(r"Column<'(\w+)\((.*)\)'>", str(value))
    function, over = called.groups() if called else ("", "")
    maker = _BY_NAME.get(function)
    if maker is None:
        raise UsageError(
            f"aggs[{name!r}] = {value}: cannot be merged from parts. These can: "
            f"{', '.join(sorted(_BY_NAME))}, count_distinct (from spark_client.aggregates). Others, such as "
            "percentiles or ordered lists, need all rows at once: use tracking.with_watermark(…) and Spark's groupBy"
        )
    if over in ("*", "1") and function == "count":
        return count("*")
    # Spark's text for a column loses DISTINCT and more; what it resolves to does not.
    alike: Column | None = getattr(F, function)(over) if over in rows.columns else None
    if alike is None or str(alike) != str(value) or _field(rows, name, alike).name != field.name:
        raise UsageError(
            f"aggs[{name!r}] = {value}: Spark does not let us see into this expression. Write it as "
            f"spark_client.aggregates.{maker.__name__}(...), or put what it is over into a column first (withColumn); "
            "for distinct counts there is aggregates.count_distinct"
        )
    return maker(over)


def result_type(rows: DataFrame, aggregate: Aggregate) -> T.DataType:
    """The type that Spark itself gives the aggregate over these rows."""
    return T.StructType([_field(rows, "", aggregate.native)]).toNullable().fields[0].dataType


def _field(rows: DataFrame, name: str, value: Column) -> T.StructField:
    try:
        return rows.groupBy().agg(value).schema.fields[0]
    except Exception as error:
        raise UsageError(
            f"aggs[{name!r}] = {value} is not an aggregate over these rows: {_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _itself(native: _Native, merge: _Native, value: ColumnOrName) -> Aggregate:
    whole = native(column(value))
    return Aggregate(whole, (whole,), (merge,), reads=names_of([value]))


def _mean(total: Column, number: Column) -> Column:
    return F.when(number > 0, total / number)


def _deviation(native: _Native, value: ColumnOrName, finish: Callable[[Column, Column], Column]) -> Aggregate:
    """Kept as one struct (n, mean, m2), merged by Chan's formula, which does not cancel out as sums of squares do."""
    values = column(value).cast("double")
    number = F.count(values).cast("double")
    parts = F.struct(
        number.alias("n"),
        F.coalesce(F.avg(values), F.lit(0.0)).alias("mean"),
        F.coalesce(F.var_pop(values) * number, F.lit(0.0)).alias("m2"),
    )

    def merge(structs: Column) -> Column:
        def add(one: Column, other: Column) -> Column:
            n = one["n"] + other["n"]
            delta = other["mean"] - one["mean"]
            share = F.when(n > 0, other["n"] / n).otherwise(F.lit(0.0))
            return F.struct(
                n.alias("n"),
                (one["mean"] + delta * share).alias("mean"),
                (one["m2"] + other["m2"] + delta * delta * one["n"] * share).alias("m2"),
            )

        none = F.struct(F.lit(0.0).alias("n"), F.lit(0.0).alias("mean"), F.lit(0.0).alias("m2"))
        return F.aggregate(F.collect_list(structs), none, add)

    return Aggregate(
        native(values), (parts,), (merge,), lambda merged: finish(merged["n"], merged["m2"]), names_of([value])
    )
