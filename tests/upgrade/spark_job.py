"""A job on Spark that is stopped in the middle, for the code of release 0.1 and for today's.

`python spark_job.py HOST:PORT DIRECTORY DEPLOYMENT SUM FILE…`: it goes on in the directory, FILEs of orders arrive,
and it
prints what it has released. SUM is what is summed up: `items`, an int, or `big`, a bigint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking

ORDERS = {  # by file: shop, time, items, whether it is the last one of its shop's day
    "0": [("berlin", "2026-03-01 09:00", 3, False), ("lima", "2026-03-01 23:10", 2, False)],
    "1": [("berlin", "2026-03-01 21:30", 4, True)],
    "2": [("lima", "2026-03-01 23:50", 5, True)],
}


def main(server: str, directory: str, deployment: str, summed: str, *files: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    path = Path(directory)
    (path / "orders").mkdir(exist_ok=True)
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", False).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    raw = spark.readStream.schema("shop string, at timestamp, items int, last boolean").json(str(path / "orders"))
    tracking = Tracking(spark, job="shop", server=server, deployment=deployment)
    raw = raw.withColumn("big", F.col("items").cast("bigint"))
    orders = tracking.source(raw, "orders", scope="shop", window=("at", "1 day"), front=Marks("last"))
    daily = tracking.release(orders, [], aggs={"items": F.sum(summed)})
    daily.writeStream.option("checkpointLocation", str(path / "checkpoint")).start(str(path / "daily"))
    for file in files:
        rows = [dict(zip(("shop", "at", "items", "last"), row)) for row in ORDERS[file]]  # noqa: B905
        (path / ".arriving").write_text("\n".join(map(json.dumps, rows)))
        (path / ".arriving").rename(path / "orders" / f"{file}.json")
        tracking.process_all_available()
    tracking.stop()
    released = sorted(tuple(row) for row in spark.read.parquet(str(path / "daily")).select("shop", "items").collect())
    print(json.dumps(released))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
