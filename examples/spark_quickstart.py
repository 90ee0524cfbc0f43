"""Orders of two shops, counted by shop, day and kind, and released when a shop's day is over: shop by shop.

Run it: `python examples/spark_quickstart.py [SERVER]`. The tracker runs in this program, unless another one is named.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking

ORDERS = [  # a file each, in the order in which they arrive
    [("berlin", "2026-03-01 09:00", "tea", 3, False), ("lima", "2026-03-01 23:10", "tea", 2, False)],
    [("berlin", "2026-03-02 08:00", "rum", 1, False)],  # the next day begins; yesterday goes on
    [("berlin", "2026-03-01 21:30", "rum", 4, True)],  # berlin's Sunday is over, whatever lima does
    [("lima", "2026-03-01 23:50", "tea", 5, True)],
]


def main(server: str | None) -> None:
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
        reader = spark.readStream.schema("shop string, at timestamp, kind string, items int, last boolean")
        raw = reader.json(str(path / "orders"))

        tracking = Tracking(spark, job=f"quickstart-{os.getpid()}", server=server)
        orders = tracking.source(raw, "orders", scope="shop", window=("at", "1 day"), front=Marks("last"))
        daily = tracking.release(orders, ["kind"], aggs={"orders": F.count("*"), "items": F.sum("items")})

        def show(rows: DataFrame, epoch: int) -> None:
            print(f"released in batch {epoch}:")
            rows.orderBy("shop", "kind").show(truncate=False)

        daily.writeStream.foreachBatch(show).option("checkpointLocation", path / "checkpoint").start()
        for number, rows in enumerate(ORDERS):
            names = ("shop", "at", "kind", "items", "last")
            lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
            (path / ".arriving").write_text("\n".join(lines))
            (path / ".arriving").rename(path / "orders" / f"{number}.json")
            print(f"file {number} has arrived")
            tracking.process_all_available()
        print("drained: what is open ends with what was read")
        tracking.drain(timeout=60)
        tracking.stop()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
