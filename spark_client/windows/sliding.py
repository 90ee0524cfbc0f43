"""Windows that overlap: a row is in several of them, as with Spark's own ``window`` and a slide."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError
from spark_client.windows import lengths
from spark_client.windows.eventtime import DATE
from spark_client.windows.fixed import Fixed, FixedLength
from spark_client.windows.lengths import Duration, Length, TimedRows
from spark_client.windows.substreams import Ability, Windows

_END: Final = "_tracker_end"  #: of one of the windows that a row is in; no longer than until it is tracked


@dataclass(frozen=True)
class Sliding(Length):
    """The length of windows that overlap, as `sliding` makes it.

    Attributes:
        length: from the start of a window to its end, such as ``"1 hour"``.
        every: from its start to that of the next window.
    """

    length: Duration
    every: Duration

    def windows(self, rows: TimedRows) -> tuple[Windows, Column]:
        length = lengths.length(rows.df.sparkSession, self.length, "the window's length")
        slide = lengths.length(rows.df.sparkSession, self.every, "the window's slide")
        if slide > length:
            raise UsageError(
                f"sliding({self.length!r}, {self.every!r}): windows begin later than the one before has ended: give at "
                "most the length"
            )
        if slide == length:
            return FixedLength(self.length).windows(rows)
        offset = rows.offset_within(slide, self.every)
        rule = SlidingWindows(length, offset, slide=slide, **rows.fields(rows.time, by_date=rows.kind == DATE))
        return rule, rule.ends_of(rows.micros)


def sliding(length: Duration, every: Duration) -> Sliding:
    """Make windows that overlap, as Spark's ``window(time, length, every)`` does.

    A row is then an element of each window that it falls into: length / every of them. The source makes so many rows of
    it, so filter before.

    Args:
        length: of a window: ``"1 hour"``, or a timedelta.
        every: how much later the next one begins: ``"10 minutes"``; not longer than a window.

    >>> tracking.source(raw, "clicks", scope="site", window=("at", sliding("1 hour", "10 minutes")))  # doctest: +SKIP
    """
    return Sliding(length, every)


@dataclass(frozen=True)
class SlidingWindows(Fixed):
    """Windows that overlap; a declared row has the ends of all windows that it is in, until it is copied.

    Attributes:
        slide: from the start of a window to that of the next, in microseconds.
    """

    slide: int = field(kw_only=True)

    marker = "slide"
    called = "windows that overlap"
    several = True

    lacks = frozenset([Ability.NAMES, Ability.WATERMARK])

    def ends_of(self, micros: Column) -> Column:
        """Return the ends of the windows that a time falls into, in microseconds: an array; null if it is out of
        range."""
        micros = self.in_range(micros)
        newest = micros - F.pmod(micros - F.lit(self.offset), F.lit(self.slide)) + F.lit(self.length)  # it ends last
        more = F.call_function("div", newest - micros - F.lit(1), F.lit(self.slide))
        return F.sequence(newest - more * F.lit(self.slide), newest, F.lit(self.slide))

    def copied(self, rows: DataFrame, key: Column) -> DataFrame:
        return rows.withColumn(_END, F.explode_outer(key))

    def copied_key(self, key: Column) -> Column:  # noqa: ARG002
        return F.timestamp_micros(_END)

    @property
    def copy(self) -> list[Column]:
        return [F.col(_END)]

    def derives(self, kind: T.DataType) -> bool:  # noqa: ARG002
        return False  # a row is in several

    def _ends_at(self, end: int) -> bool:
        return (end - self.length - self.offset) % self.slide == 0
