"""Windows that a calendar cuts: days, weeks, months, quarters and years, as clocks in a time zone show them.

Such windows have no fixed length: a day may have 23 hours, and a month 28 days. A window begins when its first day does
on the clock of its zone, and ends where the next one begins. So windows over instants have no gaps and no overlaps,
whatever the clock does. Where it skips the hour at which a window begins, the window begins as much later as is
skipped; where it shows that hour twice, at the first time. Everything here is native column arithmetic, and nothing of
it depends on the session's time zone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, column, resolve
from spark_client.errors import UsageError, check_faults, check_kind
from spark_client.windows import eventtime
from spark_client.windows.eventtime import DAY, instant_of, is_known_zone, is_zone, midnight_of
from spark_client.windows.lengths import Length, TimedRows
from spark_client.windows.substreams import Substreams, Windows

_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_MONDAY: Final = 4  #: days from 1970-01-01 to the first Monday
_JANUARY: Final = 1970 * 12  #: months from year 0 to January 1970
_DAYS: Final = {"day": 1, "week": 7}  #: in a unit
_IN_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_MOST_YEARS: Final = 1000


@dataclass(frozen=True, eq=False)
class Calendar(Length):
    """The length of windows that a calendar cuts, as `calendar` makes it.

    Attributes:
        text: the length, as it was given.
        count: how many of them a window has.
        first: on which a window begins: days after 1970-01-01, or months after January 1970.
        zone: the name of a time zone, a column of names, or None: the times have no zone.
    """

    text: str
    unit: Literal["days", "months"]
    count: int
    first: int
    zone: str | Column | None

    def windows(self, rows: TimedRows) -> tuple[Windows, Column]:
        cut = rule_of(rows.df, self, rows.kind, rows.offset_micros, rows.what)
        zone = self.zone_by_row(rows.df)
        rule = CalendarWindows(cut, **rows.fields(rows.time, zone))
        return rule, rule.key_at(rows.micros, rule.zone_of(zone))

    def dated(self, df: DataFrame, time: ColumnOrName) -> ColumnOrName:
        """Return the instants at which dates begin in the zone, of dates; another time as it is."""
        if self.zone is None or resolve(df, time, "window").dataType.simpleString() != eventtime.DATE:
            return time
        known = F.when(is_zone(self.zone), self.zone) if isinstance(self.zone, Column) else F.lit(self.zone)
        return midnight_of(column(time), known)


def calendar(length: str, zone: str | Column | None = None, *, first: str | None = None) -> Calendar:
    """Make windows of days, weeks, months, quarters or years, as the clocks and calendars of a time zone show them.

    Args:
        length: such as ``"1 day"``, ``"2 weeks"``, ``"1 month"``, ``"1 quarter"``, ``"1 year"``. Several are counted
            from 1970-01-01, or from the first of the day on which weeks begin after it.
        zone: whose clocks: a name such as ``"Europe/Berlin"``, or a column of such names, as each tenant's rows have
            their own: ``F.col("zone")``. None only where times are a ``timestamp_ntz``.
        first: the day on which weeks begin (``"monday"``), or the month in which windows of months, quarters or years
            do (``"january"``).

    Raises:
        UsageError: the length is none of these; `first` does not fit it.

    >>> tracking.source(raw, "orders", window=("at", calendar("1 day", "Europe/Berlin")))               # doctest: +SKIP
    >>> tracking.source(raw, "bill", window=("at", calendar("1 year", F.col("zone"), first="april")))  # doctest: +SKIP
    """
    match = re.fullmatch(r"\s*([0-9]{1,6})\s+(day|week|month|quarter|year)s?\s*", str(length).lower())
    if match is None or not int(match[1]):
        raise UsageError(
            f"calendar({length!r}): a whole number of days, weeks, months, quarters or years is needed, such as "
            "'1 day'. Hours have a fixed length: window=('time', '1 hour')"
        )
    number, unit = int(match[1]), match[2]
    check_kind("calendar: zone", zone, str | Column | None, "give a name, 'Europe/Berlin', or a column, F.col('z')")
    names = _WEEKDAYS if unit == "week" else () if unit == "day" else _MONTHS
    if first is not None and str(first).lower() not in names:
        takes = (
            f"one of {', '.join(names)}"
            if names
            else "none: give an offset, as window=('time', calendar(…), '6 hours')"
        )
        raise UsageError(f"calendar({length!r}): first={first!r}: what windows of {unit}s begin with is {takes}")
    place = 0 if first is None else names.index(str(first).lower())
    in_days = unit in _DAYS
    count = number * (_DAYS[unit] if in_days else _IN_MONTHS[unit])
    if count > _MOST_YEARS * (365 if in_days else 12):
        raise UsageError(f"calendar({length!r}) is too long: give {_MOST_YEARS} years or less")
    anchor = (place + _MONDAY) % 7 if unit == "week" else place
    return Calendar(str(length), "days" if in_days else "months", count, anchor % count, zone)


@dataclass(frozen=True, slots=True)
class CalendarRule:
    """Rule of a calendar's windows; plain data.

    Attributes:
        unit: ``"days"`` or ``"months"``, which windows are counted in.
        count: how many of them a window has.
        first: on which a window begins: days after 1970-01-01, or months after January 1970.
        offset: how much later than at midnight windows begin, on the clock, in microseconds.
        zone: whose clocks; None: the times are a wall clock's, or each row has a zone of its own.
        by_row: whether each row has a zone of its own.
    """

    unit: str
    count: int
    first: int
    offset: int
    zone: str | None
    by_row: bool

    @property
    def longest(self) -> int:
        """More microseconds than any window has."""
        return (self.count * (1 if self.unit == "days" else 31) + 3) * DAY

    def may_have(self, length: int) -> bool:
        """Return whether a window may be so long, in whatever zone: each of its ends may be moved by up to a day
        there."""
        shortest = (self.count * (1 if self.unit == "days" else 28) - 2) * DAY
        return max(0, shortest) < length < self.longest

    def zone_of(self, by_row: Column | None) -> Column | None:
        """Return the zone of a row; None: times are a wall clock's.

        Args:
            by_row: the column that has it, if each row has its own.
        """
        if self.by_row:
            return by_row
        return None if self.zone is None else F.lit(self.zone)

    def bounds(self, micros: Column, zone: Column | None) -> tuple[Column, Column]:
        """Return the start and the end of the window that a time falls into.

        Args:
            micros: the time, in microseconds.
            zone: of the row; None: the time is a wall clock's.
        """
        local = micros if zone is None else F.unix_micros(F.from_utc_timestamp(F.timestamp_micros(micros), zone))
        days = F.call_function("div", local - F.lit(self.offset) - self._in_day(local), F.lit(DAY)).cast("int")

        def begins(later: int) -> Column:
            shown = self._first_day(days, later) * F.lit(DAY) + F.lit(self.offset)
            return shown if zone is None else instant_of(shown, zone)

        if zone is None:
            return begins(0), begins(1)
        # A clock that is put back over midnight shows a day again whose window is over; one that is put forward over
        # midnight shows a day whose window has not begun. So it is the instants that decide.
        this, following = begins(0), begins(1)
        start = F.when(micros >= following, following).when(micros >= this, this).otherwise(begins(-1))
        end = F.when(micros < this, this).when(micros < following, following).otherwise(begins(2))
        return start, end

    def _in_day(self, local: Column) -> Column:
        return F.pmod(local - F.lit(self.offset), F.lit(DAY))

    def _first_day(self, days: Column, later: int) -> Column:
        """Return the first day of the window that a day is in, or of one of its neighbours; in days after
        1970-01-01."""
        if self.unit == "days":
            return (days - F.pmod(days - F.lit(self.first), F.lit(self.count)) + F.lit(later * self.count)).cast("long")
        day = F.date_from_unix_date(days)
        month = F.year(day) * 12 + F.month(day) - F.lit(1 + _JANUARY + self.first)
        since = F.pmod(month, F.lit(self.count))
        first = F.add_months(F.trunc(day, "month"), F.lit(later * self.count) - since)
        return F.unix_date(first).cast("long")


@dataclass(frozen=True)
class CalendarWindows(Windows):
    """Windows that a calendar cuts: they have no fixed length."""

    calendar: CalendarRule

    marker = "calendar"

    called = "windows of a calendar"

    @property
    def zoned(self) -> bool:
        return self.calendar.by_row

    @property
    def reach(self) -> int:
        return self.calendar.longest

    def zone_of(self, by_row: Column | None) -> Column | None:
        return self.calendar.zone_of(by_row)

    def bounds_at(self, micros: Column, zone: Column | None) -> tuple[Column, Column]:
        return self.calendar.bounds(micros, zone)

    @property
    def by_day(self) -> bool:
        return not self.calendar.offset

    def unlike(self, spark: SparkSession | None, names: Sequence[str]) -> set[str]:
        """Return the names of windows that this calendar does not cut: days are no months, here nor elsewhere."""
        try:
            bounds = {name: [*map(eventtime.micros_in, name.split("/"))] for name in names}
        except ValueError:
            return {*names}
        if self.zoned:  # there is no zone: what is known is how long a window is
            return {name for name, (start, end) in bounds.items() if not self.calendar.may_have(end - start)}
        assert spark is not None
        starts = spark.createDataFrame([(start,) for start, _ in bounds.values()], "start long")
        keys = starts.select(self.key_at(F.col("start"), self.zone_of(None))).collect()
        return {*names} - {self.substream(None, key).name for (key,) in keys if key is not None}

    @classmethod
    def of_json(cls, described: Mapping[str, Any]) -> Substreams:
        return super().of_json({**described, "calendar": CalendarRule(**described["calendar"])})


def rule_of(df: DataFrame, given: Calendar, time: str, offset: int, what: str) -> CalendarRule:
    """Resolve a calendar against the rows that it is for.

    Args:
        offset: of the windows, in microseconds.

    Raises:
        UsageError: a zone that is not known, is missing, or is given for times that have none.
    """
    zone, on_wall = given.zone, time == eventtime.WALL
    check_faults(
        f"{what}:",
        (
            offset % 1_000_000 or not 0 <= offset < DAY,
            "the offset of a calendar's windows is the time on the clock at which they begin, in whole seconds: "
            "'0 seconds' or more, and less than '1 day'",
        ),
        (
            on_wall and zone is not None,
            f"a timestamp_ntz belongs to no zone: give calendar({given.text!r}) without one, or make it a timestamp "
            "first: F.to_utc_timestamp(…) with a session in UTC, or F.convert_timezone",
        ),
        (
            not on_wall and zone is None,
            f"whose {given.text}? Give the zone, calendar({given.text!r}, 'Europe/Berlin'), or the column that has it, "
            f"calendar({given.text!r}, F.col('zone')); 'UTC' is one, too",
        ),
        (
            isinstance(zone, str) and not is_known_zone(df.sparkSession, zone),
            f"{zone!r} is no time zone that Spark has: give a name such as 'Europe/Berlin', an offset such as "
            "'+05:30', or a column as F.col('zone')",
        ),
    )
    if isinstance(zone, str):
        return CalendarRule(given.unit, given.count, given.first, offset, zone, False)
    return CalendarRule(given.unit, given.count, given.first, offset, None, zone is not None)
