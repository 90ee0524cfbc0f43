"""A driver that writes a table of a lake, to be stopped for a while: `python -m tests.buckets.table_driver`, with a
tracker, a job, a feed, a place, a format, a directory and Hadoop's settings of the store.

It releases the rows of the feed by tenant and hour. The place, a URL, has its checkpoint and the table. Before the
second epoch that it writes is in the table, it makes a file in the directory, and waits a moment, if none is there yet.
It prints with which sentence it ends.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client import DeltaTable, IcebergTable, Marks, Tracking
from tests.lake.conftest import catalog_at
from tests.spark.conftest import session
from tests.spark.feed import SCHEMA

TABLE = "lake.shop.hourly"


class Pausing:
    """A sink that shows that its second epoch is about to be written."""

    completes = True
    _written = 0

    def __init__(self, sink: Any, shown: Path) -> None:
        self._sink = sink
        self._shown = shown

    def opened(self, kept: Any) -> Pausing:
        return Pausing(self._sink.opened(kept), self._shown)

    def check(self, rows: DataFrame) -> None:
        self._sink.check(rows)

    def write(self, rows: DataFrame, query: str, epoch: int, completed: Any = ()) -> None:
        if self._written == 1 and not self._shown.exists():
            self._shown.touch()
            time.sleep(3)  # meanwhile the test stops this process
        self._written += 1
        self._sink.write(rows, query, epoch, completed)


def main(address: str, job: str, feed: str, place: str, kind: str, home: str, *settings: str) -> None:
    spark = session("driver")
    for setting in settings:
        spark.sparkContext._jsc.hadoopConfiguration().set(*setting.split("=", 1))
    for name, value in catalog_at(f"{place}/warehouse", home).items():
        spark.conf.set(name, value)
    spark.sql("create namespace if not exists lake.shop")
    tracking = Tracking(spark, job, address)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(feed)
    source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    hourly = tracking.release(source, ["kind"], aggs={"n": F.count("*")})
    sink = Pausing(DeltaTable(f"{place}/table") if kind == "delta" else IcebergTable(TABLE), Path(home) / "shown")
    hourly.writeStream.sink(sink).option("checkpointLocation", f"{place}/cp").start()
    try:
        tracking.process_all_available()
        tracking.stop()
    except Exception as error:
        print(f"ended with: {error}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
