"""Clicks of five shops, counted by shop and ten seconds. It runs until it is stopped, and goes on at its next start.

The executors report themselves, so the reports of their tasks go over the node's relay, if there is one.
"""

from __future__ import annotations

import os
import signal
from threading import Event

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Frontier, Tracking


def show(rows: DataFrame, epoch: int) -> None:
    """Prints what was released: each row once, and final."""
    for row in rows.orderBy("shop", "window").collect():
        print(f"released in batch {epoch}: {row.asDict(recursive=True)}", flush=True)


def main() -> None:
    checkpoint = os.environ.get("CHECKPOINT", "/var/lib/job/checkpoint")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    raw = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    clicks = raw.select(
        F.concat(F.lit("shop-"), (F.col("value") % 5).cast("string")).alias("shop"),
        F.when(F.col("value") % 3 == 0, "buy").otherwise("look").alias("kind"),
        F.col("timestamp").alias("at"),
    )
    server, metrics = os.environ["TRACKER_SERVER"], os.environ.get("METRICS")
    tracking = Tracking(spark, job="clicks", server=server, probe="executors", metrics=metrics)
    counted = tracking.source(clicks, "clicks", scope="shop", window=("at", "10 seconds"), front=Frontier("2 seconds"))
    released = tracking.release(counted, ["kind"], aggs={"clicks": F.count("*")})
    writing = released.writeStream.queryName("counts").foreachBatch(show).option("checkpointLocation", checkpoint)
    query = writing.trigger(processingTime="2 seconds").start()
    stopping = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while query.isActive and not stopping.wait(1):
        pass
    tracking.stop()  # after the batch that is under way; raises what has ended the query
    spark.stop()


if __name__ == "__main__":
    main()
