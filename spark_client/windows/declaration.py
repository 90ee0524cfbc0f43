"""Declarations of substreams: windows of a time, or a column that names them, resolved against the rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, column, resolve, text_of
from spark_client.errors import UsageError, check_choice, check_faults
from spark_client.spark_internals.plans import is_plain
from spark_client.windows import eventtime
from spark_client.windows.belonging import Belonging, Condition, OnBadRows, of_text, of_time, of_zone
from spark_client.windows.eventtime import INSTANT
from spark_client.windows.fixed import FixedLength
from spark_client.windows.lengths import Duration, Length, TimedRows, zone_of
from spark_client.windows.named import Named
from spark_client.windows.substreams import Substreams

Window: TypeAlias = tuple[ColumnOrName, Duration | Length] | tuple[ColumnOrName, Duration | Length, Duration]


@dataclass(frozen=True, eq=False)
class Declaration:
    """Substreams, as they were declared for some rows.

    Attributes:
        rule: by which they fall into substreams.
        scope: the text of a row's scope.
        key: of a row: see `Substreams.copied` of windows that overlap.
        scope_given: the column of the scope, as it was given; None: there is one scope.
        given: the column of the time, or of the name.
        zone: the column of a row's time zone, if each has its own.
    """

    df: DataFrame
    rule: Substreams
    scope: Column
    key: Column
    scope_given: ColumnOrName | None
    given: ColumnOrName
    timed: bool = False
    zone: Column | None = None

    @property
    def read(self) -> list[ColumnOrName]:
        """The columns that substreams are made of."""
        return [each for each in (self.scope_given, self.given, self.zone) if each is not None]

    @property
    def plain(self) -> bool:
        """Return whether the scope and the time, or the name, are columns of the rows as they are."""
        return all(is_plain(self.df, each) for each in (self.scope_given, self.given) if each is not None)

    @property
    def time(self) -> Column | None:
        """The time of a row, for fronts: null if it is none that the tracker takes, so that it moves no frontier."""
        if not self.timed:
            return None
        *_, condition = of_time(self.df, self.given, self.rule.reach)
        return F.when(condition.holds, column(self.given))

    def belonging(self, more: Iterable[Condition], on_bad_rows: OnBadRows) -> Belonging:
        """Return the conditions for the rows.

        Args:
            on_bad_rows: what a row that breaks one does: ``"fail"``, or go into ``"quarantine"``.
        """
        check_choice("on_bad_rows", on_bad_rows, "fail", "quarantine")
        conditions: list[Condition] = []
        if self.zone is not None:
            conditions += of_zone(self.df, self.zone)
        if self.scope_given is not None:
            conditions += of_text(self.df, self.scope_given, "scope")
        return Belonging((*conditions, *self.rule.conditions(self.df, self.given), *more), on_bad_rows)


def declare(
    df: DataFrame,
    scope: ColumnOrName | None,
    window: Window | None,
    substream: ColumnOrName | None,
) -> Declaration:
    """Resolve a user's declaration against the rows it is for.

    Raises:
        UsageError: a column that is not there, a window over something that is no time, both or neither of `window`
            and `substream`.
    """
    if (window is None) == (substream is None):
        raise UsageError(
            "a substream is a window or a name: give either window=('time_column', '1 day') or substream='column', "
            "not both"
        )
    scope_name, scope_type, scope_column = (None, "string", F.lit("")) if scope is None else _text(df, scope, "scope")
    if substream is not None:
        name, name_type, key = _text(df, substream, "substream")
        zone_now = zone_of(df, False, scope, substream)
        rule = Named(name, name_type, scope=scope_name, scope_type=scope_type, zone=zone_now)
        return Declaration(df, rule, scope_column, key, scope, substream)
    if not isinstance(window, tuple) or len(window) not in (2, 3):
        raise UsageError("window is ('time_column', '1 day'), or with an offset ('time_column', '1 day', '6 hours')")
    length = window[1] if isinstance(window[1], Length) else FixedLength(window[1])
    time = length.dated(df, window[0])
    kind = resolve(df, time, "window").dataType.simpleString()
    eventtime.check_kind_of("window", time, kind)
    if kind == eventtime.WALL:
        eventtime.check_session(df.sparkSession, f"window={time!r}")
    offset = window[2] if len(window) == 3 else None
    windows, key = length.windows(TimedRows(df, time, kind, offset, scope, scope_name, scope_type))
    return Declaration(df, windows, scope_column, key, scope, time, True, length.zone_by_row(df))


def _text(df: DataFrame, value: ColumnOrName, what: str) -> tuple[str, str, Column]:
    """Return the name, the type and the text of a column whose values name something."""
    field = resolve(df, value, what)
    name, kind = field.name, field.dataType.simpleString()
    check_faults(
        f"{what}={value!r} is {kind},",
        (
            kind == INSTANT,
            "whose text depends on the session's time zone, and two instants share one when clocks are put back: give "
            f"F.unix_micros({name!r}), a timestamp_ntz, a date or a text",
        ),
        (
            " collate " in kind,
            "and the tracker compares names by their bytes, and Spark by that collation. Give an expression that is "
            f"the same for equal names: F.lower({name!r}).cast('string'), for example, or F.collate({name!r}, "
            "'UTF8_BINARY')",
        ),
        (
            kind.startswith(("struct<", "array<", "map<", "variant", "void", "geo")),
            f"and a name is one value with a text of its own. Give F.to_json({name!r}) with an alias, for example, or "
            "a column for each field",
        ),
    )
    return name, kind, text_of(column(value), kind)
