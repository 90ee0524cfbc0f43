"""Lengths of windows that users give, as `source(…, window=(time, length))` resolves them against rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, check_types, column, resolve, session_zone
from spark_client.errors import UsageError
from spark_client.spark_internals.plans import is_plain
from spark_client.windows import durations, eventtime
from spark_client.windows.durations import Duration
from spark_client.windows.substreams import Windows


@dataclass(frozen=True)
class TimedRows:
    """Rows of a source, with the time that windows are over.

    Attributes:
        kind: the time's type: one of `eventtime.TIMES`.
        offset: at which windows begin, as it was given; None: none was.
        scope: of a row; None: there is one for all rows.
        scope_name: the name of the scope's column in results.
        scope_type: its type, as DDL.
    """

    df: DataFrame
    time: ColumnOrName
    kind: str
    offset: Duration | None
    scope: ColumnOrName | None
    scope_name: str | None
    scope_type: str

    @property
    def what(self) -> str:
        """Names the time in messages."""
        return f"window={self.time!r}"

    @property
    def micros(self) -> Column:
        """The time in microseconds."""
        return eventtime.micros(column(self.time), self.kind)

    @property
    def offset_micros(self) -> int:
        """The offset in microseconds."""
        if self.offset is None:
            return 0
        return durations.microseconds(self.df.sparkSession, self.offset, "the window's offset")

    def offset_within(self, length: int, called: object) -> int:
        """Return the offset in microseconds.

        Args:
            length: of windows, in microseconds.
        """
        if abs(self.offset_micros) >= length:
            raise UsageError(
                f"the window's offset {self.offset!r} is not shorter than the window, {called!r}: give a shorter one"
            )
        return self.offset_micros % length

    def fields(self, *read: ColumnOrName | None, by_date: bool = False) -> dict[str, Any]:
        """Return the fields that all kinds of windows have.

        Args:
            read: the columns that windows are made of, beside the scope.
            by_date: whether these are dates, which begin when the session's time zone has it.
        """
        zone = zone_of(self.df, by_date, self.scope, *read)
        return {"scope": self.scope_name, "scope_type": self.scope_type, "time": self.kind, "zone": zone}


class Length(ABC):
    """The length of windows of a kind.

    Attributes:
        zone: the column of the time zone, if each row has its own.
    """

    zone: Any = None

    @abstractmethod
    def windows(self, rows: TimedRows) -> tuple[Windows, Column]:
        """Return the rule of the windows, and the key of a row."""

    def dated(self, df: DataFrame, time: ColumnOrName) -> ColumnOrName:  # noqa: ARG002
        """Return the time that windows are over, of the one that was given."""
        return time

    def zone_by_row(self, df: DataFrame) -> Column | None:
        """Return the column of the time zone, if each row has its own."""
        if not isinstance(self.zone, Column):
            return None
        reason = "which is no text: give names of time zones, such as 'Europe/Berlin'"
        fields = [resolve(df, self.zone, "zone")]
        check_types(fields, lambda kind: isinstance(kind, T.StringType), "calendar: zone", reason)
        return self.zone


def zone_of(df: DataFrame, by_date: bool, *columns: ColumnOrName | None) -> str | None:
    """Return the session's time zone, if it may decide where rows belong.

    It does for a date, which begins by its zone; and it may for an expression, which may format or parse times.
    """
    by_expression = not all(is_plain(df, value) for value in columns if value is not None)
    return session_zone(df) if by_date or by_expression else None
