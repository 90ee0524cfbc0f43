"""Two jobs in a chain: orders by hour, and sums of those hours. An hour ends in the second with what the first wrote.

Start a tracker (`tracker serve`), then run this: `python examples/chained_jobs.py [HOST:PORT]`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, ResultsOf, Tracking, wait_for_end

ORDERS = [  # a file each, in the order in which they arrive; the last row of a shop's hour is marked
    [("berlin", "2026-03-01 09:10", "tea", 3, False), ("lima", "2026-03-01 09:30", "void", 0, False)],
    [("berlin", "2026-03-01 09:50", "rum", 1, True)],
    [("lima", "2026-03-01 09:55", "void", 0, True)],  # an hour without any result: it ends in both jobs all the same
]
RESULTS = "shop string, window struct<start: timestamp, end: timestamp>, kind string, items bigint, epoch int"


def main(server: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        (path / "orders").mkdir()
        (path / "hourly").mkdir()
        hourly = start_hourly(spark, server, path)
        sums = start_sums(spark, server, path, hourly.job)
        for number, rows in enumerate(ORDERS):
            names = ("shop", "at", "kind", "items", "last")
            lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
            (path / ".arriving").write_text("\n".join(lines))
            (path / ".arriving").rename(path / "orders" / f"{number}.json")
            print(f"file {number} has arrived")
            hourly.process_all_available()
        hourly.stop()
        sums.process_all_available()
        for shop in ("berlin", "lima"):
            window = "2026-03-01T09:00:00Z/2026-03-01T10:00:00Z"
            ended = wait_for_end(sums.job, "hours", shop, window, timeout=60, server=server)
            print(f"{shop}: {ended.elements} results of the first job were read, of {ended.expected}")
        sums.process_all_available()
        sums.stop()
    spark.stop()


def start_hourly(spark: SparkSession, server: str, path: Path) -> Tracking:
    """Start the first job: items by shop, hour and kind, with receipts."""
    raw = spark.readStream.schema("shop string, at timestamp, kind string, items int, last boolean")
    tracking = Tracking(spark, job=f"hourly-{os.getpid()}", server=server)
    orders = tracking.source(
        raw.json(str(path / "orders")), "orders", scope="shop", window=("at", "1 hour"), front=Marks("last")
    )
    released = tracking.release(orders.where("kind <> 'void'"), ["kind"], aggs={"items": F.sum("items")})
    writer = released.writeStream.option("checkpointLocation", path / "cp1").receipts(path / "receipts")
    writer.start(path / "hourly")
    return tracking


def start_sums(spark: SparkSession, server: str, path: Path, job: str) -> Tracking:
    """Start the second job: it reads what the first has written, and ends what the first has written whole."""
    raw = spark.readStream.schema(RESULTS).parquet(str(path / "hourly"))
    tracking = Tracking(spark, job=f"sums-{os.getpid()}", server=server)
    front = ResultsOf(path / "receipts", job=job, segment="orders")
    hours = tracking.source(raw, "hours", scope="shop", window=("window.start", "1 hour"), front=front)

    def show(rows: DataFrame, epoch: int) -> None:
        print(f"released in batch {epoch}:")
        rows.show(truncate=False)

    released = tracking.release(hours, aggs={"kinds": F.count("*"), "items": F.sum("items")})
    released.writeStream.foreachBatch(show).option("checkpointLocation", path / "cp2").start()
    return tracking


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7654")
