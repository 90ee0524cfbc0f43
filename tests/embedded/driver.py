"""A driver that runs no service, to be killed: `python -m tests.embedded.driver DIRECTORY`.

It releases the rows of DIRECTORY/in by tenant and hour, a file each batch, and ends once all that is there is released.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812

from spark_client import Marks, Tracking
from tests.spark.conftest import session
from tests.spark.feed import SCHEMA


def main(directory: Path) -> None:
    spark = session("embedded")
    tracking = Tracking(spark, job="shop")
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(directory / "in"))
    source = tracking.source(rows, "in", scope="tenant", window=("ts", "1 hour"), front=Marks("is_last"))
    hourly = tracking.release(source, ["kind"], aggs={"n": F.count("*")})
    hourly.writeStream.option("checkpointLocation", directory / "cp").start(directory / "out")
    tracking.process_all_available()
    tracking.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
