"""The application: it has no JVM, starts two queries over Spark Connect, and ends; the queries go on.

    departures ──▶ clean ──▶ channel ──▶ daily ──▶ a row for each airport, scheduled day and carrier
                             (s3a://)              in a Delta table and an Iceberg table

python -m examples.lake.application CONNECT TRACKER DIRECTORY PLACE: the directory has the departures, the timetable and
the planes; the place, a URL, gets the checkpoints, the channel and the Delta table.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from examples.flights.pipeline import figures
from examples.flights.replay import DEPARTURES
from spark_client import Schedule, Tracking

EVERY = "1 second"
NAMESPACE = "lake.flights"


def main(connect: str, tracker: str, directory: str, place: str) -> None:
    spark = SparkSession.builder.remote(connect).getOrCreate()
    spark.sql(f"create namespace if not exists {NAMESPACE}")
    tracking = Tracking(spark, job="flights", server=tracker)
    departures = spark.readStream.schema(DEPARTURES).option("maxFilesPerTrigger", 4).parquet(f"{directory}/departures")

    flights = tracking.source(
        departures,
        "departures",
        scope="origin",
        window=("sched_dep", "1 day"),
        identity=["row_id"],
        front=Schedule(spark.read.parquet(f"{directory}/timetable.parquet")),
    )
    channel = tracking.channel("flights", f"{place}/channel")

    def seated(rows: DataFrame) -> DataFrame:
        """Look up the seats, in the session of whichever process has the batch."""
        planes = rows.sparkSession.read.parquet(f"{directory}/planes.parquet")
        return rows.where("tailnum is not null").join(F.broadcast(planes), "tailnum", "left")

    clean = flights.transform(seated).writeStream
    clean = clean.channel(channel).option("checkpointLocation", f"{place}/checkpoints/clean")

    daily = tracking.release(tracking.receive(channel), ["carrier"], aggs=dict(figures()))
    tables = tracking.write_together(
        {
            "daily": {
                "delta": daily.writeStream.format("delta").option("path", f"{place}/daily"),
                "iceberg": daily.writeStream.format("iceberg").option("path", f"{NAMESPACE}.daily"),
            }
        }
    ).option("checkpointLocation", f"{place}/checkpoints/daily")

    clean.trigger(processingTime=EVERY).start()
    tables.trigger(processingTime=EVERY).start()
    os._exit(0)  # nobody stops the session


if __name__ == "__main__":
    main(*sys.argv[1:])
