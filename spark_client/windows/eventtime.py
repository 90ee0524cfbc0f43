"""Event time as Spark's own ``window`` counts it: microseconds since 1970, on one of two clocks.

A ``timestamp`` is an instant, and a ``date`` is the instant at which it begins in the session's time zone; windows over
them are cut in UTC. A ``timestamp_ntz`` is what a clock on a wall shows: it belongs to no zone, and windows over it are
cut on that clock, which skips and repeats nothing. Everything here is column arithmetic and calendar arithmetic; dates
may lie far outside what Python's datetime holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Final

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError, check_setting

INSTANT: Final = "timestamp"
WALL: Final = "timestamp_ntz"
DATE: Final = "date"
MOMENTS: Final = (INSTANT, WALL)
TIMES: Final = (*MOMENTS, DATE)  #: the types of columns that windows may be over, as Spark calls them

LIMIT: Final = 2**61  #: end times lie within this many microseconds of 1970: some 73,000 years
DAY: Final = 86_400_000_000

_ZONE: Final = "^([A-Za-z][A-Za-z0-9/_+-]*|[+-][0-9]{2}:[0-9]{2})$"
_ANY_DAY: Final = "2000-01-01T00:00:00 "
_ISO: Final = re.compile(r"([+-]?\d{4,6})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?Z?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def check_session(spark: SparkSession, what: str) -> None:
    """Refuse sessions in which the difference of two wall clock times is no number of microseconds.

    Args:
        what: is over a wall clock, for the message.
    """
    why = "a time of timestamp_ntz is counted by Spark's intervals of days and seconds, which it then has not"
    check_setting(spark, "spark.sql.legacy.interval.enabled", "true", what, why)


def check_kind_of(what: str, time: object, kind: str, taken: Sequence[str] = TIMES, why: str = "") -> None:
    """Refuse a time whose type is none of those that something takes.

    Args:
        time: the column as it was given, for the message.
        taken: the types that are taken, of `TIMES`.
        why: a clause at the end of the message, with the sign before it.
    """
    if kind not in taken:
        raise UsageError(f"{what}={time!r} is {kind}: a time is a {' or a '.join(taken)}{why}")


def micros(time: Column, kind: str) -> Column:
    """Return a time as microseconds since 1970 on its own clock; null further than 73,000 years from it.

    Args:
        kind: its type: one of `TIMES`.
    """
    if kind == WALL:
        # A cast to `timestamp` would go through the session's zone and merge the hours that its clock skips. The
        # difference of two wall clock times goes through none.
        value = F.call_function("div", time - _wall_epoch(), _microsecond())
    elif kind == DATE:
        days = F.unix_date(time)
        near = F.when(days.between(-(LIMIT // DAY), LIMIT // DAY), time)  # the cast fails on dates it cannot hold
        value = F.unix_micros(near.cast(T.TimestampType()))
    else:
        value = F.unix_micros(time)
    return F.when(value.between(-LIMIT, LIMIT), value)


def moment(value: Column, kind: str) -> Column:
    """Convert microseconds to the type of bounds in Spark's ``window`` over such a time."""
    if kind == WALL:
        return _wall_epoch() + value * _microsecond()
    return F.timestamp_micros(value)


