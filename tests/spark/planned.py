"""A process that is given nothing but queries' plans: it makes the runtime of each, and processes all there is.

``python -m tests.spark.planned HOW ROWS PLAN…``: HOW is ``streamed``, by queries of Spark's, or ``driven``, batch by
batch without any; ROWS is the directory that a source's rows are in.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path

from pyspark.sql import SparkSession

from spark_client.api.readers import ChannelReader, Reader, SourceReader
from spark_client.datasource import events
from spark_client.datasource.streams import await_commits
from spark_client.destinations.channel import Received
from spark_client.runtime.queryplan import QueryPlan
from spark_client.runtime.served import PlannedQuery
from spark_client.spark_internals.columns import loads
from tests.spark.conftest import session
from tests.spark.feed import SCHEMA, Feed


def reader_of(plan: QueryPlan, spark: SparkSession, rows: Path) -> Reader:
    """Return the reader of the plan's stream here."""
    source = plan.stream.input
    if isinstance(source, Received):
        return ChannelReader(spark, source.channel, None)
    return SourceReader(Feed(rows).stream(spark), source)  # type: ignore[arg-type]


def await_reports(plan: QueryPlan) -> None:
    """Wait until the runtime's own thread has reported what is committed."""
    with plan.settings.trackers.client() as client:
        await_commits(client, plan.settings.job, plan.checkpoint, 600)


def release(function: PlannedQuery) -> None:
    """Let the runtime release what has ended, between two batches."""
    assert function._query is not None
    while function._query.releases and not function._query.release_ended():
        time.sleep(0.01)


def streamed(plan: QueryPlan, spark: SparkSession, rows: Path) -> None:
    """Process all that there is by a query of Spark's, whose batches are given to the plan."""
    read = reader_of(plan, spark, rows).stream(plan.counting().observed)
    function = PlannedQuery(plan)
    writing = read.writeStream.foreachBatch(function).option("checkpointLocation", str(plan.checkpoint))
    query = writing.start()
    query.processAllAvailable()
    await_reports(plan)
    release(function)
    query.stop()


def driven(plan: QueryPlan, spark: SparkSession, rows: Path) -> None:
    """Process a batch for each file, and commit each as Spark does."""
    function = PlannedQuery(plan)
    checkpoint = Path(str(plan.checkpoint))
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    files = [str(file) for file in sorted(rows.glob("*.json"))]
    batches = [spark.read.schema(SCHEMA).json(file) for file in files]
    for epoch, batch in enumerate(batches):
        (checkpoint / "offsets" / str(epoch)).touch()
        function(batch, epoch)
        (checkpoint / "commits" / str(epoch)).touch()
        await_reports(plan)
    release(function)


def main() -> None:
    spark = session("planned")
    events.register(spark)
    how, rows, *plans = sys.argv[1:]
    for path in plans:
        {"streamed": streamed, "driven": driven}[how](loads(Path(path).read_bytes()), spark, Path(rows))
    spark.stop()


if __name__ == "__main__":
    main()
