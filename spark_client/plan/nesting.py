"""Conditions on values of any type: on texts and times, wherever in arrays, maps and structs they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import is_utf8

Rule: TypeAlias = Callable[[Column, T.DataType], Column | None]


def holds(value: Column, kind: T.DataType, rule: Rule, within: Rule | None = None) -> Column | None:
    """Return whether a condition holds for a value and for all that is in it; nulls meet it.

    Args:
        rule: gives the condition on a value that is made of no others, by its type; None: all values meet it.
        within: the same for what is in arrays, maps and structs, if it is another one.

    Returns:
        None: all values of the type meet it.
    """
    inner = within or rule
    conditions: list[Column | None] = []
    if isinstance(kind, T.ArrayType):
        conditions = [_all_hold(value, kind.elementType, inner)]
    elif isinstance(kind, T.MapType):
        conditions = [
            _all_hold(F.map_keys(value), kind.keyType, inner),
            _all_hold(F.map_values(value), kind.valueType, inner),
        ]
    elif isinstance(kind, T.StructType):
        conditions = [holds(value.getField(field.name), field.dataType, inner) for field in kind.fields]
    else:
        conditions = [rule(value, kind)]
    known = [condition for condition in conditions if condition is not None]
    return F.coalesce(reduce(Column.__and__, known), F.lit(True)) if known else None


def utf8(value: Column, kind: T.DataType) -> Column | None:
    """Return the condition that texts are UTF-8: Spark takes any bytes for a text."""
    return is_utf8(value) if isinstance(kind, T.StringType) else None


def _all_hold(values: Column, kind: T.DataType, rule: Rule) -> Column | None:
    if holds(values, kind, rule) is None:
        return None

    def condition(value: Column) -> Column:
        each = holds(value, kind, rule)
        assert each is not None
        return each

    return F.forall(values, condition)
