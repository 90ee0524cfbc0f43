"""Windows within windows: hours, and the day that is made of them, from one pass over the rows.

A row is an element of one window of each level, and whatever holds its hour open so holds its day open. It is kept
under all of its windows at once: hours that a day's border cuts, as in zones a quarter of an hour off, are kept in two
pieces. A window's result is made of all pieces that it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import UsageError
from spark_client.windows import durations
from spark_client.windows.calendars import Calendar, CalendarRule, rule_of
from spark_client.windows.durations import Duration
from spark_client.windows.eventtime import DAY


@dataclass(frozen=True, eq=False)
class Nested:
    """The lengths of windows within windows, as `nested` makes them: the shortest first."""

    lengths: tuple[Duration | Calendar, ...]

    def __repr__(self) -> str:
        return f"nested({', '.join(map(repr, map(_label, self.lengths)))})"

    @property
    def zone(self) -> Column | None:
        """The column of the time zone, if each row has its own."""
        zones = (each.zone for each in self.lengths if isinstance(each, Calendar))
        return next((zone for zone in zones if isinstance(zone, Column)), None)


def nested(*lengths: Duration | Calendar) -> Nested:
    """Make windows within windows: each is a result, and longer ones are made of the same partial results.

    A longer window comes out with the last of its shorter ones, or after it. A row that is late for one of its windows
    is in none of them.

    Args:
        lengths: two or more, the shortest first: ``"1 hour"``, a timedelta, `calendar`. One that has a fixed length is
            a multiple of the one before.

    Raises:
        UsageError: there are fewer than two, or two are the same.

    >>> tracking.source(raw, "orders", scope="shop", window=("at", nested("1 hour", "1 day")))          # doctest: +SKIP
    >>> nested("1 hour", calendar("1 day", F.col("zone")), calendar("1 month", F.col("zone")))          # doctest: +SKIP
    """
    labels = [_label(each) for each in lengths]
    if len(lengths) < 2 or len({*labels}) < len(labels):
        raise UsageError(
            f"nested({', '.join(map(repr, labels))}): give two lengths or more, the shortest first, each once: "
            "nested('1 hour', '1 day')"
        )
    return Nested(lengths)


def _label(length: Duration | Calendar) -> str:
    return length.text if isinstance(length, Calendar) else str(length)


@dataclass(frozen=True, slots=True)
class Level:
    """One level of windows within windows; plain data.

    Attributes:
        label: what results call it: the length, as it was given.
        length: of its windows, in microseconds; more than any has, if a calendar cuts them.
        offset: at which they begin, in microseconds after the epoch.
        calendar: what cuts them; None: they have a fixed length.
    """

    label: str
    length: int
    offset: int
    calendar: CalendarRule | None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Level:
        """From a channel's description."""
        cut = fields["calendar"]
        return cls(**{**fields, "calendar": None if cut is None else CalendarRule(**cut)})

    def bounds(self, micros: Column, zone: Column | None) -> tuple[Column, Column]:
        """Return where its window begins and ends that a time falls into, in microseconds.

        Args:
            micros: the time, in microseconds.
            zone: the row's own; None: rows have none.
        """
        if self.calendar is not None:
            return self.calendar.bounds(micros, self.calendar.zone_of(zone))
        start = micros - F.pmod(micros - F.lit(self.offset), F.lit(self.length))
        return start, start + F.lit(self.length)


def levels_of(df: DataFrame, given: Nested, time: str, offset: int, what: str) -> tuple[Level, ...]:
    """Resolve windows within windows against the rows that they are for.

    Args:
        df: the rows.
        given: by the user.
        time: the type of the times.
        offset: of the windows, in microseconds.
        what: names the times in refusals.

    Raises:
        UsageError: a length is none; or one is no multiple of the one before.
    """
    levels = []
    for each in given.lengths:
        if isinstance(each, Calendar):
            cut = rule_of(df, each, time, offset, what)
            levels.append(Level(each.text, cut.longest, offset, cut))
        elif isinstance(each, str | timedelta):
            length = durations.length(df.sparkSession, each, "nested")
            levels.append(Level(str(each), length, offset % length, None))
        else:
            raise UsageError(f"{given}: {each!r} is no length of time: give '1 hour', a timedelta or calendar(…)")
    for one, other in pairwise(levels):
        fits = other.calendar is not None or (one.calendar is None and other.length % one.length == 0)
        spare = 0 if one.calendar is not None or other.calendar is None else 2 * DAY  # that no window of it has
        if not fits or one.length >= other.length - spare:
            raise UsageError(
                f"{given}: windows of {other.label} are not made of windows of {one.label}: give the shortest first, "
                "each of a fixed length a multiple of the one before, and calendars last"
            )
    return tuple(levels)


def key_of(bounds: list[tuple[Column, Column]]) -> Column:
    """Return the key of a piece: the bounds of its windows, the shortest first.

    Args:
        bounds: of each level, in microseconds.
    """
    shown: list[Column] = []
    for start, end in bounds:
        shown += [F.lit(" "), start.cast("string"), F.lit("/"), end.cast("string")]
    return F.concat(*shown[1:])


def window_of(key: Column, level: int) -> Column:
    """Return the part of a piece's key that is the key of its window of a level."""
    return F.split_part(key, F.lit(" "), F.lit(level + 1))


def windows_in(key: str) -> list[tuple[int, int]]:
    """Return the bounds of a piece's windows, in microseconds.

    >>> windows_in("0/60 0/1440")
    [(0, 60), (0, 1440)]
    """
    pairs = (window.partition("/") for window in key.split(" "))
    return [(int(start), int(end)) for start, _, end in pairs]
