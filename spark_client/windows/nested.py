"""Windows within windows: hours, and the day that is made of them, from one pass over the rows.

A row is an element of one window of each level, and whatever holds its hour open so holds its day open. It is kept
under all of its windows at once: hours that a day's border cuts, as in zones a quarter of an hour off, are kept in two
pieces. A window's result is made of all pieces that it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import UsageError
from spark_client.windows import lengths
from spark_client.windows.calendars import Calendar, CalendarRule, rule_of
from spark_client.windows.eventtime import DAY, MOMENTS, check_kind_of
from spark_client.windows.lengths import Duration, Length, TimedRows
from spark_client.windows.substreams import (
    COMPLETENESS,
    Ability,
    Chosen,
    Kept,
    RowGroup,
    Substream,
    Substreams,
    Windows,
    completeness_of,
)

LEVEL: Final = "level"  #: the results' column that has the length of their window
_LEVEL: Final = f"_{LEVEL}"


@dataclass(frozen=True, eq=False)
class Nested(Length):
    """The lengths of windows within windows, as `nested` makes them: the shortest first."""

    lengths: tuple[Duration | Calendar, ...]

    def __repr__(self) -> str:
        return f"nested({', '.join(map(repr, map(_label, self.lengths)))})"

    @property
    def zone(self) -> Column | None:
        zones = (each.zone for each in self.lengths if isinstance(each, Calendar))
        return next((zone for zone in zones if isinstance(zone, Column)), None)

    def windows(self, rows: TimedRows) -> tuple[Windows, Column]:
        check_kind_of(str(self), rows.time, rows.kind, MOMENTS, ": F.col('day').cast('timestamp')")
        levels = levels_of(rows.df, self, rows.kind, rows.offset_micros, rows.what)
        rows.offset_within(levels[-1].length, levels[-1].label)
        zones = {
            str(each.zone) for each in self.lengths if isinstance(each, Calendar) and isinstance(each.zone, Column)
        }
        if len(zones) > 1:
            raise UsageError(f"{self}: a row has one time zone, and these have {' and '.join(sorted(zones))}: give one")
        zone = self.zone_by_row(rows.df)
        rule = NestedWindows(levels, **rows.fields(rows.time, zone))
        return rule, rule.key_at(rows.micros, zone)


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
        """Make a level from a channel's description."""
        cut = fields["calendar"]
        return cls(**{**fields, "calendar": None if cut is None else CalendarRule(**cut)})

    def bounds(self, micros: Column, zone: Column | None) -> tuple[Column, Column]:
        """Return where the window of this level begins and ends that a time falls into, in microseconds.

        Args:
            micros: the time, in microseconds.
            zone: the row's own; None: rows have none.
        """
        if self.calendar is not None:
            return self.calendar.bounds(micros, self.calendar.zone_of(zone))
        start = micros - F.pmod(micros - F.lit(self.offset), F.lit(self.length))
        return start, start + F.lit(self.length)


