"""Rows as Python values, for sinks that the driver writes.

Spark holds times that Python's datetime does not, and texts whose bytes are not UTF-8, which come out as other texts.
So Spark itself looks for such values, row by row, and Python never meets one. Nothing here knows of databases.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import TrackingError
from spark_client.plan.eventtime import DAY
from spark_client.plan.nesting import holds, utf8
from spark_client.plan.substreams import named

_FIRST: Final = -62_135_596_800_000_000  #: 0001-01-01T00:00:00Z in microseconds since 1970
_LAST: Final = 253_402_300_799_999_999  #: 9999-12-31T23:59:59.999999Z
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SHOWN: Final = 60  #: characters of a value


def values_of(rows: DataFrame, what: str, advice: str) -> Iterator[tuple[Any, ...]]:
    """The values of rows, partition by partition; instants as datetimes in UTC.

    Args:
        rows: them.
        what: they are to go to, for the message.
        advice: what makes such rows fit.

    Raises:
        TrackingError: a row has a value that Python does not hold as it is. Those before it have been given.
    """
    fields = rows.schema.fields
    fault: Column = F.lit(None).cast("string")
    columns = []
    for place, field in enumerate(fields):
        value = named(field.name)
        fits = representable(value, field.dataType)
        if fits is not None:
            shown = F.substring(value.cast("string"), 1, _SHOWN)
            fault = F.when(~fits, F.concat(F.lit(f"the column {field.name!r} has "), shown)).otherwise(fault)
            value = F.when(fits, value)
        if isinstance(field.dataType, T.TimestampType):
            value = F.unix_micros(value)
        columns.append(value.alias(f"_{place}"))
    instants = [place for place, field in enumerate(fields) if isinstance(field.dataType, T.TimestampType)]
    for row in rows.select(*columns, fault.alias("_fault")).toLocalIterator():
        *values, wrong = row
        if wrong is not None:
            raise TrackingError(
                f"{what}: {wrong}, and Python holds times of the years 1 to 9999 and texts in UTF-8. Nothing of the "
                f"batch was written. Start the query again, with the same checkpoint, after {advice}"
            )
        for place in instants:
            if values[place] is not None:
                values[place] = _EPOCH + timedelta(microseconds=values[place])
        yield tuple(values)


def representable(value: Column, kind: T.DataType) -> Column | None:
    """Whether Python holds a value as it is, null included; None: it does whatever the value is."""
    # PySpark shows instants within arrays and the like in this machine's zone, so those keep off the ends by a day.
    return holds(value, kind, partial(_representable, margin=0), partial(_representable, margin=DAY))


def _representable(value: Column, kind: T.DataType, margin: int) -> Column | None:
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(value).between(_FIRST + margin, _LAST - margin)
    if isinstance(kind, T.DateType | T.TimestampNTZType):
        return F.year(value).between(1, 9999)
    return utf8(value, kind)
