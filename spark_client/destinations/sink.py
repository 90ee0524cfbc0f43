"""Users' own code as a destination: a function; or a sink, an object that puts the rows of an epoch somewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, check_present
from spark_client.destinations.destination import HIDDEN, EarlyOutput, Place
from spark_client.errors import UsageError
from spark_client.plan.batches import BatchId, Counted
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.releases import AS_OF, FINAL, REVISION, ReleasePlan
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import COMPLETENESS

BatchFunction: TypeAlias = Callable[[DataFrame, int], object]


class FunctionDestination(Place):
    """A function of the user's, as for ``foreachBatch``. It is called again when an epoch is replayed."""

    def __init__(self, function: BatchFunction) -> None:
        self.function = function

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        self.function(rows.drop(TRACKER), batch.epoch)
        return {}

    def early(self) -> EarlyOutput:
        return self

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:  # noqa: ARG002
        """Call the function, which looks at the column ``final``."""
        self.function(rows.drop(*HIDDEN), as_of)


class Sink(Protocol):
    """Sink for `….writeStream.sink(…)`.

    For early results (`Tracking.release`, early) it also has a method ``write_early(rows, query, as_of)``, that puts
    rows where later ones of the same key, and final ones, are not yet.

    One that has an attribute ``completes = True`` takes a fourth argument, ``completed``: the substreams that have all
    of their results with this epoch. It is called for an epoch that completes something and has no rows, too.

    One that has an attribute ``reads_all = True`` reads all rows whenever it is called, so that what rides in their
    reading need not be read again. One that has a method ``check(rows)`` is called with rows of the same columns, and
    none of them, when the query starts: what it raises refuses the start. So is ``check_early(rows)`` for early
    results, and ``check_revised(rows)`` for those of a release with revisions. ``check_rest(rows)`` is called so before
    an epoch is written that has the rest of a substream, of which a drain or a rule has brought a result before.
    """

    def write(self, rows: DataFrame, query: str, epoch: int) -> None:
        """Write the rows of an epoch, so that writing them again changes nothing.

        Args:
            rows: the results of a release, or the rows of a tracked stream.
            query: the query's id: the same for as long as it keeps its checkpoint.
            epoch: of the query. Results that are released between two batches have a negative one, lower each time, and
                the same whenever they are written again.
        """
        ...


class SinkDestination(Place):
    """A user's sink."""

    def __init__(self, sink: Sink) -> None:
        self.sink: Any = sink
        self.reads_all = bool(getattr(sink, "reads_all", False))
        self.completes = bool(getattr(sink, "completes", False))

    def at(self, checkpoint: Folder) -> SinkDestination:
        return SinkDestination(opened(self.sink, checkpoint))

    def check(self, schema: T.StructType, release: ReleasePlan | None, spark: SparkSession) -> None:
        check_sink(self.sink, schema, spark)
        if release is not None and release.early is not None:
            if self.early() is None:
                raise UsageError(
                    f"early results: {type(self.sink).__name__} has no method write_early(rows, query, as_of), which "
                    "puts rows where no later and no final ones of the same key are: add one, or leave "
                    "release(…, early=…) out"
                )
            check_sink(self.sink, schema, spark, "check_early")
        if release is not None and release.revisions:
            check_sink(self.sink, schema, spark, "check_revised")

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:  # noqa: ARG002
        if batch.rest:
            check_sink(self.sink, rows.schema, rows.sparkSession, "check_rest")
        completed = [batch.completed] if self.completes else []
        self.sink.write(rows.drop(TRACKER), batch.query, batch.epoch, *completed)
        return {}

    def early(self) -> EarlyOutput | None:
        return self if callable(getattr(self.sink, "write_early", None)) else None

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        self.sink.write_early(rows.drop(*HIDDEN), query, as_of)


def opened(sink: Any, checkpoint: Folder) -> Any:
    """Return a sink as the query of a checkpoint writes to it: a table of a lake keeps notes there.

    Args:
        sink: any; or a folder, or None, which are given back.
    """
    method = getattr(sink, "opened", None)
    return method(checkpoint / "tracker") if callable(method) else sink


def check_writes(sink: object, what: str, instead: str = "") -> None:
    """Refuse what is no sink.

    Args:
        what: the method that it was given to.
        instead: a clause at the end of the message, for places that are no sinks.
    """
    if not callable(getattr(sink, "write", None)):
        raise UsageError(
            f"{what}({sink!r}): give an object with a method write(rows, query, epoch), such as DeltaTable(…){instead}"
        )


def check_sink(sink: Sink, schema: T.StructType, spark: SparkSession, method: str = "check") -> None:
    """Let a sink refuse what it could not write, if it has a method for that.

    Args:
        schema: of the rows; `_tracker` does not go there.
        spark: makes the rows, of which there are none.
        method: of the sink, called with them.
    """
    check = getattr(sink, method, None)
    if callable(check):
        own = T.StructType([field for field in schema.fields if field.name != TRACKER])
        check(spark.createDataFrame([], own))


def check_replaced(what: str, columns: Collection[str], key: Collection[str]) -> None:
    """Refuse a key by which final results would not replace early ones.

    Args:
        what: has the key, for the message.
    """
    if not key:
        raise UsageError(f"{what}: early results need a key, by which the final ones replace them: Table(…, key=[…])")
    check_present((FINAL, AS_OF), columns, f"{what}: early results: column", "Keep it")
    if apart := [name for name in key if name in (FINAL, AS_OF, COMPLETENESS)]:
        raise UsageError(
            f"{what}: key={apart[0]!r} differs between an early and the final result, which would stand side by side: "
            "leave it out of the key"
        )


#: Columns by which results of one substream stand side by side, and what would become of one without them.
_APART: Final = {
    REVISION: "a revision has only the rows that came late, and would take the place of the result that it adds to. "
    "Add the column to the key",
    COMPLETENESS: "a drain or a rule has ended a substream early, and the rest of it would take the place of the "
    "result from then. Give release(…, completeness=True), and add the column to the table and to the key",
}


def check_summed(what: str, columns: Collection[str], key: Collection[str], apart: str = REVISION) -> None:
    """Refuse a key by which a result would replace another one that it adds to.

    Args:
        what: has the key, for the message.
        apart: the column that tells them apart: of revisions, or `COMPLETENESS` of the rest of a substream.
    """
    # Of early results one replaces the other, whatever they are of; the documentation tells so.
    concerned = REVISION in columns if apart == REVISION else FINAL not in columns
    if key and concerned and apart not in key:
        raise UsageError(
            f"{what}: key={list(key)} lacks {apart!r}: {_APART[apart]}, and sum over it where the table is read"
        )
