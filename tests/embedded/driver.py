"""A driver that runs no service, to be killed: `python -m tests.embedded.driver FEED PLACE [NAME=SETTING …]`.

It releases the rows of FEED by tenant and hour, a file each batch, and ends once all that is there is released. PLACE,
a directory or a URL, has its checkpoint and its results; the settings are Hadoop's, of the store.
"""

from __future__ import annotations

import sys

from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from tests.spark.conftest import session
from tests.spark.feed import SCHEMA


def main(feed: str, place: str, *settings: str) -> None:
    spark = session("embedded")
    for setting in settings:
        spark.sparkContext._jsc.hadoopConfiguration().set(*setting.split("=", 1))
    tracking = Tracking(spark, job="shop")
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(feed)
    source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    hourly = tracking.release(source, ["kind"], aggs={"n": F.count("*")})
    hourly.writeStream.option("checkpointLocation", f"{place}/cp").start(f"{place}/out")
    tracking.process_all_available()
    tracking.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
