"""The exact watermark: Spark's own stateful operators, released and pruned by what the tracker knows.

Spark moves a watermark by the newest event time it has seen, less a delay: a guess. Here the stream of the tracker's
`Advanced` events is put beside the data, and only it carries a watermark. So a window comes out when everything up to
its end is over, with no later data, and rows far ahead move nothing.

The rows of that stream are taken out again before any operator can see them, by a filter that Spark's optimizer does
not move: a deterministic one would be pushed below the watermark, and the watermark would never move.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.substreams import quoted

Over: TypeAlias = Literal["windows", "instants"]

_MARK: Final = "_tracker_mark"
#: Spark keeps a watermark in milliseconds, and cannot show dates past the year 9999.
_LATEST_MICROS: Final = 253_402_214_400_000_000
_EARLIEST_MICROS: Final = 0


def with_progress(data: DataFrame, advanced: DataFrame, time: str, over: Over) -> DataFrame:
    """Puts the tracker's progress beside data, as the watermark of a column.

    Args:
        data: a streaming DataFrame without a watermark of its own.
        advanced: the tracker's `Advanced` events on the data's segment.
        time: the column of event time.
        over: what lives by the watermark. ``"windows"``: windows of that column; everything before the tracker's time
            is over, so a window that ends there comes out. ``"instants"``: the column itself, as in deduplication or
            joins; a row at just that time may still come, so the watermark stays a millisecond behind.
    """
    slack = 0 if over == "windows" else 1000
    micros = F.greatest(F.least(F.col("time"), F.lit(_LATEST_MICROS)) - F.lit(slack), F.lit(_EARLIEST_MICROS))
    columns: list[Column] = []
    for field in data.schema.fields:
        value = F.timestamp_micros(micros) if field.name == time else F.lit(None)
        columns.append(value.cast(field.dataType).alias(field.name))
    marks = advanced.select(*columns, F.lit(True).alias(_MARK)).withWatermark(quoted(time), "0 seconds")
    both = marks.unionByName(data.withColumn(_MARK, F.lit(False)))
    return both.where(~F.col(_MARK) | (F.spark_partition_id() < 0)).drop(_MARK)
