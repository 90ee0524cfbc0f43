"""Rows as JSON, for channels whose carrier knows no columns: what comes back is what was put in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import CALENDAR_INTERVALS, TRACKER, VARIANTS, check_types, is_utf8, named, types_in
from spark_client.errors import check_setting

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


#: Times keep their microseconds and do not depend on the session's zone.
OPTIONS: Final = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def to_json(columns: Sequence[str]) -> Column:
    """Return a row's columns as JSON."""
    return F.to_json(F.struct(*map(named, columns)), OPTIONS)


def carried(rows: DataFrame, what: str, advice: str) -> DataFrame:
    """Return the same rows; whoever reads one that JSON would alter fails.

    Args:
        what: it is for, for the message.
    """
    columns = [_guarded(field, what, advice) for field in rows.schema.fields]
    return (
        rows
        if all(column is None for column in columns)
        else rows.select(
            *[named(name) if column is None else column for name, column in zip(rows.columns, columns, strict=True)]
        )
    )


def _guarded(field: T.StructField, what: str, advice: str) -> Column | None:
    value = named(field.name)
    fits = None if field.name == TRACKER else holds(value, field.dataType, utf8)
    if fits is None:
        return None
    fault = (
        f"{what}: the column {field.name!r} has a text that is not UTF-8, which JSON does not carry as it is. The "
        f"batch was not committed. Start the query again, with the same checkpoint, after {advice}: "
        f"F.make_valid_utf8({field.name!r}), say, or F.hex({field.name!r})"
    )
    return F.when(fits, value).otherwise(F.raise_error(F.lit(fault)).cast(field.dataType)).alias(field.name)


def from_json(text: Column, schema: T.StructType) -> Column:
    """Return what `to_json` has written; a struct. A text that is no row of this schema fails the batch."""
    # Spark takes a column of this name for its own, and leaves it null: by default a name that users have.
    special = "_" * (1 + max((len(name) for name in schema.fieldNames()), default=0))
    return F.from_json(text, schema, {**OPTIONS, "mode": "FAILFAST", "columnNameOfCorruptRecord": special})


def check(segment: str, rows: T.StructType) -> None:
    """Check whether JSON carries all columns of a channel."""
    reason = "which JSON does not carry as it is; use strings as keys of maps"
    check_types(rows.fields, _is_carried, f"channel {segment!r}", reason)


def check_session(spark: SparkSession, what: str, rows: T.StructType) -> None:
    """Refuse sessions in which Spark writes times as Spark 2 did: years before the first, and days of 1582, change.

    Args:
        what: the JSON is for, for the message.
    """
    times = T.DateType | T.TimestampType | T.TimestampNTZType
    own = (each for field in rows.fields if field.name != TRACKER for each in types_in(field.dataType))
    if any(isinstance(each, times) for each in own):
        why = "old times change in JSON, as which its rows travel; or make texts of the times in a step before"
        check_setting(spark, "spark.sql.legacy.timeParserPolicy", "LEGACY", what, why)


def _is_carried(kind: T.DataType) -> bool:
    """Return whether values of a type come back from JSON as they were."""
    return not any(
        isinstance(each, (T.UserDefinedType, *CALENDAR_INTERVALS, *VARIANTS))
        or (isinstance(each, T.MapType) and not isinstance(each.keyType, T.StringType))
        for each in types_in(kind)
    )
