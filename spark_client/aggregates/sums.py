"""Counts, sums and means.

The type of the aggregated values decides what is kept, and an overflow is kept as such, so that it is found at the end
as Spark would have found it. A mean of decimals is divided exactly, as Spark's own is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.aggregates.aggregate import Aggregate, known_as, remade
from spark_client.columns import ColumnOrName, cast_or_null

_LOW: Final = 0xFFFF_FFFF  #: the low half of a bigint
_INTERVALS: Final = (T.DayTimeIntervalType, T.YearMonthIntervalType)


@known_as("count")
def count(value: ColumnOrName = "*") -> Aggregate:
    """Count rows, or those in which a column is not null."""
    if isinstance(value, str) and value == "*":
        rows = F.count("*")
        return Aggregate(rows, (rows,), (F.sum,), reads=frozenset(), made=lambda change: count(change(F.lit(1))))
    return remade(lambda values: _number(F.count(values)), value)


@known_as("count_if")
def count_if(condition: ColumnOrName) -> Aggregate:
    """Count the rows in which a condition is true."""
    return remade(lambda holds: _number(F.count_if(holds)), condition)


def _number(counted: Column) -> Aggregate:
    return Aggregate(counted, (counted,), (F.sum,))


@known_as("sum")
def sum(value: ColumnOrName) -> Aggregate:  # noqa: A001 - Spark's own name
    """Return the sum."""
    return remade(_sum, value)


def _sum(values: Column) -> Aggregate:
    def for_type(kind: T.DataType) -> Aggregate:
        if isinstance(kind, T.LongType):
            kept = replace(whole, partial=_halves_of(values), merge=_HALVES, finish=_united, overflowed=_beyond)
            return replace(kept, from_value=lambda total: _carried(F.lit(0).cast("bigint"), total))
        if isinstance(kind, (T.DecimalType, *_INTERVALS)):
            counted = _counted(whole, values, _sum_type(kind) if isinstance(kind, T.DecimalType) else kind)
            fails = isinstance(kind, _INTERVALS)
            return replace(counted, finish=lambda total, _: total, fails=fails, from_value=_counted_once)
        return whole  # of smaller integers no number of rows overflows a bigint, and of doubles none a double

    total = F.sum(values)
    whole = Aggregate(total, (total,), (F.sum,), for_type=for_type, over=values)
    return whole


@known_as("avg", "mean")
def avg(value: ColumnOrName) -> Aggregate:
    """Return the mean, kept as a sum and a count."""
    return remade(_avg, value)


def _avg(values: Column) -> Aggregate:
    def for_type(kind: T.DataType) -> Aggregate:
        if isinstance(kind, T.DecimalType):
            summed, result = _sum_type(kind), bounded(kind, 4, 4)

            def finish(total: Column, number: Column) -> Column:
                return F.when(number > 0, quotient(total, number, summed, result))

            def overflowed(total: Column, number: Column) -> Column:
                return (number > 0) & finish(total, number).isNull()

            return replace(_counted(mean, values, summed), finish=finish, overflowed=overflowed)
        if isinstance(kind, _INTERVALS):
            return replace(_counted(mean, values, kind), fails=True)
        return mean

    # Spark adds doubles, whatever the numbers are: so nothing overflows, and so it is done here.
    parts = (F.sum(values.cast("double")), F.count(values.cast("double")))  # without ANSI, a text may be no number
    mean = Aggregate(F.avg(values), parts, _SUMS, _mean, for_type=for_type, over=values)
    return mean


_SUMS: Final[tuple[Callable[..., Column], ...]] = (
    lambda total, _: F.sum(total),
    lambda _, number: F.sum(number),
)


def _mean(total: Column, number: Column) -> Column:
    return F.when(number > 0, total / number)


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
    """Keep a sum that is null once it has overflowed, as Spark's own buffer does, and the number of values."""

    def total(sums: Column, numbers: Column) -> Column:
        overflowed = F.bool_or((numbers > 0) & sums.isNull())
        return F.when(~overflowed, cast_or_null(F.try_sum(sums), kind))

    return replace(whole, partial=(F.try_sum(values), F.count(values)), merge=(total, _SUMS[1]), overflowed=_lost)


