"""The aggregates of a release: those that decompose into a few values which can be merged.

The result equals that of Spark's own aggregate over all rows at once, its type included: what is kept depends on the
type of what is aggregated, and an overflow is kept as such, so that it is found at the end as Spark would have found
it. Nothing here looks at data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, column, names_of
from spark_client.errors import UsageError
from spark_client.plan import decimals
from spark_client.plan.mergeable import Aggregate, remade

_Native: TypeAlias = Callable[[Column], Column]

_LOW: Final = 0xFFFF_FFFF  #: the low half of a bigint
_INTERVALS: Final = (T.DayTimeIntervalType, T.YearMonthIntervalType)


def count(value: ColumnOrName = "*") -> Aggregate:
    """Rows; or those in which the column is not null."""
    if isinstance(value, str) and value == "*":
        rows = F.count("*")
        return Aggregate(rows, (rows,), (F.sum,), reads=frozenset(), made=lambda change: count(change(F.lit(1))))
    return remade(_count, [value])


def _count(value: ColumnOrName) -> Aggregate:
    counted = F.count(column(value))
    return Aggregate(counted, (counted,), (F.sum,), reads=names_of([value]))


def count_if(condition: ColumnOrName) -> Aggregate:
    """Rows in which the condition is true."""
    return remade(_count_if, [condition])


def _count_if(condition: ColumnOrName) -> Aggregate:
    counted = F.count_if(column(condition))
    return Aggregate(counted, (counted,), (F.sum,), reads=names_of([condition]))


def sum(value: ColumnOrName) -> Aggregate:  # noqa: A001 - Spark's own name
    """Return the sum."""
    return remade(_sum, [value])


def _sum(value: ColumnOrName) -> Aggregate:

    def for_type(kind: T.DataType) -> Aggregate:
        values = column(value)
        if isinstance(kind, T.LongType):
            kept = replace(whole, partial=_halves_of(values), merge=_HALVES, finish=_united, overflowed=_beyond)
            return replace(kept, from_value=lambda total: _carried(F.lit(0).cast("bigint"), total))
        if isinstance(kind, (T.DecimalType, *_INTERVALS)):
            counted = _counted(whole, values, _sum_type(kind) if isinstance(kind, T.DecimalType) else kind)
            fails = isinstance(kind, _INTERVALS)
            return replace(counted, finish=lambda total, _: total, fails=fails, from_value=_counted_once)
        return whole  # of smaller integers no number of rows overflows a bigint, and of doubles none a double

    whole = replace(_itself(F.sum, F.sum, value), for_type=for_type, over=column(value))
    return whole


def min(value: ColumnOrName) -> Aggregate:  # noqa: A001
    """Return the least value."""
    return _itself(F.min, F.min, value)


def max(value: ColumnOrName) -> Aggregate:  # noqa: A001
    """Return the greatest value."""
    return _itself(F.max, F.max, value)


def avg(value: ColumnOrName) -> Aggregate:
    """Return the mean, kept as a sum and a count."""
    return remade(_avg, [value])


def _avg(value: ColumnOrName) -> Aggregate:

    def for_type(kind: T.DataType) -> Aggregate:
        values = column(value)
        if isinstance(kind, T.DecimalType):
            summed = _sum_type(kind)

            def quotient(total: Column, number: Column) -> Column:
                return F.when(number > 0, decimals.quotient(total, number, summed, _mean_type(kind)))

            def overflowed(total: Column, number: Column) -> Column:
                return (number > 0) & quotient(total, number).isNull()

            return replace(_counted(mean, values, summed), finish=quotient, overflowed=overflowed)
        if isinstance(kind, _INTERVALS):
            return replace(_counted(mean, values, kind), fails=True)
        return mean

    values = column(value)
    # Spark adds doubles, whatever the numbers are: so nothing overflows, and so it is done here.
    parts = (F.sum(values.cast("double")), F.count(values.cast("double")))  # without ANSI, a text may be no number
    mean = Aggregate(F.avg(values), parts, _SUMS, _mean, names_of([value]), for_type=for_type, over=values)
    return mean


def bool_and(value: ColumnOrName) -> Aggregate:
    """Return whether it is true in all rows."""
    return _itself(F.bool_and, F.bool_and, value)


def bool_or(value: ColumnOrName) -> Aggregate:
    """Return whether it is true in any row."""
    return _itself(F.bool_or, F.bool_or, value)


def bit_xor(value: ColumnOrName) -> Aggregate:
    """Return the XOR of integers."""
    return _itself(F.bit_xor, F.bit_xor, value)


def bit_and(value: ColumnOrName) -> Aggregate:
    """Return the bitwise AND of integers."""
    return _itself(F.bit_and, F.bit_and, value)


def bit_or(value: ColumnOrName) -> Aggregate:
    """Return the bitwise OR of integers."""
    return _itself(F.bit_or, F.bit_or, value)


def max_by(value: ColumnOrName, by: ColumnOrName) -> Aggregate:
    """Return the value of the row with the greatest `by`; of rows with the same one, any of theirs. Null `by`s do not
    count.

    A struct gives several columns of that row: ``max_by(F.struct("price", "currency"), "at")``.
    """
    return remade(partial(_extreme, F.max_by, F.max), [value, by])


def min_by(value: ColumnOrName, by: ColumnOrName) -> Aggregate:
    """Return the value of the row with the least `by`; else as `max_by`."""
    return remade(partial(_extreme, F.min_by, F.min), [value, by])


def _extreme(native: Callable[..., Column], most: _Native, value: ColumnOrName, by: ColumnOrName) -> Aggregate:
    whole, extreme = native(column(value), column(by)), most(column(by))
    merge: tuple[Callable[..., Column], ...] = (native, lambda _, extremes: most(extremes))
    return Aggregate(whole, (whole, extreme), merge, lambda found, _: found, names_of([value, by]))


def collect_set(value: ColumnOrName) -> Aggregate:
    """Return the distinct values, in no order. The state grows with them."""
    return remade(_collect_set, [value])


def _collect_set(value: ColumnOrName) -> Aggregate:
    return Aggregate(
        F.collect_set(column(value)),
        (F.collect_set(column(value)),),
        (lambda parts: F.array_distinct(F.flatten(F.collect_list(parts))),),
        reads=names_of([value]),
    )


def collect_list(value: ColumnOrName) -> Aggregate:
    """Return all values but nulls, in no order. The state grows with the rows."""
    return remade(_collect_list, [value])


def _collect_list(value: ColumnOrName) -> Aggregate:
    collected = F.collect_list(column(value))
    return Aggregate(collected, (collected,), (lambda p: F.flatten(F.collect_list(p)),), reads=names_of([value]))


def count_distinct(value: ColumnOrName, *more: ColumnOrName) -> Aggregate:
    """Return how many distinct values, exactly; null is none. The state grows with them: see `approx_count_distinct`.

    Args:
        value: that is counted.
        more: further ones: then combinations are counted, and one with a null in it is none.
    """
    return remade(_count_distinct, [value, *more])


def _count_distinct(*values: ColumnOrName) -> Aggregate:
    first, *more = map(column, values)
    if not more:
        distinct = _collect_set(first)
    else:
        whole = reduce(Column.__and__, [each.isNotNull() for each in (first, *more)])
        # Named by their places: two of them may have the same name.
        distinct = _collect_set(F.when(whole, F.struct(*[v.alias(f"_{p}") for p, v in enumerate((first, *more))])))
    return Aggregate(F.count_distinct(first, *more), distinct.partial, distinct.merge, F.size, names_of(values))


def approx_count_distinct(value: ColumnOrName) -> Aggregate:
    """About how many distinct values (a HyperLogLog sketch of 4 KB at most, about 1.6 % off); null is none.

    The estimate is a sketch's own: Spark's function, which cannot be merged, is up to 5 % off, and another number.
    """
    return remade(_approx_count_distinct, [value])


def _approx_count_distinct(value: ColumnOrName) -> Aggregate:
    values = column(value)
    # Hashes, since the sketch takes few types, and no empty text for a value.
    hashes = F.when(values.isNotNull(), F.xxhash64(values))

    def for_type(kind: T.DataType) -> Aggregate:
        if _collated(kind):
            raise UsageError(
                f"values of {kind.simpleString()} are told apart by their bytes here, and Spark counts by their "
                "collation: aggregate lower(…), or what else makes equal values the same"
            )
        return sketched

    sketched = Aggregate(
        F.approx_count_distinct(values),
        (F.hll_sketch_agg(hashes),),
        (F.hll_union_agg,),
        F.hll_sketch_estimate,
        names_of([value]),
        form="a sketch of hashes",
        for_type=for_type,
        over=values,
    )
    return sketched


def _itself(native: _Native, merge: _Native, value: ColumnOrName) -> Aggregate:
    def make(values: ColumnOrName) -> Aggregate:
        whole = native(column(values))
        return Aggregate(whole, (whole,), (merge,), reads=names_of([values]))

    return remade(make, [value])


def _collated(kind: T.DataType) -> bool:
    """Return whether equal values of a type may differ in their bytes."""
    if isinstance(kind, T.StructType):
        return any(_collated(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _collated(kind.elementType)
    return isinstance(kind, T.StringType) and "collate" in kind.simpleString()


# ---------------------------------------------------------------- sums that may overflow


def _halves_of(values: Column) -> tuple[Column, Column]:
    """Return the sum of bigints as two, of which none overflows: in ANSI mode a batch's sum alone would fail, and be
    lost."""
    return _carried(F.sum(F.shiftright(values, 32)), F.sum(values.bitwiseAND(F.lit(_LOW))))


def _carried(high: Column, low: Column) -> tuple[Column, Column]:
    return high + F.shiftright(low, 32), low.bitwiseAND(F.lit(_LOW))


_HALVES: Final[tuple[Callable[..., Column], ...]] = (
    lambda high, low: _carried(F.sum(high), F.sum(low))[0],
    lambda high, low: _carried(F.sum(high), F.sum(low))[1],
)


def _united(high: Column, low: Column) -> Column:
    """Return the sum; one that is no bigint is wrapped, as Spark's is without ANSI mode."""
    return F.shiftleft(high, 32).bitwiseOR(low)


