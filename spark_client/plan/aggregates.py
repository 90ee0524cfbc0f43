"""Aggregates that can be taken in parts: of each batch first, then of the parts.

A release keeps one partial row for each substream, key and batch, and merges them natively when the substream has
ended. So it serves aggregates that decompose into a few values which can be added to one another. The result equals
that of Spark's own aggregate over all rows at once, its type included: what is kept depends on the type of what is
aggregated, and an overflow is kept as such, so that it is found at the end as Spark would have found it. Nothing here
looks at data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError
from spark_client.plan import decimals
from spark_client.plan.substreams import ColumnOrName, column, names_of

_Native: TypeAlias = Callable[[Column], Column]
_Finish: TypeAlias = Callable[..., Column]

_LOW: Final = 0xFFFF_FFFF  #: the low half of a bigint
_INTERVALS: Final = (T.DayTimeIntervalType, T.YearMonthIntervalType)


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a release: made by the functions of this module.

    Attributes:
        native: what Spark itself would compute in one go; it gives the result's type.
        partial: the values to keep of each batch.
        merge: how each of them is made of those of other batches: aggregates of all the parts, in the order of
            `partial`.
        finish: the result, from the merged values.
        reads: the columns that it is over; None: an expression, whose are not known.
        overflowed: whether the merged values have overflowed, so that Spark fails or gives null; None: they cannot.
        fails: whether Spark fails on an overflow without ANSI mode, too.
        form: names the form of the partial values where their types alone do not.
        for_type: makes the aggregate for a type of `over`; None: it is the same for all types.
        over: what it is over, where that matters.
        called: how a checkpoint calls it, if not as `native`.
        legacy: `finish` where spark.sql.legacy.statisticalAggregate is on; None: it makes no difference.
    """

    native: Column
    partial: tuple[Column, ...]
    merge: tuple[Callable[..., Column], ...]
    finish: _Finish = lambda value: value
    reads: frozenset[str] | None = None
    overflowed: _Finish | None = None
    fails: bool = False
    form: str = ""
    for_type: Callable[[T.DataType], Aggregate] | None = None
    over: Column | None = None
    called: str | None = None
    legacy: _Finish | None = None

    @property
    def description(self) -> str:
        """What it is, for a checkpoint."""
        return self.called or str(self.native)


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

    def for_type(kind: T.DataType) -> Aggregate:
        values = column(value)
        if isinstance(kind, T.LongType):
            return replace(whole, partial=_halves_of(values), merge=_HALVES, finish=_united, overflowed=_beyond)
        if isinstance(kind, (T.DecimalType, *_INTERVALS)):
            counted = _counted(whole, values, _sum_type(kind) if isinstance(kind, T.DecimalType) else kind)
            return replace(counted, finish=lambda total, _: total, fails=isinstance(kind, _INTERVALS))
        return whole  # of smaller integers no number of rows overflows a bigint, and of doubles none a double

    whole = replace(_itself(F.sum, F.sum, value), for_type=for_type, over=column(value))
    return whole


def min(value: ColumnOrName) -> Aggregate:  # noqa: A001
    """The least value."""
    return _itself(F.min, F.min, value)


def max(value: ColumnOrName) -> Aggregate:  # noqa: A001
    """The greatest value."""
    return _itself(F.max, F.max, value)


def avg(value: ColumnOrName) -> Aggregate:
    """The mean, kept as a sum and a count."""

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
    """About how many distinct values (a HyperLogLog sketch of 4 KB at most, about 1.6 % off); null is none.

    The estimate is a sketch's own: Spark's function, which cannot be merged, is up to 5 % off, and another number.
    """
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
    whole = native(column(value))
    return Aggregate(whole, (whole,), (merge,), reads=names_of([value]))


def _collated(kind: T.DataType) -> bool:
    """Whether equal values of a type may differ in their bytes."""
    if isinstance(kind, T.StructType):
        return any(_collated(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _collated(kind.elementType)
    return isinstance(kind, T.StringType) and "collate" in kind.simpleString()


# ---------------------------------------------------------------- sums that may overflow


def _halves_of(values: Column) -> tuple[Column, Column]:
    """The sum of bigints as two, of which none overflows: in ANSI mode a batch's sum alone would fail, and be lost."""
    return _carried(F.sum(F.shiftright(values, 32)), F.sum(values.bitwiseAND(F.lit(_LOW))))


def _carried(high: Column, low: Column) -> tuple[Column, Column]:
    return high + F.shiftright(low, 32), low.bitwiseAND(F.lit(_LOW))


_HALVES: Final[tuple[Callable[..., Column], ...]] = (
    lambda high, low: _carried(F.sum(high), F.sum(low))[0],
    lambda high, low: _carried(F.sum(high), F.sum(low))[1],
)


def _united(high: Column, low: Column) -> Column:
    """The sum; one that is no bigint is wrapped, as Spark's is without ANSI mode."""
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


def _deviation(native: _Native, value: ColumnOrName, finish: Callable[[Column, Column], Column]) -> Aggregate:
    """Kept as one struct (n, mean, m2), merged as Spark merges it: it does not cancel out as sums of squares do."""
    values = column(value).cast("double")
    number = F.count(values).cast("double")
    least, most = F.min(values), F.max(values)
    parts = F.struct(
        number.alias("n"),
        # The mean of equal values is that value, though their sum may be rounded: so their deviation is 0, as Spark's.
        F.coalesce(F.when(least == most, least).otherwise(F.avg(values)), F.lit(0.0)).alias("mean"),
        F.coalesce(F.regr_sxx(values, values), F.lit(0.0)).alias("m2"),
    )

    def merge(structs: Column) -> Column:
        def add(one: Column, other: Column) -> Column:
            n = one["n"] + other["n"]
            delta = other["mean"] - one["mean"]
            share = delta / n
            both = F.struct(
                n.alias("n"),
                (one["mean"] + share * other["n"]).alias("mean"),
                (one["m2"] + other["m2"] + delta * share * one["n"] * other["n"]).alias("m2"),
            )
            # Beside no values, the other stays as it is: its square may be infinite, and no times infinite is NaN.
            return F.when(one["n"] == 0, other).when(other["n"] == 0, one).otherwise(both)

        none = F.struct(F.lit(0.0).alias("n"), F.lit(0.0).alias("mean"), F.lit(0.0).alias("m2"))
        return F.aggregate(F.collect_list(structs), none, add)

    def finished(merged: Column) -> Column:
        return finish(merged["n"], merged["m2"])

    return Aggregate(
        native(column(value)),
        (parts,),
        (merge,),
        finished,
        names_of([value]),
        called=str(native(values)),
        legacy=lambda merged: F.when(merged["n"] == 1, F.lit(float("nan"))).otherwise(finished(merged)),
    )