def _lost(total: Column, number: Column) -> Column:
    return (number > 0) & total.isNull()


def _counted_once(total: Column) -> tuple[Column, Column]:
    """Return a sum so far, as the sum of one value, and their number."""
    return total, F.when(total.isNotNull(), F.lit(1)).otherwise(0).cast("bigint")


def _sum_type(kind: T.DecimalType) -> T.DecimalType:
    return bounded(kind, 10, 0)


# ---------------------------------------------------------------- decimals

# Spark's operator cuts the scale of a quotient where its type would have more than 38 digits, and its mean does not. So
# the division is carried out on digits, nine at a time, in Spark's expressions: it costs something, and is done for
# results only.

_MOST: Final = 38  #: digits of a decimal
_AT_ONCE: Final = 9  #: digits of one step: with a remainder below 2^63 before them, they fit a decimal
_WHOLE: Final = "decimal(38,0)"


def bounded(kind: T.DecimalType, digits: int, scale: int) -> T.DecimalType:
    """Return a decimal type with so many more digits, so many of them after the point, as far as Spark has them."""
    return T.DecimalType(min(kind.precision + digits, _MOST), min(kind.scale + scale, _MOST))


def quotient(total: Column, number: Column, kind: T.DecimalType, result: T.DecimalType) -> Column:
    """Return a decimal divided by a number of rows, rounded half up, as a decimal; null if it does not fit.

    Args:
        number: a bigint above zero.
        result: the quotient's type, whose scale is not below the dividend's.
    """
    whole, scale = kind.precision - kind.scale, kind.scale
    # With the sign, which is taken off as text: Spark's `abs` rounds negative decimals to 34 digits.
    pattern = "S" + "0" * whole + ("D" + "0" * scale if scale else "")
    digits = F.regexp_replace(F.to_char(total, F.lit(pattern)), "[^0-9]", "")
    # The digits of the dividend in units of the quotient's last place, in pieces of nine.
    width = -(-(whole + result.scale) // _AT_ONCE) * _AT_ONCE
    padded = F.lpad(F.concat(digits, F.lit("0" * (result.scale - scale))), width, "0")
    pieces = F.array(*[F.substring(padded, place + 1, _AT_ONCE).cast("bigint") for place in range(0, width, _AT_ONCE)])
    divisor = number.cast("decimal(20,0)")

    def step(state: Column, piece: Column) -> Column:
        value = (state["rest"] * F.lit(10**_AT_ONCE).cast("decimal(10,0)") + piece).cast(_WHOLE)
        rest = (value % divisor).cast("decimal(20,0)")
        digits = ((value - rest) / divisor).cast("decimal(10,0)")
        shifted = F.try_multiply(state["quotient"], F.lit(10**_AT_ONCE).cast("decimal(10,0)"))
        return F.struct(
            cast_or_null(F.try_add(shifted, digits), _WHOLE).alias("quotient"),
            rest.alias("rest"),
        )

    zero = F.struct(F.lit(0).cast(_WHOLE).alias("quotient"), F.lit(0).cast("decimal(20,0)").alias("rest"))

    def rounded(state: Column) -> Column:
        up = (state["rest"] * 2 >= divisor).cast("decimal(1,0)")
        units = cast_or_null(F.try_add(state["quotient"], up), _WHOLE).cast("string")
        text = F.lpad(units, F.greatest(F.length(units), F.lit(result.scale + 1)), F.lit("0"))
        point = F.length(text) - result.scale
        placed = F.concat(
            F.when(total < 0, F.lit("-")).otherwise(F.lit("")),
            F.substring(text, F.lit(1), point),
            F.lit("."),
            F.substring(text, point + 1, F.lit(result.scale + 1)),
        )
        return cast_or_null(placed, result)

    return F.aggregate(pieces, zero, step, rounded)
