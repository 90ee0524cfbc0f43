"""Lengths of time, as Spark parses them, and of windows, as ``window=(time, length)`` resolves them against rows.

Spark has two grammars for intervals and rules of its own for blanks, signs and fractions. So a text is given to Spark's
own ``window`` function, which reads widths, slides and starts with the rules that triggers and watermarks follow, and
the answer is read from the window that comes out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, check_types, column, resolve, session_zone
from spark_client.errors import UsageError
from spark_client.spark_internals.plans import is_plain
from spark_client.windows import eventtime
from spark_client.windows.substreams import Windows

Duration: TypeAlias = str | timedelta

#: The width of the window that texts are tried as the start of: starts below half of it can be told from one another.
_WIDTH_DAYS: Final = 36_500_000
_WIDTH: Final = _WIDTH_DAYS * 86_400_000_000


def length(spark: SparkSession, duration: Duration, what: str) -> int:
    """Return a length of time above zero, in microseconds.

    Args:
        duration: a text such as ``"1 hour 30 minutes"`` or ``"INTERVAL '1' DAY"``, or a timedelta.

    Raises:
        UsageError: it is not above zero, or no fixed length of time: see `microseconds`.

    >>> length(spark, "1 hour 30 minutes", "window") == length(spark, timedelta(minutes=90), "window")  # doctest: +SKIP
    True
    """
    return _micros(spark, duration, what, 1, "is not above zero; give a length such as '10 minutes'")


def not_negative(spark: SparkSession, duration: Duration, what: str) -> int:
    """Return a length of time that may be zero, in microseconds; else as `length`."""
    return _micros(spark, duration, what, 0, "is below zero: '0 seconds' is the least")


def microseconds(spark: SparkSession, duration: Duration, what: str) -> int:
    """Return a fixed length of time in microseconds; it may be zero or negative.

    Args:
        duration: an interval in Spark's words, or a timedelta, as for `length`.

    Raises:
        UsageError: Spark does not parse it as an interval, or it has months or years, whose lengths vary.
    """
    return _micros(spark, duration, what, -_WIDTH, "")


def _micros(spark: SparkSession, duration: Duration, what: str, least: int, too_short: str) -> int:
    if isinstance(duration, timedelta):
        micros, fault = duration // timedelta(microseconds=1), ""
        if abs(micros) >= _WIDTH // 2:
            fault = "is too long: give less than 50,000 years"
    elif isinstance(duration, str) and duration.strip():
        micros, refusal = _parsed(spark, duration)
        fault = refusal and f"is not a fixed length of time: {refusal}"
    else:
        micros, fault = 0, "is not a length of time: give a text such as '10 minutes', or a timedelta"
    if not fault and micros < least:
        fault = too_short
    if fault:
        raise UsageError(f"{what}: {duration!r} {fault}")
    return micros


@lru_cache(maxsize=256)
def _parsed(spark: SparkSession, text: str) -> tuple[int, str]:
    """Return what Spark makes of a text: microseconds, or why it refuses."""
    one = spark.sql("SELECT micros FROM VALUES (0L) AS t(micros)")  # a local relation: no job runs
    width = f"{_WIDTH_DAYS} days"
    try:
        window = F.window(F.timestamp_micros("micros"), width, width, text).alias("window")
        start: int = one.select(window).select(F.unix_micros("window.start")).collect()[0][0]
    except Exception as error:
        text = str(error)
        if "greater than a month" in text:
            return 0, "months and years have no fixed length: give days, for example '30 days'"
        if "VALUE_OUT_OF_RANGE" in text or "FAILED_FUNCTION_CALL" in text or "PARAMETER_CONSTRAINT" in text:
            return 0, "it is too long: give less than 50,000 years"
        return 0, "Spark does not parse it as an interval: write for example '1 day', '90 minutes' or '1.5 seconds'"
    return start if start > -_WIDTH // 2 else start + _WIDTH, ""


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
        return microseconds(self.df.sparkSession, self.offset, "the window's offset")

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
