"""A finished shop's day in one query: sums, each shop's best orders, and a bill of every row.

While a day is open, early results show how it stands. In the end the ledger accounts for each row.

Start a tracker (`tracker serve`), then run this in the clone: `python -m examples.results [HOST:PORT]`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812

from examples.small import Arriving, spark_session
from spark_client import Marks, Tracking, ledger

SCHEMA = "shop string, at timestamp, id string, kind string, items int, last boolean"
ORDERS: list[list[tuple[str, str, str, str, int, bool]]] = [  # a file each, in the order in which they arrive
    [("berlin", "2026-03-01 09:00", "b1", "tea", 3, False), ("berlin", "2026-03-01 10:00", "b2", "rum", 9, False)],
    [("lima", "2026-03-01 23:10", "l1", "tea", 2, False), ("berlin", "2026-03-01 11:00", "b3", "test", 5, False)],
    [("berlin", "2026-03-01 21:30", "b4", "tea", 4, True)],  # berlin's day is over
    [("berlin", "2026-03-01 22:00", "b5", "tea", 7, False)],  # an order that comes too late for it
    [("lima", "2026-03-01 23:50", "l2", "rum", 5, True)],
]


def two_best(orders: pd.DataFrame) -> pd.DataFrame:
    """Apply any function to all rows of a day: here its largest orders."""
    return orders.nlargest(2, "items")[["id", "items"]]


def main(server: str) -> int:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, spark_session() as spark:
        path = Path(directory)
        arriving = Arriving(spark, path / "orders", SCHEMA)
        tracking = Tracking(spark, job=f"results-{os.getpid()}", server=server)
        source = tracking.source(
            arriving.stream, "orders", scope="shop", window=("at", "1 day"), front=Marks("last"), counted=True
        )
        orders = source.where("kind <> 'test'")
        sums = tracking.release(
            orders, aggs={"orders": F.count("*"), "items": F.sum("items"), "kinds": F.count_distinct("kind")},
            early="0 seconds",
        )  # fmt: skip
        best = tracking.release(orders, columns=["id", "items"]).applyInPandas(two_best, "id string, items int")
        outputs = {
            "sums": sums.writeStream.option("path", path / "sums").receipts(path / "receipts"),
            "best": best.writeStream.option("path", path / "best"),
        }
        checkpoint = path / "checkpoint"
        tracking.write_together(outputs).option("checkpointLocation", checkpoint).start()
        for number, rows in enumerate(ORDERS):
            arriving.put(rows)
            tracking.process_all_available()
            print(f"file {number} has arrived", flush=True)
            if number == 1:
                print("so far, of the days that are open:")
                tracking.early(str(checkpoint), release="sums").select("shop", "orders", "items", "final").show()
        tracking.drain(timeout=300)
        tracking.stop()

        def table(name: str, *columns: str) -> list[tuple[Any, ...]]:
            return sorted(tuple(row) for row in spark.read.parquet(str(path / name)).select(*columns).collect())

        made = {"sums": table("sums", "shop", "orders", "items", "kinds"), "best": table("best", "shop", "id", "items")}
        for name, found in made.items():
            print(f"{name}: {found}")
        print("what became of each row:")
        late = [str(checkpoint / "tracker" / "late")]
        bill = ledger(spark, str(path / "receipts"), late=late)
        bill.select("scope", "sent", "released", "filtered", "late", "given_up", "quarantined", "missing").show()
        good = arriving.batch.where("kind <> 'test' and id <> 'b5'").groupBy("shop")
        batch = good.agg(F.count("*"), F.sum("items"), F.count_distinct("kind"))
        return int(made["sums"] != sorted(tuple(row) for row in batch.collect()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7654"))
