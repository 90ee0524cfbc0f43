"""A job on a watermark, left as it is, and a shadow that shows which of its windows closed too early, and by how much.

Start a tracker (`tracker serve`), then run this in the clone: `python -m examples.shadow [HOST:PORT] [PICTURE.svg]`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from examples.small import Arriving, spark_session
from spark_client import Marks, ShadowedJob, Tracking, draw_shadow_report, shadow_report

SCHEMA = "shop string, at timestamp, items int, last boolean"
ORDERS: list[list[tuple[str, str, int, bool]]] = [  # a file each; lima was cut off, and sends its evening next morning
    [("berlin", "2026-03-01 09:00", 3, False), ("lima", "2026-03-01 09:10", 2, False)],
    [("berlin", "2026-03-01 23:50", 1, True), ("lima", "2026-03-01 18:00", 4, False)],
    [("berlin", "2026-03-02 03:00", 1, False)],  # two hours after midnight the watermark closes both shops' days
    [("lima", "2026-03-01 22:00", 6, False), ("lima", "2026-03-01 23:00", 5, True)],
    [("berlin", "2026-03-02 23:00", 2, True), ("lima", "2026-03-02 23:10", 1, True)],
]


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("shop", F.window("at", "1 day")).agg(
        F.count("*").alias("orders"), F.sum("items").alias("items")
    )


def main(server: str, picture: str) -> int:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, spark_session() as spark:
        path = Path(directory)
        arriving = Arriving(spark, path / "orders", SCHEMA)

        # The job, which nobody touches.
        daily = counted(arriving.stream.withWatermark("at", "2 hours"))
        query = daily.writeStream.option("checkpointLocation", str(path / "daily cp")).start(str(path / "daily"))

        # Its shadow, in an application of its own where it is not an example.
        tracking = Tracking(spark, job=f"shadow-{os.getpid()}", server=server)
        seen = tracking.source(arriving.stream, "orders", scope="shop", window=("at", "1 day"), front=Marks("last"))
        counts = tracking.release(seen, aggs={"rows": F.count("*")}).writeStream
        counts = counts.option("checkpointLocation", path / "shadow cp").receipts(path / "receipts")
        counts.start(path / "counted")

        job = ShadowedJob(str(path / "daily cp"), notes=str(path / "batches.json"))
        for number, rows in enumerate(ORDERS):
            arriving.put(rows)
            query.processAllAvailable()
            tracking.process_all_available()
            job.note()
            print(f"file {number} has arrived", flush=True)
        query.stop()
        tracking.stop()

        written = spark.read.parquet(str(path / "daily"))
        result = written.select(
            F.col("shop").alias("scope"), F.col("window.end").alias("end_time"), F.col("orders").alias("rows")
        )
        raw = arriving.batch.withColumn("file", F.col("_metadata.file_path")).withColumn("scope", F.col("shop"))
        lost = job.lost(raw.withColumn("end_time", F.window("at", "1 day").end))
        late = [str(path / "shadow cp" / "tracker" / "late")]
        report = shadow_report(spark, job, str(path / "receipts"), result, late=late, lost=lost)
        report.select("scope", "end_time", "seen", "in_result", "lost", "minutes_late").show(truncate=False)
        if picture:
            draw_shadow_report(report, picture)
            print(f"{picture} is the picture")
        return int([tuple(row) for row in report.where("lost > 0").select("scope", "lost").collect()] != [("lima", 2)])


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    sys.exit(main(given.get(0, "127.0.0.1:7654"), given.get(1, "")))
