"""A job to be tested: orders are booked, each shop's day at once, when the last order of it has come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking

SCHEMA = "shop string, at timestamp, price int, last boolean"


def start(
    spark: SparkSession, server: str, inbox: Path, checkpoint: Path, book: Callable[[str, str, int], None]
) -> Tracking:
    """Start the job.

    Args:
        spark: the session.
        server: the tracker's address.
        inbox: where files of orders arrive, as JSON.
        checkpoint: Spark's progress.
        book: called with shop, day and turnover of each day that is complete. It may be called again after a failure.
    """
    tracking = Tracking(spark, job="shop", server=server)
    raw = spark.readStream.schema(SCHEMA).json(str(inbox))
    orders = tracking.source(raw, "orders", scope="shop", window=("at", "1 day"), front=Marks("last"))
    paid = orders.where(F.col("price") > 0)

    def book_days(days: DataFrame, _epoch: int) -> None:
        for day in days.collect():
            book(day["shop"], day["window"]["start"].date().isoformat(), day["turnover"])

    days = tracking.release(paid, [], aggs={"turnover": F.sum("price")})
    days.writeStream.foreachBatch(book_days).option("checkpointLocation", str(checkpoint)).start()
    return tracking
