"""The report of shadow mode: window by window, what a job on a watermark closed too early, and what it lost."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import check_present
from spark_client.release.ledger import ledger
from spark_client.release.receipts import RECEIPT_SCHEMA
from spark_client.shadow.job import ShadowedJob

_RESULT = ("scope", "end_time", "rows")


def shadow_report(
    spark: SparkSession,
    job: ShadowedJob,
    receipts: str | os.PathLike[str],
    result: DataFrame,
    late: Sequence[str | os.PathLike[str]] = (),
    lost: DataFrame | None = None,
) -> DataFrame:
    """Compare a job on Spark's watermark with what really ended, window by window.

    Args:
        spark: the session that reads receipts and tables.
        job: the query on the watermark, whose batches have been noted.
        receipts: of the release that has counted the same source beside it.
        result: what the job has written, as ``scope``, ``end_time`` of the window and ``rows``, its ``count(*)``.
            Several lines of a window are added up.
        late: the table of late rows of that release.
        lost: what `ShadowedJob.lost` has found, with ``scope``: then the report has by how much the rows were too late.

    Returns:
        A line for each window that has ended: ``scope``, ``end_time``, ``seen`` (rows that came at all), ``in_result``,
        ``lost`` (null while the job has the window open), ``closed_at``, ``ended_at``, ``minutes_early`` (how long
        before the end the job had closed it; negative: after it), and of ``lost`` rows ``explained`` (how many of them
        came under a watermark that was too far on) and ``minutes_late`` (by so much more the job's delay would have had
        to be, for the latest of them).

    Raises:
        UsageError: a column is not there.

    >>> shadow_report(spark, job, "/data/shadow/receipts", daily).where("lost > 0").show()     # doctest: +SKIP
    """
    check_present(_RESULT, result.columns, "shadow_report(result): column")
    ends = spark.read.schema(RECEIPT_SCHEMA).parquet(os.fspath(receipts)).where("revision = 0")
    ended = ends.groupBy("scope", "end_time").agg(F.max("ended").alias("ended_at"))
    seen = ledger(spark, receipts, late).where("segment is null and end_time is not null")
    seen = seen.groupBy("scope", "end_time").agg(F.sum("sent").alias("seen"))
    written = result.groupBy("scope", "end_time").agg(F.sum("rows").alias("in_result"))
    closed = job.closed(seen)
    if lost is None:
        lost = spark.createDataFrame([], "scope string, end_time timestamp, minutes_late double")
        explained = F.lit(None).cast("long")
    else:
        explained = F.coalesce("explained", F.lit(0).cast("long"))
    too_late = lost.groupBy("scope", "end_time").agg(
        F.count("*").alias("explained"), F.max("minutes_late").alias("minutes_late")
    )
    window = ["scope", "end_time"]
    lines = seen.join(ended, window, "left").join(written, window, "left").join(too_late, window, "left")
    in_result = F.coalesce("in_result", F.lit(0).cast("long"))
    is_closed = F.col("closed_at").isNotNull() | F.col("in_result").isNotNull()
    early = F.when(is_closed, (F.unix_millis("ended_at") - F.unix_millis("closed_at")) / 60_000)
    return lines.join(closed, "end_time", "left").select(
        *window,
        "seen",
        in_result.alias("in_result"),
        F.when(is_closed, F.col("seen") - in_result).alias("lost"),
        "closed_at",
        "ended_at",
        early.alias("minutes_early"),
        explained.alias("explained"),
        "minutes_late",
    )
