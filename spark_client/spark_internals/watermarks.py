"""Rows under a watermark that other rows carry.

Two streams are put beside each other, and the watermark of the first is that of both. The rows that carry it are taken
out again before any operator sees them, by a filter that has to stay above the watermark.

Relies on three things. What comes out of a union has the metadata of its first child, the watermark's among them
(``Union.output``, ``EventTimeWatermark.delayKey``). The optimizer pushes no filter below a watermark that is not
deterministic (``PushPredicateThroughNonJoin``), and does not find out beforehand that ``spark_partition_id() < 0``
never holds. And the watermark's operator sees each row that is below it (``EventTimeWatermarkExec``). Fails closed:
without the first, Spark refuses the query, whose results are appended; without the others the watermark stands still,
and nothing that waits for it comes out. Since Spark 4.0.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

_MARK: Final = "_tracker_mark"


def under_watermark_of(marks: DataFrame, data: DataFrame, time: str) -> DataFrame:
    """Return the rows of `data`, under a watermark that is at the newest time in `marks`.

    Args:
        marks: a stream with the columns of `data`.
        data: a stream without a watermark of its own.
        time: the column of event time, quoted if need be.
    """
    moving = marks.withColumn(_MARK, F.lit(True)).withWatermark(time, "0 seconds")
    both = moving.unionByName(data.withColumn(_MARK, F.lit(False)))
    return both.where(~F.col(_MARK) | (F.spark_partition_id() < 0)).drop(_MARK)
