"""Where a query's rows go: what the rest of it asks of an output, and what an output asks of a user's sink."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.errors import UsageError
from spark_client.fronts.front import Group
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.releases import AS_OF, COMPLETENESS, FINAL

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
        """Write rows, or find them written, and return what was sent into channels.

        Args:
            rows: of the epoch.
            batch: whose they are.
            layout: whose key columns are known to name each row's substream; None: they may have changed.
        """
        ...

    def begun(self, query: str, epoch: int) -> bool:
        """Return whether somebody else may have taken rows of an epoch of this query, so that it has to be brought to
        its end.

        Args:
            query: its id.
            epoch: that is not committed.
        """
        ...

    def sweep(self, query: str) -> None:
        """Remove what drivers of this query that were killed have left half written."""
        ...


class EarlyOutput(Protocol):
    """Shows early results until the final ones are there.

    Attributes:
        takes_all: whether each writing is of all that is open; else of what has changed since the last one.
    """

    takes_all: bool

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        """Show them, unless later ones or final ones are there.

        Args:
            rows: with the columns ``final`` and ``as_of``, and the hidden ``_scope`` and ``_key``.
            query: the query's id.
            as_of: the last batch whose rows are in them.
        """
        ...


class SetAside(Protocol):
    """Keeps rows that must not go on."""

    def put_bad(self, epoch: int, rows: DataFrame, number: int) -> None:
        """Keep so many rows of an epoch that belong to no substream."""
        ...

    def put_doubled(self, epoch: int, segment: str, rows: DataFrame) -> None:
        """Keep rows of an epoch that a channel would take for copies of others."""
        ...


class Sink(Protocol):
    """What `….writeStream.sink(…)` takes.

    For early results (`Tracking.release`, early) it also has a method ``write_early(rows, query, as_of)``, that puts
    rows where later ones of the same key, and final ones, are not yet.

    One that has an attribute ``reads_all = True`` reads all rows whenever it is called, so that what rides in their
    reading need not be read again. One that has a method ``check(rows)`` is called with rows of the same columns, and
    none of them, when the query starts: what it raises refuses the start. So is ``check_early(rows)`` for early
    results, and ``check_revised(rows)`` for those of a release with revisions.
    """

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        """Write the rows of an epoch, so that writing them again changes nothing.

        Args:
            rows: the results of a release, or the rows of a tracked stream.
            query: the query's id: the same for as long as it keeps its checkpoint.
            epoch: of the query. The last results of a drain have a negative one, which is the same whenever they are
                written again.
        """
        ...


def check_sink(sink: Sink, schema: T.StructType, spark: SparkSession) -> None:
    """Let a sink refuse what it could not write.

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


def check_early(sink: Sink, schema: T.StructType, spark: SparkSession) -> None:
    """Let a sink refuse early results: it cannot take them, or the final ones would not replace them.

    Args:
        sink: it.
        schema: of the rows.
        spark: the session.

    Raises:
        UsageError: of the sink; or it takes none.
    """
    if not callable(getattr(sink, "write_early", None)):
        raise UsageError(
            f"early results: {type(sink).__name__} has no method write_early(rows, query, as_of), which puts rows "
            "where no later and no final ones of the same key are: add one, or leave release(…, early=…) out"
        )
    check = getattr(sink, "check_early", None)
    if callable(check):
        check(spark.createDataFrame([], schema))


def check_revised(sink: Sink, schema: T.StructType, spark: SparkSession) -> None:
    """Let a sink refuse revisions that would replace what they add to.

    Args:
        sink: it.
        schema: of the rows, with the column ``revision``.
        spark: the session.

    Raises:
        UsageError: of the sink.
    """
    check = getattr(sink, "check_revised", None)
    if callable(check):
        check(spark.createDataFrame([], schema))


def check_replaced(what: str, columns: Collection[str], key: Collection[str]) -> None:
    """Refuse a key by which final results would not replace early ones.

    Args:
        what: has the key, for the message.
        columns: of its rows.
        key: columns.

    Raises:
        UsageError: a column is missing, or the key has one that differs between the two.
    """
    if not key:
        raise UsageError(f"{what}: early results need a key, by which the final ones replace them: Table(…, key=[…])")
    if missing := [name for name in (FINAL, AS_OF) if name not in columns]:
        raise UsageError(f"{what}: early results need the column {missing[0]!r} among {', '.join(columns)}: keep it")
    if apart := [name for name in key if name in (FINAL, AS_OF, COMPLETENESS)]:
        raise UsageError(
            f"{what}: key={apart[0]!r} differs between an early and the final result, which would stand side by side: "
            "leave it out of the key"
        )
