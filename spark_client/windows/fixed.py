"""Windows of a fixed length, which follow each other without gaps; those of another length may take them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError
from spark_client.windows import eventtime, lengths
from spark_client.windows.eventtime import DATE, DAY, INSTANT, LIMIT
from spark_client.windows.lengths import Duration, Length, TimedRows
from spark_client.windows.substreams import Substream, Substreams, Windows


@dataclass(frozen=True)
class Fixed(Windows):
    """Windows of a fixed length: their key is the end, since that has the start in it.

    Attributes:
        length: from the start of a window to its end, in microseconds.
        offset: at which windows begin, in microseconds after the epoch.

    >>> day = Fixed(86_400_000_000)
    >>> day.window_name(1_356_998_400_000_000)
    '2012-12-31T00:00:00Z/2013-01-01T00:00:00Z'
    >>> day.has(Substream("", "1970-01-01T00:00:00Z/1970-01-02T00:00:00Z", 86_400_000_000))
    True
    >>> day.has(Substream("", "1970-01-01T00:00:00Z/1970-01-01T01:00:00Z", 3_600_000_000))
    False
    """

    length: int
    offset: int = 0

    marker = ""
    called = "windows"
    key_field: ClassVar[Literal["name", "end"]] = "end"
    plain_type: ClassVar[Literal["long", "string"]] = "long"

    @property
    def reach(self) -> int:
        return self.length

    def bounds_at(self, micros: Column, zone: Column | None) -> tuple[Column, Column]:  # noqa: ARG002
        start = micros - F.pmod(micros - F.lit(self.offset), F.lit(self.length))
        return start, start + F.lit(self.length)

    def key_at(self, micros: Column, zone: Column | None) -> Column:
        """Return the end of a window; a wall clock's is kept as the instant at which a clock in UTC shows it."""
        return F.timestamp_micros(self.bounds_at(self.in_range(micros), zone)[1])

    def keys_at(self, spark: SparkSession, times: Mapping[int, int], zones: Sequence[str | None]) -> dict[int, Any]:  # noqa: ARG002
        return {place: self.end_after(micros) for place, micros in times.items()}

    def end_after(self, micros: int) -> int:
        """Return the end of the window that a time falls into, in microseconds."""
        return micros - (micros - self.offset) % self.length + self.length

    @property
    def by_day(self) -> bool:
        return self.time != INSTANT or not (self.length % DAY or self.offset % DAY)

    def derives(self, kind: T.DataType) -> bool:
        return kind == T.TimestampType() and self.time == INSTANT

    def derived(self, given: Column) -> Column:
        return self.key_at(self.micros(given), None)

    def derived_values(self, given: pa.Array) -> pa.Array:
        values = self.plain_values(given).fill_null(LIMIT).to_numpy()
        furthest = LIMIT - self.reach
        outside = (values < -furthest) | (values > furthest)  # nulls among them
        values = np.where(outside, 0, values)
        ends = values - (values - self.offset) % self.length + self.length
        return pa.array(ends, mask=outside if outside.any() else None)

    def plain(self, key: Column) -> Column:
        return F.unix_micros(key)

    def stored(self, plain: Column) -> Column:
        return F.timestamp_micros(plain)

    def plain_values(self, keys: pa.Array) -> pa.Array:
        return keys.cast(pa.timestamp("us", keys.type.tz)).cast(pa.int64())

    def span(self, key: Any) -> tuple[int, int]:
        return key - self.length, key

    def span_of(self, key: Column) -> tuple[Column, Column]:
        end = F.unix_micros(key)
        return end - F.lit(self.length), end

    def key_of(self, substream: Substream) -> Any:
        return substream.end_time

    def window_name(self, end_time: int) -> str:
        """Return what the tracker calls the window that ends at a time, in microseconds."""
        return self.interval(*self.span(end_time))

    def has(self, substream: Substream) -> bool:
        end = substream.end_time
        return end is not None and self._ends_at(end) and self.window_name(end) == substream.name

    def _ends_at(self, end: int) -> bool:
        return (end - self.offset) % self.length == 0

    def recuts(self, before: Substreams) -> bool:
        if type(before) is not Fixed or type(self) is not Fixed:
            return False
        return replace(before, length=self.length, offset=self.offset, zone=None) == replace(self, zone=None)

    def recut(self, old: Substream) -> Substream:
        assert old.end_time is not None
        start, _, _ = old.name.partition("/")
        new = self.substream(old.scope, self.end_after(eventtime.micros_in(start)))
        if new.end_time is None or new.end_time < old.end_time:
            raise UsageError(
                f"the window {old.name!r} of the scope {old.scope!r} is open, and does not lie within one window of "
                f"the new rule: {new.name!r} ends before it. A window's state cannot be split: take windows that are "
                "made of whole old ones, or start with a new job, with new checkpoints"
            )
        return new

    def recut_key(self, before: Substreams, key: Column) -> Column:
        assert isinstance(before, Fixed)
        return self.key_at(before.span_of(key)[0], None)

    @property
    def example(self) -> str:
        return f"windows such as {self.window_name(self.offset)}"

    def name_and_end(self, key: Column) -> tuple[Column, Column]:
        return F.lit(None).cast("string"), key


@dataclass(frozen=True)
class FixedLength(Length):
    """A text, or a timedelta, as the length of windows."""

    length: Duration

    def windows(self, rows: TimedRows) -> tuple[Windows, Column]:
        length = lengths.length(rows.df.sparkSession, self.length, "the window's length")
        offset = rows.offset_within(length, self.length)
        rule = Fixed(length, offset, **rows.fields(rows.time, by_date=rows.kind == DATE))
        return rule, rule.key_at(rows.micros, None)