def iso(value: int, kind: str) -> str:
    """Format microseconds by ISO 8601; with the zone, UTC, unless they are of a wall clock.

    >>> iso(1_356_998_400_000_000, "timestamp"), iso(-1, "timestamp_ntz"), iso(253_402_300_800_000_000, "date")
    ('2013-01-01T00:00:00Z', '1969-12-31T23:59:59.999999', '+10000-01-01T00:00:00Z')
    """
    days, rest = divmod(value, DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    # The calendar repeats itself every 400 years, so any day has one of the same name that Python can show.
    cycles, day = divmod(days + 719_162, 146_097)  # since 0001-01-01
    shown = datetime(1, 1, 1) + timedelta(days=day, seconds=seconds)
    year = shown.year + 400 * cycles
    text = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    text += shown.strftime("-%m-%dT%H:%M:%S") + (f".{fraction:06d}" if fraction else "")
    return text if kind == WALL else f"{text}Z"


def text(value: Column, kind: str) -> Column:
    """Return the same as `iso` of a column, to the second."""
    shown = F.translate((_wall_epoch() + value * _microsecond()).cast("string"), " ", "T")
    return shown if kind == WALL else F.concat(shown, F.lit("Z"))


def micros_in(text: str) -> int:
    """Return the microseconds that `iso` has shown.

    >>> micros_in("2013-01-01T00:00:00Z"), micros_in("-0001-12-31T23:59:59.000001")
    (1356998400000000, -62167219200999999)
    """
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no time as windows are named by")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    cycles, same = divmod(year - 1, 400)
    shown = datetime(same + 1, month, day, hour, minute, second)
    seconds = (shown - datetime(1970, 1, 1)) // timedelta(seconds=1) + cycles * 146_097 * 86_400
    return seconds * 1_000_000 + int((match[7] or "").ljust(6, "0"))


def datetime_of(micros: int, kind: str = INSTANT) -> datetime | None:
    """Convert microseconds since 1970 to a datetime: in UTC, or without a zone of a wall clock; None: out of range.

    >>> datetime_of(1_356_998_400_000_000, WALL)
    datetime.datetime(2013, 1, 1, 0, 0)
    """
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None) if kind == WALL else moment


def micros_of(value: datetime, kind: str = INSTANT) -> int:
    """Return microseconds since 1970 of a datetime.

    Args:
        value: of an instant: with its zone, or in this process's local time, as PySpark gives timestamps; of a wall
            clock: without a zone.

    Raises:
        UsageError: it has a zone, and the clock has none.
    """
    if kind == WALL:
        if value.tzinfo is not None:
            raise UsageError(f"{value!r} has a zone, and windows over timestamp_ntz have none: give it without tzinfo")
        value = value.replace(tzinfo=timezone.utc)
    return (value.astimezone(timezone.utc) - _EPOCH) // timedelta(microseconds=1)


def instant_of(local: Column, zone: Column) -> Column:
    """Return the instant at which clocks in a zone show a time: the first if there are two, and later if it is skipped.

    Args:
        local: what they show, in microseconds after they showed 1970.
    """
    return F.unix_micros(F.to_utc_timestamp(F.timestamp_micros(local), zone))


def midnight_of(date: Column, zone: Column) -> Column:
    """Return the instant at which a date begins in a zone, as a timestamp; null if it is out of range."""
    days = F.unix_date(date)
    near = F.when(days.between(-(LIMIT // DAY), LIMIT // DAY), days).cast("long")
    return F.to_utc_timestamp(F.timestamp_micros(near * F.lit(DAY)), zone)


def is_zone(text: Column) -> Column:
    """Return whether a text is the name of a time zone that Spark has; null if it is null."""
    return text.rlike(_ZONE) & F.concat(F.lit(_ANY_DAY), text).try_cast(T.TimestampType()).isNotNull()


def is_zone_sql(column: str) -> str:
    """Return the same in SQL, of a column whose name is quoted."""
    return f"{column} rlike '{_ZONE}' and try_cast(concat('{_ANY_DAY}', {column}) as timestamp) is not null"


@lru_cache(maxsize=256)
def is_known_zone(spark: SparkSession, zone: str) -> bool:
    """Return whether a name is one of a time zone that Spark has."""
    one = spark.createDataFrame([(zone,)], "zone string")
    return bool(one.select(is_zone(F.col("zone"))).collect()[0][0])


def _wall_epoch() -> Column:
    return F.expr("TIMESTAMP_NTZ'1970-01-01 00:00:00'")


def _microsecond() -> Column:
    return F.expr("INTERVAL '0.000001' SECOND")
