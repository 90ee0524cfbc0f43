"""A job as a user has it, far from this repository: `installed.py DIRECTORY [URL TRACKER]`.

It releases a shop's day once, in one run, and prints where it ran: its interpreter and package, and those of a task.
Tasks count if they can.
"""

import importlib.util
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import spark_client
from spark_client import Marks, Tracking

ROWS = [
    ("berlin", "2026-03-01 09:00", False),
    ("berlin", "2026-03-01 21:30", True),
    ("lima", "2026-03-01 09:00", False),
]


def place(_: int) -> list[str]:
    found = importlib.util.find_spec("spark_client")
    return [sys.executable, found.origin if found and found.origin else ""]


def main(home: Path, url: str | None = None, server: str | None = None) -> None:
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", 1)
    spark = (builder.remote(url) if url else builder).getOrCreate()
    if (artifact := home / "artifact.zip").exists():
        spark.addArtifacts(str(artifact), pyfile=True)
    [[task]] = spark.range(1).select(F.udf(place, "array<string>")("id")).collect()
    print(json.dumps({"driver": [sys.executable, spark_client.__file__], "task": task}), flush=True)
    (home / "orders").mkdir()
    lines = (json.dumps(dict(zip(("shop", "at", "last"), row, strict=True))) for row in ROWS)
    (home / "orders" / "1.json").write_text("\n".join(lines))
    tracking = Tracking(spark, job="shop", server=server, probe="driver" if url or not task[1] else "executors")
    raw = spark.readStream.schema("shop string, at timestamp, last boolean").json(str(home / "orders"))
    orders = tracking.source(raw, "orders", scope="shop", window=("at", "1 day"), front=Marks("last"))
    daily = tracking.release(orders, [], aggs={"orders": F.count("*")}).writeStream.trigger(availableNow=True)
    daily.option("checkpointLocation", str(home / "cp")).start(str(home / "out")).awaitTermination()
    tracking.stop()
    print(json.dumps([[*row] for row in spark.read.parquet(str(home / "out")).select("shop", "orders").collect()]))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
