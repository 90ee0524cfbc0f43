"""Rows as JSON, for channels whose carrier knows no columns: what comes back is what was put in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError
from spark_client.substreams import named

#: Times keep their microseconds and do not depend on the session's zone.
OPTIONS: Final = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def to_json(columns: Sequence[str]) -> Column:
    """A row's columns as JSON."""
    return F.to_json(F.struct(*map(named, columns)), OPTIONS)


def from_json(text: Column, schema: T.StructType) -> Column:
    """What `to_json` has written; a struct. What is no row of this schema fails the batch."""
    return F.from_json(text, schema, {**OPTIONS, "mode": "FAILFAST"})


def check(segment: str, rows: T.StructType) -> None:
    """Whether JSON carries all columns of a channel.

    Args:
        segment: of the channel.
        rows: what it is to carry.

    Raises:
        UsageError: one it does not.
    """
    for field in rows.fields:
        if not _is_carried(field.dataType):
            raise UsageError(
                f"channel {segment!r}: the column {field.name!r} is {field.dataType.simpleString()}, which "
                "JSON does not carry as it is; use strings as keys of maps"
            )


def _is_carried(kind: T.DataType) -> bool:
    """Whether values of a type come back from JSON as they were."""
    if isinstance(kind, T.StructType):
        return all(_is_carried(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _is_carried(kind.elementType)
    if isinstance(kind, T.MapType):
        return isinstance(kind.keyType, T.StringType) and _is_carried(kind.valueType)
    return not isinstance(kind, T.CalendarIntervalType | T.VariantType | T.UserDefinedType)
