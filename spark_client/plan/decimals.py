"""Exact division of decimals, as Spark's own mean divides them.

Spark's operator cuts the scale of a quotient where its type would have more than 38 digits, and its mean does not. So
the division is carried out on digits, nine at a time, in Spark's expressions: it costs something, and is done for
results only.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

_MOST: Final = 38  #: digits of a decimal
_AT_ONCE: Final = 9  #: digits of one step: with a remainder below 2^63 before them, they fit a decimal
_WHOLE: Final = "decimal(38,0)"


def bounded(kind: T.DecimalType, digits: int, scale: int) -> T.DecimalType:
    """Return a decimal type with so many more digits, so many of them after the point, as far as Spark has them."""
    return T.DecimalType(min(kind.precision + digits, _MOST), min(kind.scale + scale, _MOST))


def quotient(total: Column, number: Column, kind: T.DecimalType, result: T.DecimalType) -> Column:
    """Return a decimal divided by a number of rows, rounded half up, as a decimal; null if it does not fit.

    Args:
        total: the dividend.
        number: a bigint above zero.
        kind: the dividend's type.
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
            F.try_add(shifted, digits).try_cast(_WHOLE).alias("quotient"),
            rest.alias("rest"),
        )

    zero = F.struct(F.lit(0).cast(_WHOLE).alias("quotient"), F.lit(0).cast("decimal(20,0)").alias("rest"))

    def rounded(state: Column) -> Column:
        up = (state["rest"] * 2 >= divisor).cast("decimal(1,0)")
        units = F.try_add(state["quotient"], up).try_cast(_WHOLE).cast("string")
        text = F.lpad(units, F.greatest(F.length(units), F.lit(result.scale + 1)), F.lit("0"))
        point = F.length(text) - result.scale
        placed = F.concat(
            F.when(total < 0, F.lit("-")).otherwise(F.lit("")),
            F.substring(text, F.lit(1), point),
            F.lit("."),
            F.substring(text, point + 1, F.lit(result.scale + 1)),
        )
        return placed.try_cast(result)

    return F.aggregate(pieces, zero, step, rounded)
