"""Sinks: where results go when the place itself can see to it that a replay puts them there once.

A sink knows rows, and the query and epoch they are of; it knows nothing of trackers and substreams. It is called again
with the same rows, query and epoch when a batch is replayed, at whatever point the driver died.
"""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.counting.runs import Run
from spark_client.plan.fileforms import Told
from spark_client.plan.substreams import TRACKER
from spark_client.sinks.outputs import Counted


class Sink(Protocol):
    """What `….writeStream.sink(…)` takes.

    One that has an attribute ``reads_all = True`` reads all rows whenever it is called, so that what rides in their
    reading need not be read again. One that has a method ``check(rows)`` is called with rows of the same columns, and
    none of them, when the query starts: what it raises refuses the start.
    """

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        """Writes the rows of an epoch, so that writing them again changes nothing.

        Args:
            rows: the results of a release, or the rows of a tracked stream.
            query: the query's id: the same for as long as it keeps its checkpoint.
            epoch: of the query. The last results of a drain have a negative one, which is the same whenever they are
                written again.
        """
        ...


def check_sink(sink: Sink, schema: T.StructType, spark: SparkSession) -> None:
    """Lets a sink refuse what it could not write.

    Args:
        sink: it.
        schema: of the rows; `_tracker` does not go there.
        spark: the session.

    Raises:
        UsageError: of the sink.
    """
    check = getattr(sink, "check", None)
    if callable(check):
        own = T.StructType([field for field in schema.fields if field.name != TRACKER])
        check(spark.createDataFrame([], own))


class Sunk:
    """A sink as the output of a query."""

    concurrent = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.reads_all = bool(getattr(sink, "reads_all", False))

    def write(self, rows: DataFrame, run: Run, epoch: int, told: Told | None = None) -> Counted:  # noqa: ARG002
        self._sink.write(rows.drop(TRACKER), run.query, epoch)
        return {}

    def begun(self, query: str, epoch: int) -> bool:  # noqa: ARG002
        return False  # as of a function

    def sweep(self, query: str) -> None:
        pass
