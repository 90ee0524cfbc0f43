"""Types of a table's columns that hold all values of another type as they are.

`DataFrame.to` and Spark's own store assignment also take types in which values are rounded or cut, so the list is kept
here. A date in a column of timestamps, and the like, is not in it: its meaning would depend on the session.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import fold, named

_Digits: TypeAlias = dict[type[T.DataType], int]

#: Digits that integers of a type may have.
_HAS: Final[_Digits] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
#: Digits of which a type has all integers.
_HOLDS: Final[_Digits] = {
    T.ByteType: 2,
    T.ShortType: 4,
    T.IntegerType: 9,
    T.LongType: 18,
    T.FloatType: 7,
    T.DoubleType: 15,
}


def holds_all(kind: T.DataType, to: T.DataType) -> bool:
    """Return whether a type has all values of another one, and a cast gives just these.

    >>> holds_all(T.IntegerType(), T.LongType()), holds_all(T.LongType(), T.DoubleType())
    (True, False)
    """
    if isinstance(kind, T.ArrayType) and isinstance(to, T.ArrayType):
        return holds_all(kind.elementType, to.elementType)
    if isinstance(kind, T.MapType) and isinstance(to, T.MapType):
        return holds_all(kind.keyType, to.keyType) and holds_all(kind.valueType, to.valueType)
    if isinstance(kind, T.StructType) and isinstance(to, T.StructType):
        # A cast takes fields by their places.
        return kind.names == to.names and all(
            holds_all(each.dataType, other.dataType) for each, other in zip(kind.fields, to.fields, strict=True)
        )
    if isinstance(kind, T.DecimalType) and isinstance(to, T.DecimalType):
        return kind.scale <= to.scale and kind.precision - kind.scale <= to.precision - to.scale
    if kind == to or (isinstance(kind, T.FloatType) and isinstance(to, T.DoubleType)):
        return True
    has = _HAS.get(type(kind))
    if isinstance(kind, T.DecimalType) and kind.scale == 0:
        has = kind.precision
    holds = to.precision - to.scale if isinstance(to, T.DecimalType) else _HOLDS.get(type(to))
    return has is not None and holds is not None and has <= holds


def fitted(rows: DataFrame, table: T.StructType) -> DataFrame:
    """Return rows with a table's names and types for their columns, where nothing is lost by that."""
    same = fold(rows.sparkSession)
    there = {same(field.name): field for field in table.fields}
    columns, changed = [], False
    for field in rows.schema.fields:
        column, its = named(field.name), there.get(same(field.name), field)
        if its.dataType.simpleString() != field.dataType.simpleString() and holds_all(field.dataType, its.dataType):
            column, changed = column.cast(its.dataType), True
        changed |= its.name != field.name
        columns.append(column.alias(its.name))
    return rows.select(*columns) if changed else rows
