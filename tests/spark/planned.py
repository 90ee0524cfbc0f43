"""A process that is given nothing but queries' plans: it makes the runtime of each, and processes all there is.

``python -m tests.spark.planned ROWS PLAN…``: ROWS is the directory that a source's rows are in.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_client.api.readers import ChannelReader, Reader, SourceReader, wake_ups
from spark_client.datasource import events
from spark_client.destinations.channel import Received
from spark_client.runtime.assembly import batch_query
from spark_client.runtime.queryplan import QueryPlan
from spark_client.runtime.running import Running
from spark_client.spark_internals.columns import loads
from tests.spark.conftest import session
from tests.spark.feed import Feed


def reader_of(plan: QueryPlan, spark: SparkSession, rows: Path) -> Reader:
    """What reads the plan's stream here."""
    source = plan.stream.input
    if isinstance(source, Received):
        return ChannelReader(spark, source.channel, None)
    return SourceReader(Feed(rows).stream(spark), source)  # type: ignore[arg-type]


def process(plan: QueryPlan, spark: SparkSession, rows: Path) -> None:
    """Processes all that there is for a plan's query."""
    tracked = batch_query(plan, spark)
    read = reader_of(plan, spark, rows).stream(wake_ups(plan, spark), tracked.counting.observed)
    writing = read.writeStream.foreachBatch(tracked.function).option("checkpointLocation", str(plan.checkpoint))
    running = Running(lambda: None)
    running.launch(spark, tracked, writing.start)
    for _ in range(2):  # what has ended comes with a batch of its own
        tracked.settle()
    running.check()
    running.stop(60)


def main() -> None:
    spark = session("planned")
    events.register(spark)
    rows, *plans = map(Path, sys.argv[1:])
    for path in plans:
        process(loads(path.read_bytes()), spark, rows)
    spark.stop()


if __name__ == "__main__":
    main()
