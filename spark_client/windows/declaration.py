"""How users declare substreams: windows of a time, or a column that names them, resolved against the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, column, resolve, session_zone, text_of
from spark_client.errors import UsageError
from spark_client.spark_internals.plans import is_plain
from spark_client.windows import durations, eventtime
from spark_client.windows.calendars import Calendar, is_zone, midnight_of, rule_of
from spark_client.windows.durations import Duration
from spark_client.windows.eventtime import INSTANT
from spark_client.windows.nested import Nested, levels_of
from spark_client.windows.sessions import Session
from spark_client.windows.sliding import Sliding
from spark_client.windows.substreams import Substreams

Length: TypeAlias = Duration | Calendar | Sliding | Session | Nested  #: of a window
Window: TypeAlias = tuple[ColumnOrName, Length] | tuple[ColumnOrName, Length, Duration]


def declare(
    df: DataFrame,
    scope: ColumnOrName | None,
    window: Window | None,
    substream: ColumnOrName | None,
) -> tuple[Substreams, Column, Column, Column]:
    """Resolve a user's declaration against the rows it is for.

    Returns:
        The rule, and the columns `scope`, `name` and `end` of a row; the last is an array of ends if windows overlap.

    Raises:
        UsageError: a column that is not there, a window over something that is no time, both or neither of `window`
            and `substream`.
    """
    if (window is None) == (substream is None):
        raise UsageError(
            "say what a substream is: either window=('time_column', '1 day') or substream='column', not both"
        )
    scope_name, scope_type, scope_column = (None, "string", F.lit("")) if scope is None else _text(df, scope, "scope")
    null_time, null_name = F.lit(None).cast(T.TimestampType()), F.lit(None).cast("string")
    if window is None:
        assert substream is not None
        name, name_type, name_column = _text(df, substream, "substream")
        rule = Substreams(scope_name, scope_type, name, name_type, 0, 0, zone=_zone(df, False, scope, substream))
        return rule, scope_column, name_column, null_time
    if not isinstance(window, tuple) or len(window) not in (2, 3):
        raise UsageError("window is ('time_column', '1 day'), or with an offset ('time_column', '1 day', '6 hours')")
    time, given = window[0], window[1]
    time_type = resolve(df, time, "window").dataType.simpleString()
    if time_type not in eventtime.TIMES:
        raise UsageError(f"window={time!r}: a time is a timestamp, a timestamp_ntz or a date, not {time_type}")
    if time_type == eventtime.WALL:
        eventtime.check_session(df.sparkSession, f"window={time!r}")
    offset = durations.microseconds(df.sparkSession, window[2], "the window's offset") if len(window) == 3 else 0
    rule = Substreams(scope_name, scope_type, None, "string", 0, 0, time_type)
    if isinstance(given, Calendar):
        cut = rule_of(df, given, time_type, offset, f"window={time!r}")
        zone = given.zone if isinstance(given.zone, Column) else None
        if zone is not None and not isinstance(resolve(df, zone, "zone").dataType, T.StringType):
            raise UsageError(f"calendar: zone={zone!r} is no text: give names of time zones, such as 'Europe/Berlin'")
        rule = replace(rule, length=cut.longest, calendar=cut, zone=_zone(df, False, scope, time, zone))
        return rule, scope_column, rule.bounds_of(eventtime.micros(column(time), time_type), zone), null_time
    if isinstance(given, Nested):
        rule, zone = _of_levels(df, rule, window, given, offset), given.zone
        rule = replace(rule, zone=_zone(df, False, scope, time, zone))
        return rule, scope_column, rule.pieces_of(eventtime.micros(column(time), time_type), zone), null_time
    if isinstance(given, Session):
        rule = _of_sessions(df, replace(rule, zone=_zone(df, False, scope)), time, given, len(window) == 3)
        return rule, scope_column, null_name, rule.end_of(column(time))
    every = given.every if isinstance(given, Sliding) else None
    width = given.length if isinstance(given, Sliding) else given
    length = durations.length(df.sparkSession, width, "the window's length")
    slide = 0 if every is None else durations.length(df.sparkSession, every, "the window's slide")
    if slide > length:
        raise UsageError(f"sliding({width!r}, {every!r}): windows begin later than the one before has ended")
    if abs(offset) >= (slide or length):
        raise UsageError(f"the window's offset {window[-1]!r} is not shorter than the window, {every or width!r}")
    slide = 0 if slide == length else slide
    zone_now = _zone(df, time_type == eventtime.DATE, scope, time)
    rule = replace(rule, length=length, offset=offset % (slide or length), zone=zone_now, slide=slide)
    return rule, scope_column, null_name, (rule.ends_of if slide else rule.end_of)(column(time))


def _of_levels(df: DataFrame, rule: Substreams, window: Window, given: Nested, offset: int) -> Substreams:
    """Return the rule of windows within windows.

    Raises:
        UsageError: they do not fit one another, the offset or the time; or rows have several time zones.
    """
    what = f"window={window[0]!r}"
    if rule.time == eventtime.DATE:
        raise UsageError(f"{given}: {window[0]!r} is a date: give a timestamp, F.col('day').cast('timestamp')")
    levels = levels_of(df, given, rule.time, offset, what)
    if abs(offset) >= levels[-1].length:
        raise UsageError(f"the window's offset {window[-1]!r} is not shorter than the window, {levels[-1].label!r}")
    zones = {str(each.zone) for each in given.lengths if isinstance(each, Calendar) and isinstance(each.zone, Column)}
    if len(zones) > 1:
        raise UsageError(f"{given}: a row has one time zone, and these have {' and '.join(sorted(zones))}")
    if given.zone is not None and not isinstance(resolve(df, given.zone, "zone").dataType, T.StringType):
        raise UsageError(f"calendar: zone={given.zone!r} is no text: give names of time zones, such as 'Europe/Berlin'")
    return replace(rule, length=max(level.length for level in levels), levels=levels)


def _of_sessions(df: DataFrame, rule: Substreams, time: ColumnOrName, given: Session, offset: bool) -> Substreams:
    """Return the rule of sessions.

    Raises:
        UsageError: there is an offset, or the time is no plain column of an instant or a wall clock.
    """
    if offset:
        raise UsageError(
            "session: sessions begin with their first row, so there is no offset: window=('at', session(…))"
        )
    if rule.time == eventtime.DATE:
        raise UsageError(f"session: {time!r} is a date, which has no gaps below a day: give a timestamp")
    if not is_plain(df, time):
        raise UsageError(
            f"session: {time!r} is an expression, and a release needs the time as a column: give the rows one, with "
            "raw.withColumn('at', …), and window=('at', session(…))"
        )
    gap, step = given.lengths(df.sparkSession)
    return replace(rule, length=step, gap=gap, at=resolve(df, time, "window").name)


def dated(df: DataFrame, window: Window) -> Window:
    """Windows of a calendar over dates as such over the instants at which dates begin in its zone; others as given."""
    if not isinstance(window, tuple) or len(window) < 2 or not isinstance(window[1], Calendar):
        return window
    zone = window[1].zone
    if zone is None or resolve(df, window[0], "window").dataType.simpleString() != eventtime.DATE:
        return window
    known = F.when(is_zone(zone), zone) if isinstance(zone, Column) else F.lit(zone)
    return (midnight_of(column(window[0]), known), *window[1:])


def zone_by_row(window: Window | None) -> Column | None:
    """Return the column of the time zone, if each row has its own."""
    length = window[1] if window is not None else None
    if isinstance(length, Nested):
        return length.zone
    return length.zone if isinstance(length, Calendar) and isinstance(length.zone, Column) else None


def _zone(df: DataFrame, by_date: bool, *columns: ColumnOrName | None) -> str | None:
    """Return the session's time zone, if it may decide where rows belong.

    It does for a date, which begins when its zone says; and it may for an expression, which may format or parse times.
    """
    by_expression = not all(is_plain(df, value) for value in columns if value is not None)
    return session_zone(df) if by_date or by_expression else None


def _named(df: DataFrame, value: ColumnOrName, what: str) -> tuple[str, str]:
    """Return the name and type of a column, once Spark has resolved it."""
    field = resolve(df, value, what)
    return field.name, field.dataType.simpleString()


def _text(df: DataFrame, value: ColumnOrName, what: str) -> tuple[str, str, Column]:
    """Return the name, the type and the text of a column whose values name something."""
    name, kind = _named(df, value, what)
    if kind == INSTANT:
        raise UsageError(
            f"{what}={value!r} is a timestamp, whose text depends on the session's time zone, and two instants share "
            f"one when clocks are put back: give F.unix_micros({name!r}), a timestamp_ntz, a date or a text"
        )
    if " collate " in kind:
        raise UsageError(
            f"{what}={value!r} is {kind}: the tracker tells names apart by their bytes, and Spark by that collation. "
            f"Give what is the same for names that are to be one: F.lower({name!r}).cast('string'), say, or "
            f"F.collate({name!r}, 'UTF8_BINARY')"
        )
    if kind.startswith(("struct<", "array<", "map<", "variant", "void", "geo")):
        raise UsageError(
            f"{what}={value!r} is {kind}: a name is one value, whose text tells it from all others. Give "
            f"F.to_json({name!r}) with an alias, say, or a column for each field"
        )
    return name, kind, text_of(column(value), kind)
