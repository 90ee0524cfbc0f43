"""The exact watermark: Spark's own stateful operators, released and pruned by what the tracker knows.

Spark moves a watermark by the newest event time it has seen, less a delay: a guess. Here the stream of the tracker's
`Advanced` events is put beside the data, and only it carries a watermark. So a window comes out when everything up to
its end is over, with no later data, and rows far ahead move nothing. How the two are put together is in
`spark_internals.watermarks`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import named, quoted
from spark_client.spark_internals.plans import under_watermark_of
from spark_client.windows.eventtime import LIMIT
from spark_client.windows.substreams import Substreams

TimeSemantics: TypeAlias = Literal["windows", "instants"]

OF_WINDOWS: Final = "tracker watermark of windows"  #: alias of the rows that carry a watermark over windows

_EARLIEST_MICROS: Final = 0  #: where Spark's watermarks start: it drops what is before, as late
_LATEST_MICROS: Final = LIMIT  #: where the tracker's times end: nothing after it would ever be over


def with_progress(
    data: DataFrame, advanced: DataFrame, time: str, over: TimeSemantics, segment: str, rule: Substreams
) -> DataFrame:
    """Put the tracker's progress beside data, as the watermark of a column.

    Progress is by the ends of windows: of one that is open, any row may be in flight, also one whose time lies before
    the progress. So the watermark goes from one start of a window to the next.

    A row that no watermark could be right for, since its time is before 1970 or 73,000 years away, fails its batch.

    Args:
        data: a streaming DataFrame without a watermark of its own.
        advanced: the tracker's `Advanced` events on the data's segment.
        time: the column of event time.
        over: what lives by the watermark. ``"windows"``: windows of that column; everything before the watermark is
            over, so a window that ends there comes out. ``"instants"``: the column itself, as in sessions,
            deduplication or joins; a row at just that time may still come, and Spark joins it to a session that ends
            there, so the watermark stays a millisecond behind.
        segment: that the data is received from, for the message.
        rule: how the data falls into windows.
    """
    slack = 0 if over == "windows" else 1000
    start = rule.start_of(F.least(F.col("time"), F.lit(_LATEST_MICROS)))
    micros = F.greatest(start - F.lit(slack), F.lit(_EARLIEST_MICROS))
    columns: list[Column] = []
    for field in data.schema.fields:
        value = F.timestamp_micros(micros) if field.name == time else F.lit(None)
        columns.append(value.cast(field.dataType).alias(field.name))
    marks = advanced.select(*columns)
    if over == "windows":
        marks = marks.alias(OF_WINDOWS)  # so that operators for which it is not right are refused
    return under_watermark_of(marks, _within(data, time, segment), quoted(time))


def _within(data: DataFrame, time: str, segment: str) -> DataFrame:
    value = named(time)
    outside = F.unix_micros(value).between(_EARLIEST_MICROS, _LATEST_MICROS) == F.lit(False)  # null: of no window
    fault = F.concat(
        F.lit(f"with_watermark: a row of segment {segment!r} has {time!r} "),
        value.cast("string"),
        F.lit(
            ", and Spark's watermarks start at 1970, and the tracker's times end in 75039: it would be dropped, or "
            "never come out. The batch was not committed. Start the query again, with the same checkpoint, after a "
            "step before with_watermark drops such rows, "
            f".where(\"{quoted(time)} >= timestamp'1970-01-01 00:00:00Z'\"); or use tracking.release, which takes them"
        ),
    )
    return data.where(F.when(outside, F.raise_error(fault).cast("boolean")).otherwise(F.lit(True)))
