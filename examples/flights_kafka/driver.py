"""The driver of the pipeline, as a process that can be killed: runs until the job is drained.

It takes its checkpoints up where the last one left them. Started by `examples.flights_kafka.demo`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from examples.flights import replay
from examples.flights.spark import local_session
from examples.flights_kafka import pipeline
from examples.services import jars
from spark_client import TrackingError


def main() -> int:
    """Run the command line; return 1 when a query has failed, so that the driver has to be started again."""
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("tracker", "kafka", "postgres", "directory"):
        parser.add_argument(f"--{option}", required=True)
    given = parser.parse_args()
    directory = Path(given.directory)
    with local_session(directory, {"spark.jars": jars.connector()}) as spark:
        departures = spark.readStream.schema(replay.DEPARTURES).option("maxFilesPerTrigger", 4)
        try:
            tracking = pipeline.start(
                spark,
                given.tracker,
                given.kafka,
                given.postgres,
                departures.parquet(str(directory / "replay" / "departures")),
                spark.read.parquet(str(directory / "timetable.parquet")),
                spark.read.parquet(str(directory / "planes.parquet")),
                directory,
            )
            tracking.await_drained()
        except TrackingError as error:
            print(f"driver: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
