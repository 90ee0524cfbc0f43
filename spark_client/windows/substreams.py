"""How a row names its substream: the scope it belongs to, and a window of its time or a name.

Tracked rows carry one struct column, ``_tracker``, with `scope`, `name`, `end` and `label`. Everything here is native
column arithmetic; names of windows are only written out for the few substreams of a batch, on the driver. This module
must never look at data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.windows import eventtime, sliding
from spark_client.windows.calendars import CalendarRule
from spark_client.windows.eventtime import INSTANT
from spark_client.windows.nested import Level, key_of, window_of, windows_in
from spark_client.windows.sessions import stretches

TRACKER_TYPE: Final = T.StructType(
    [
        T.StructField("scope", T.StringType()),
        T.StructField("name", T.StringType()),
        T.StructField("end", T.TimestampType()),
        T.StructField("label", T.LongType()),
    ]
)

_LATER: Final = ("calendar", "slide", "gap", "at", "levels")  #: fields that earlier versions did not have


class Substream(NamedTuple):
    """One substream as the tracker knows it: `end_time` in microseconds since the Unix epoch, or None."""

    scope: str
    name: str
    end_time: int | None


@dataclass(frozen=True, slots=True)
class Substreams:
    """The rule by which rows fall into substreams; plain data, so that a channel can keep it beside its rows.

    Attributes:
        scope: the name of the scope's column in results; None: all rows are in the scope ``""``.
        scope_type: its type, as DDL.
        name: the name of the column that names the substream; None: windows do.
        name_type: its type, as DDL.
        length: of the windows, in microseconds; 0: substreams are named. More than any window has, if a calendar cuts
            them.
        offset: at which windows begin, in microseconds after the epoch.
        time: the type of the time that windows are over: one of `eventtime.TIMES`.
        zone: the session's time zone, if it decides where rows belong; None: it does not.
        calendar: what cuts windows that have no fixed length; None: they have one. Such windows are told apart by both
            their bounds, since two that end at the same time may have begun at different ones; `_tracker` has them as
            the name.
        slide: from the start of a window to that of the next, in microseconds, if windows overlap; 0: they do not.
        gap: of sessions, in microseconds; 0: there are none. Windows are their steps then, and the tracker knows the
            stretches that have them: see `sessions`.
        at: the column of the time, where it is needed after the source: for sessions.
        levels: of windows within windows, the shortest first; none: there is one kind of them. A row is kept under the
            piece that it has of all of its windows; `_tracker` has their bounds as the name.
    """

    scope: str | None
    scope_type: str
    name: str | None
    name_type: str
    length: int
    offset: int
    time: str = INSTANT
    zone: str | None = None
    calendar: CalendarRule | None = None
    slide: int = 0
    gap: int = 0
    at: str = ""
    levels: tuple[Level, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether the tracker knows each row as an element of several substreams: see `tracked_as`."""
        return self.gap > 0 or bool(self.levels)

    @property
    def called(self) -> str:
        """What its substreams are, for messages."""
        return "sessions" if self.gap else "windows within windows" if self.levels else "substreams"

    @property
    def reach(self) -> int:
        """How far from a time the substreams that it belongs to begin and end, at most: in microseconds."""
        return self.length + self.gap

    @property
    def windows(self) -> bool:
        """Whether substreams are windows of time."""
        return self.length > 0

    @property
    def by_end(self) -> bool:
        """Whether substreams are told apart by their ends; else they are by what `_tracker` has as the name."""
        return self.windows and self.calendar is None and not self.levels

    @property
    def keys(self) -> list[str]:
        """The fields of `_tracker` that tell substreams apart."""
        return ["scope", "end" if self.by_end else "name"]

    def end_of(self, time: Column) -> Column:
        """Return the end of the window that a time falls into, as `_tracker` has it; null if the time is out of
        range."""
        return self.end_after(eventtime.micros(time, self.time))

    def end_after(self, micros: Column) -> Column:
        """Return the same of microseconds. A wall clock's end is kept as the instant at which a clock in UTC shows
        it."""
        return F.timestamp_micros(self._begins(self._in_range(micros)) + F.lit(self.length))

    def start_of(self, micros: Column) -> Column:
        """Return the start of the window that a time falls into, in microseconds; one that is out of range stays as it
        is.

        Args:
            micros: the time; its window has no zone of a row.
        """
        if self.calendar is None:
            start = self._begins(micros)
        else:
            start, _ = self.calendar.bounds(micros, self.calendar.zone_of(None))
        return F.when(self._near(micros), start).otherwise(micros)

    def _begins(self, micros: Column) -> Column:
        """Return where the window of a fixed length begins that a time falls into."""
        return micros - F.pmod(micros - F.lit(self.offset), F.lit(self.length))

    def ends_of(self, time: Column) -> Column:
        """Return the ends of the windows that a time falls into, if windows overlap: an array; null as `end_of`."""
        return sliding.ends_of(self.micros(time), self.length, self.slide, self.offset)

    def bounds_of(self, micros: Column, zone: Column | None) -> Column:
        """Return the key of the window of a calendar that a time falls into; null if it is out of range.

        It has both bounds, in microseconds: to write their names out for each row would take most of a batch's time.

        Args:
            micros: the time, in microseconds.
            zone: of the row, if each has its own.
        """
        assert self.calendar is not None
        bounds = self.calendar.bounds(micros, self.calendar.zone_of(zone))
        start, end = (bound.cast("string") for bound in bounds)
        return F.when(self._near(micros), F.concat(start, F.lit("/"), end))

    def pieces_of(self, micros: Column, zone: Column | None) -> Column:
        """Return the key of the piece of windows within windows that a time falls into; null if it is out of range.

        Args:
            micros: the time, in microseconds.
            zone: of the row, if each has its own.
        """
        return F.when(self._near(micros), key_of([level.bounds(micros, zone) for level in self.levels]))

    def micros(self, time: Column) -> Column:
        """Return a time as microseconds, on the clock that windows are cut on; null if it is out of range."""
        return self._in_range(eventtime.micros(time, self.time))

    def _in_range(self, micros: Column) -> Column:
        """Microseconds whose windows end, and begin, where the tracker takes times; others are null."""
        return F.when(self._near(micros), micros)

    def _near(self, micros: Column) -> Column:
        return micros.between(self.reach - eventtime.LIMIT, eventtime.LIMIT - self.reach)

    def substream(self, scope: str | None, key: Any) -> Substream:
        """Return what a group's keys name.

        Args:
            scope: the scope.
            key: a window's end in microseconds; both its bounds, as `bounds_of` writes them; or the name.
        """
        if key is None:
            raise ValueError("a substream without a name, or a window without an end")
        if self.by_end:
            return Substream(scope or "", self.window_name(key), key)
        if not self.windows:
            return Substream(scope or "", key, None)
        if self.levels:
            return Substream(scope or "", key, windows_in(key)[0][1])
        start, end = map(int, key.split("/"))
        return Substream(scope or "", self.interval(start, end), end)

    def tracked_as(self, substream: Substream) -> tuple[Substream, ...]:
        """Return the substreams of the tracker that rows of one substream are elements of: mostly that one.

        Rows are kept, counted and merged by the smaller one. It has ended when all of these have.
        """
        if not self.shared:
            return (substream,)
        if self.levels:
            bounds = windows_in(substream.name)
        else:
            assert substream.end_time is not None
            bounds = stretches(substream.end_time, self.length, self.gap)
        named = (Substream(substream.scope, self.interval(start, end), end) for start, end in bounds)
        return tuple(dict.fromkeys(named))

    def key_of(self, substream: Substream) -> Any:
        """Return the key that a group of rows has: see `substream`."""
        if self.by_end:
            return substream.end_time
        if not self.windows or self.levels:
            return substream.name
        return f"{eventtime.micros_in(substream.name.partition('/')[0])}/{substream.end_time}"

    def has(self, substream: Substream) -> bool:
        """Return whether a row could be in a substream, as far as its name and end show it.

        >>> day = Substreams(None, "string", None, "string", 86_400_000_000, 0)
        >>> day.has(Substream("", "1970-01-01T00:00:00Z/1970-01-02T00:00:00Z", 86_400_000_000))
        True
        >>> day.has(Substream("", "1970-01-01T00:00:00Z/1970-01-01T01:00:00Z", 3_600_000_000))
        False
        """
        end = substream.end_time
        if not self.windows or end is None:
            return not self.windows and end is None
        if not self.by_end:
            return True
        starts_on = (end - self.length - self.offset) % (self.slide or self.length) == 0
        return starts_on and self.window_name(end) == substream.name

    def window_name(self, end_time: int) -> str:
        """Return an ISO 8601 interval: in UTC, or without a zone if the windows are a wall clock's.

        >>> Substreams(None, "string", None, "string", 86_400_000_000, 0).window_name(1_356_998_400_000_000)
        '2012-12-31T00:00:00Z/2013-01-01T00:00:00Z'
        """
        return self.interval(end_time - self.length, end_time)

    def interval(self, start: int, end: int) -> str:
        """Return what the tracker calls a window, by its bounds."""
        return f"{eventtime.iso(start, self.time)}/{eventtime.iso(end, self.time)}"

    def bounds(self, substream: Substream) -> tuple[datetime | None, datetime | None]:
        """Return where a window begins and ends, as far as a datetime can hold it; None of what is no window."""
        if substream.end_time is None:
            return None, None
        start = eventtime.micros_in(substream.name.partition("/")[0])
        return eventtime.datetime_of(start, self.time), eventtime.datetime_of(substream.end_time, self.time)

    def end_or_name(self, struct: str = TRACKER) -> Column:
        """Return the key that tells substreams of a scope apart."""
        return F.col(f"{struct}.{self.keys[1]}")

    def end_micros(self, struct: str = TRACKER) -> Column:
        """Return the key that tells windows apart, as a number, or the name."""
        return F.unix_micros(F.col(f"{struct}.end")) if self.by_end else F.col(f"{struct}.name")

    def name_and_end(self, key: Column) -> tuple[Column, Column]:
        """Return the name and the end of a substream, as far as its key tells them: a window's name may be null."""
        if self.by_end:
            return F.lit(None).cast("string"), key
        if not self.windows:
            return key, F.lit(None).cast(T.TimestampType())
        start, end = self._bounds(key)
        name = F.concat(eventtime.text(start, self.time), F.lit("/"), eventtime.text(end, self.time))
        return name, F.timestamp_micros(end)

    def result_columns(self, scope: Column, key: Column) -> list[Column]:
        """Return how results show their substream: the scope under its own name, and `window` or the name's column."""
        columns = [] if self.scope is None else [scope.cast(self.scope_type).alias(self.scope)]
        if self.windows:
            start, stop = (eventtime.moment(micros, self.time) for micros in self._bounds(key))
            columns.append(F.struct(start.alias("start"), stop.alias("end")).alias("window"))
        else:
            columns.append(key.cast(self.name_type).alias(str(self.name)))
        return columns

    def _bounds(self, key: Column) -> tuple[Column, Column]:
        """Return where a window begins and ends, in microseconds."""
        if self.by_end:
            end = F.unix_micros(key)
            return end - F.lit(self.length), end
        shortest = window_of(key, 0) if self.levels else key
        start, end = (F.split_part(shortest, F.lit("/"), F.lit(part)).cast("long") for part in (1, 2))
        return start, end

    def to_json(self) -> dict[str, Any]:
        """For a channel's description. What earlier versions did not have is there only if it is used."""
        described = {**asdict(self), "levels": [asdict(level) for level in self.levels]}
        return {name: value for name, value in described.items() if value or name not in _LATER}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Substreams:
        """From a channel's description."""
        cut, levels = fields.get("calendar"), tuple(map(Level.from_json, fields.get("levels", ())))
        return cls(**{**fields, "calendar": None if cut is None else CalendarRule(**cut), "levels": levels})