def _beyond(high: Column, low: Column) -> Column:  # noqa: ARG001
    return ~high.between(-(2**31), 2**31 - 1)


def _counted(whole: Aggregate, values: Column, kind: T.DataType) -> Aggregate:
    """Kept as a sum that is null once it has overflowed, as Spark's own buffer keeps it, and the number of values.

    Args:
        whole: the aggregate, without its parts.
        values: decimals or intervals.
        kind: the type of the sum.
    """

    def total(sums: Column, numbers: Column) -> Column:
        overflowed = F.bool_or((numbers > 0) & sums.isNull())
        return F.when(~overflowed, F.try_sum(sums).try_cast(kind))

    return replace(whole, partial=(F.try_sum(values), F.count(values)), merge=(total, _SUMS[1]), overflowed=_lost)


def _lost(total: Column, number: Column) -> Column:
    return (number > 0) & total.isNull()


def _counted_once(total: Column) -> tuple[Column, Column]:
    """Return a sum so far, as the sum of one value, and their number."""
    return total, F.when(total.isNotNull(), F.lit(1)).otherwise(0).cast("bigint")


def _sum_type(kind: T.DecimalType) -> T.DecimalType:
    return decimals.bounded(kind, 10, 0)


def _mean_type(kind: T.DecimalType) -> T.DecimalType:
    return decimals.bounded(kind, 4, 4)


_SUMS: Final[tuple[Callable[..., Column], ...]] = (
    lambda total, _: F.sum(total),
    lambda _, number: F.sum(number),
)


def _mean(total: Column, number: Column) -> Column:
    return F.when(number > 0, total / number)
