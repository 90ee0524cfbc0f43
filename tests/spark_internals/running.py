"""Queries that take what is there and end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery


def run(rows: DataFrame, checkpoint: Path, batch: Callable[[DataFrame, int], object]) -> StreamingQuery:
    """Run a query over all that its sources have; a file of a `Feed` is a batch.

    Args:
        rows: a stream.
        checkpoint: the query's.
        batch: is given the rows of each batch and its number.

    Raises:
        StreamingQueryException: the query has failed.
    """

    def process(taken: DataFrame, epoch: int) -> None:
        batch(taken, epoch)

    writer = rows.writeStream.foreachBatch(process)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query
