"""Where a query's rows go: what the rest of it asks of an output, and what an output asks of a user's sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.plan.fronts import Group
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.substreams import TRACKER

BatchFunction: TypeAlias = Callable[[DataFrame, int], object]
Counted: TypeAlias = Mapping[str, list[Group]]  #: by segment: what was sent on it


class BatchId(NamedTuple):
    """One attempt at a batch.

    Attributes:
        query: the query's id, the same for as long as it keeps its checkpoint.
        run: the run's.
        epoch: the batch's number; a negative one is a drain's, after the last batch.
    """

    query: str
    run: str
    epoch: int


class Output(Protocol):
    """Takes the rows of one epoch.

    Attributes:
        concurrent: whether it may be written to while the rest of the batch runs, by another thread.
        reads_all: whether it reads all rows that it is given; else nobody knows how many.
    """

    concurrent: bool
    reads_all: bool

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        """Writes them, or finds them written; says what was sent into channels.

        Args:
            rows: of the epoch.
            batch: whose they are.
            layout: whose key columns are known to name each row's substream; None: they may have changed.
        """
        ...

    def begun(self, query: str, epoch: int) -> bool:
        """Whether somebody else may have taken rows of an epoch of this query, so that it has to be brought to its end.

        Args:
            query: its id.
            epoch: that is not committed.
        """
        ...

    def sweep(self, query: str) -> None:
        """Removes what drivers of this query that were killed have left half written."""
        ...


class SetAside(Protocol):
    """Keeps rows that must not go on."""

    def put_bad(self, epoch: int, rows: DataFrame, number: int) -> None:
        """Keeps so many rows of an epoch that belong to no substream."""
        ...

    def put_doubled(self, epoch: int, segment: str, rows: DataFrame) -> None:
        """Keeps rows of an epoch that a channel would take for copies of others."""
        ...


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
