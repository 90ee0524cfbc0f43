"""Aggregates of which the parts are merged as the rows are: extremes, and what holds in all rows or in any."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from spark_client.aggregates.aggregate import Aggregate, known_as, remade
from spark_client.columns import ColumnOrName

_Native: TypeAlias = Callable[[Column], Column]


@known_as("min")
def min(value: ColumnOrName) -> Aggregate:  # noqa: A001
    """Return the least value."""
    return _itself(F.min, value)


@known_as("max")
def max(value: ColumnOrName) -> Aggregate:  # noqa: A001
    """Return the greatest value."""
    return _itself(F.max, value)


@known_as("bool_and", "every")
def bool_and(value: ColumnOrName) -> Aggregate:
    """Return whether the value is true in all rows."""
    return _itself(F.bool_and, value)


@known_as("bool_or", "some", "any")
def bool_or(value: ColumnOrName) -> Aggregate:
    """Return whether the value is true in any row."""
    return _itself(F.bool_or, value)


@known_as("bit_xor")
def bit_xor(value: ColumnOrName) -> Aggregate:
    """Return the XOR of integers."""
    return _itself(F.bit_xor, value)


@known_as("bit_and")
def bit_and(value: ColumnOrName) -> Aggregate:
    """Return the bitwise AND of integers."""
    return _itself(F.bit_and, value)


@known_as("bit_or")
def bit_or(value: ColumnOrName) -> Aggregate:
    """Return the bitwise OR of integers."""
    return _itself(F.bit_or, value)


@known_as("max_by", columns=2)
def max_by(value: ColumnOrName, by: ColumnOrName) -> Aggregate:
    """Return the value of the row with the greatest `by`; of rows with the same one, any of theirs. Null `by`s do not
    count.

    A struct gives several columns of that row: ``max_by(F.struct("price", "currency"), "at")``.
    """
    return _extreme(F.max_by, F.max, value, by)


@known_as("min_by", columns=2)
def min_by(value: ColumnOrName, by: ColumnOrName) -> Aggregate:
    """Return the value of the row with the least `by`; else as `max_by`."""
    return _extreme(F.min_by, F.min, value, by)


def _extreme(native: Callable[..., Column], most: _Native, value: ColumnOrName, by: ColumnOrName) -> Aggregate:
    def make(values: Column, bys: Column) -> Aggregate:
        whole, extreme = native(values, bys), most(bys)
        merge: tuple[Callable[..., Column], ...] = (native, lambda _, extremes: most(extremes))
        return Aggregate(whole, (whole, extreme), merge, lambda found, _: found)

    return remade(make, value, by)


def _itself(native: _Native, value: ColumnOrName) -> Aggregate:
    def make(values: Column) -> Aggregate:
        whole = native(values)
        return Aggregate(whole, (whole,), (native,))

    return remade(make, value)