@dataclass(frozen=True)
class NestedWindows(Windows):
    """Windows within windows: a row is kept under the piece that it has of all of its windows, whose key has all of
    their bounds and is what `_tracker` has as the name.

    Attributes:
        levels: of the windows, the shortest first.
    """

    levels: tuple[Level, ...]

    marker = "levels"
    called = "windows within windows"
    shared = True
    several = True
    marks = (_LEVEL,)

    lacks = frozenset(Ability) - {Ability.ZONE}

    @property
    def reach(self) -> int:
        return max(level.length for level in self.levels)

    def bounds_at(self, micros: Column, zone: Column | None) -> tuple[Column, Column]:
        return self.levels[0].bounds(micros, zone)

    def key_at(self, micros: Column, zone: Column | None) -> Column:
        return F.when(self._near(micros), key_of([level.bounds(micros, zone) for level in self.levels]))

    def span(self, key: Any) -> tuple[int, int]:
        return windows_in(key)[0]

    def span_of(self, key: Column) -> tuple[Column, Column]:
        return super().span_of(window_of(key, 0))

    def substream(self, scope: str | None, key: Any) -> Substream:
        if key is None:
            raise ValueError("a window without an end")
        return Substream(scope or "", key, self.span(key)[1])

    def result_of(self, scope: str | None, key: Any, marks: Sequence[Any]) -> Substream:  # noqa: ARG002
        start, end = self.span(key)
        return Substream(scope or "", self.interval(start, end), end)

    def key_of(self, substream: Substream) -> str:
        return substream.name

    def tracked_as(self, substream: Substream) -> tuple[Substream, ...]:
        return tuple(dict.fromkeys(self._windows_of(substream)))

    @property
    def own(self) -> list[str]:
        *scope, window = super().own
        return [*scope, LEVEL, window]

    def shown(self, key: Column) -> list[Column]:
        return [F.col(_LEVEL).alias(LEVEL), *super().shown(key)]

    def chosen(self, kept: Kept) -> Chosen:
        """Return the pieces of the windows that are over, longer ones after their shorter ones."""
        groups: dict[RowGroup, dict[Substream, list[str]]] = {}
        waiting, counted = set[Substream](), dict[Substream, list[str]]()
        for (level, window), some in self._by_window(kept.parts).items():
            now, was = ([self._is_over(piece, level, ended) for piece in some] for ended in (kept.ended, kept.before))
            if not all(now):
                waiting.update(some)  # what has ended of it waits for the rest
                continue
            if all(was):
                continue
            cut, after = kept.ended[window]
            completeness = completeness_of(after, cut) if kept.completeness else ""
            marks = ((_LEVEL, self.levels[level].label), (f"_{COMPLETENESS}", completeness))
            found = {piece: kept.parts[piece] for piece in some}
            groups.setdefault(RowGroup(marks, level), {}).update(found)
            if level == 0:
                counted |= found
        return Chosen(groups, counted, waiting)

    def open_groups(
        self, kept: Mapping[Substream, list[str]], ended: Set[Substream]
    ) -> Mapping[RowGroup, Mapping[Substream, list[str]]]:
        groups: dict[RowGroup, dict[Substream, list[str]]] = {}
        for (level, _), some in self._by_window(kept).items():
            if not all(self._is_over(piece, level, ended) for piece in some):
                group = RowGroup(((_LEVEL, self.levels[level].label),), level)
                groups.setdefault(group, {}).update({piece: kept[piece] for piece in some})
        return groups

    def _by_window(self, pieces: Iterable[Substream]) -> dict[tuple[int, Substream], list[Substream]]:
        """Return the pieces of each window, by its level."""
        found: dict[tuple[int, Substream], list[Substream]] = {}
        for piece in pieces:
            for level, window in enumerate(self._windows_of(piece)):
                found.setdefault((level, window), []).append(piece)
        return found

    def _windows_of(self, piece: Substream) -> list[Substream]:
        """Return the windows that a piece is of, the shortest first: one for each level."""
        return [Substream(piece.scope, self.interval(start, end), end) for start, end in windows_in(piece.name)]

    def _is_over(self, piece: Substream, level: int, ended: Collection[Substream]) -> bool:
        """Return whether a row's window of a level has ended, and the shorter ones that end no later."""
        bounds = windows_in(piece.name)[: level + 1]
        windows = self._windows_of(piece)[: level + 1]
        return all(each in ended for each, (_, end) in zip(windows, bounds, strict=True) if end <= bounds[-1][1])

    def regrouped(self, partials: DataFrame, group: RowGroup) -> DataFrame:
        return partials.withColumn("_key", window_of(F.col("_key"), group.level))

    def finished(self, merged: DataFrame) -> DataFrame:
        """Return the rows with their level: pieces, which are late, are of the shortest window that they are late
        for."""
        return merged if _LEVEL in merged.columns else merged.withColumn(_LEVEL, F.lit(self.levels[0].label))

    @classmethod
    def of_json(cls, described: Mapping[str, Any]) -> Substreams:
        return super().of_json({**described, "levels": tuple(map(Level.from_json, described["levels"]))})


def levels_of(df: DataFrame, given: Nested, time: str, offset: int, what: str) -> tuple[Level, ...]:
    """Resolve windows within windows against the rows that they are for.

    Args:
        offset: of the windows, in microseconds.

    Raises:
        UsageError: a length is none; or one is no multiple of the one before.
    """
    levels = []
    for each in given.lengths:
        if isinstance(each, Calendar):
            cut = rule_of(df, each, time, offset, what)
            levels.append(Level(each.text, cut.longest, offset, cut))
        else:
            length = lengths.length(df.sparkSession, each, "nested")
            levels.append(Level(str(each), length, offset % length, None))
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
    """Return the key of a piece: the bounds of its windows in microseconds, the shortest first."""
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
