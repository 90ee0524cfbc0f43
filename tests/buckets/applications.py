"""An application over Spark Connect, in a process of its own: `python -m tests.buckets.applications`, with a
server's URL, a tracker, a job, a feed, a place and a format.

It sends the rows of the feed through a channel into a release, and ends; the queries go on. The place, a URL, has the
checkpoints and the channel; the format is that of the channel's table, and of the table of results.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import DeltaTable, IcebergTable, Marks, Tracking
from tests.spark.feed import SCHEMA

EVERY = "300 milliseconds"


def main(url: str, tracker: str, job: str, feed: str, place: str, kind: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    tracking = Tracking(spark, job, tracker)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(feed)
    source = tracking.source(
        rows, "in", scope="tenant", window=("ts", "1 hour"), identity=["row_id"], front=Marks("is_last")
    )
    spark.sql("create namespace if not exists lake.shop")
    table = DeltaTable(f"{place}/between") if kind == "delta" else IcebergTable("lake.shop.between")
    clean = tracking.lake_channel("clean", table, f"{place}/clean")
    sent = source.writeStream.channel(clean).option("checkpointLocation", f"{place}/cp1")
    sent.trigger(processingTime=EVERY).start()
    hourly = tracking.release(tracking.receive(clean), ["kind"], aggs={"rows": F.count("*"), "amount": F.sum("amount")})
    written = hourly.writeStream.option("checkpointLocation", f"{place}/cp2").format(kind)
    written = written.trigger(processingTime=EVERY)
    if kind == "delta":
        written.start(f"{place}/hourly")
    else:
        written.toTable("lake.shop.hourly")
    os._exit(0)  # nobody stops the session


if __name__ == "__main__":
    main(*sys.argv[1:])
