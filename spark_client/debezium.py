"""Change data as Debezium writes it: which promises its envelope and its topic of transactions make.

>>> from spark_client import debezium
>>> rows = raw.where(debezium.in_snapshot()).withColumn("table", F.col("source.table"))                 # doctest: +SKIP
>>> tracking.source(rows, "snapshot", substream="table", front=debezium.snapshot_end())                # doctest: +SKIP

A snapshot's first table stays open if it has one row, which has the mark ``first`` alone, and so does one whose last
row a compacted topic has lost: see `snapshot_end` for what to do.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, check_present, check_types, column
from spark_client.fronts.marks import Marks
from spark_client.windows.belonging import Condition, partition_within

__all__ = ["in_snapshot", "snapshot_end", "transaction_counts"]

_LAST: Final = ("last", "last_in_data_collection")
_SNAPSHOT: Final = ("true", "first", "first_in_data_collection", *_LAST)


class SnapshotEnd(Marks):
    """A table's snapshot ends with the row that Debezium marks as its last: see `snapshot_end`."""

    def __init__(self, source: ColumnOrName, partition: ColumnOrName) -> None:
        super().__init__(F.coalesce(_snapshot(source).isin(*_LAST), F.lit(False)))
        self._source = source
        self._partition = partition

    def __repr__(self) -> str:
        return f"snapshot_end({self._source!r}, {self._partition!r})"

    def conditions(self, rows: DataFrame) -> list[Condition]:
        return [partition_within(rows, self._partition, range(1), "snapshot_end(partition)")]


def in_snapshot(source: ColumnOrName = "source") -> Column:
    """Return whether a change is a row of an initial snapshot, not of one by increments.

    Args:
        source: the field ``source`` of the envelope.
    """
    return F.coalesce(_snapshot(source).isin(*_SNAPSHOT), F.lit(False))


def snapshot_end(source: ColumnOrName = "source", partition: ColumnOrName = "partition") -> SnapshotEnd:
    """Return a front for the snapshot of tables: trusts that a table's rows come in order, and that the snapshot ran
    once.

    The substream is the table. It ends with the row whose ``source.snapshot`` is ``last_in_data_collection``, or
    ``last`` for the last table. The order of a topic holds within a partition: a row of another partition than 0
    belongs to no substream. A table without rows has no such row, and no substream. A snapshot that the connector began
    again sends its rows twice: read its topic from there.

    Two kinds of tables stay open. Of the first table of a snapshot, Debezium marks the first row as ``first``, whatever
    else it is: if the table has one row, no row has a mark of the last one. ``first`` is no end, since it begins
    longer tables in the same way. And a topic that is compacted may have lost the last row, if its key was changed
    later. Finish the source when all has been read (`Tracking.finish`), or have a front that ends with the topics'
    offsets instead: `EndOffsets`.

    Args:
        source: the field ``source`` of the envelope.
        partition: the column with the partition of the topic.

    >>> rows = raw.where(debezium.in_snapshot()).withColumn("table", F.col("source.table"))    # doctest: +SKIP
    >>> tracking.source(rows, "snapshot", substream="table", front=debezium.snapshot_end())   # doctest: +SKIP
    """
    return SnapshotEnd(source, partition)


def transaction_counts(metadata: DataFrame, collection: str | None = None) -> DataFrame:
    """Count for `Tracking.expect`: trusts the number of events that the end of each transaction has.

    Debezium writes them into a topic of its own (``provide.transaction.metadata``). The substream of a change is then
    ``transaction.id``. Rows may come in any order, from any number of partitions; a count that comes twice changes
    nothing.

    Args:
        metadata: the topic's values, parsed: ``status``, ``id``, ``event_count``, and for one collection
            ``data_collections`` with ``data_collection`` and ``event_count``.
        collection: the changes that the source reads are of this one, as Debezium calls it (``inventory.orders``): 0 of
            transactions that have none of it. None: of all.

    Returns:
        ``id`` and ``changes`` of the transactions that have ended.

    Raises:
        UsageError: a field is missing.

    >>> def ends(batch, epoch):                                                               # doctest: +SKIP
    ...     tracking.expect(changes, debezium.transaction_counts(batch))
    """
    needed = ["status", "id", "event_count", *([] if collection is None else ["data_collections"])]
    advice = (
        "Give the values of the topic of transactions, parsed with from_json: status string, id string, event_count "
        "long, data_collections array<struct<data_collection: string, event_count: long>>"
    )
    check_present(needed, metadata.columns, "transaction_counts: column", advice)
    count = F.col("event_count")
    if collection is not None:
        arrays = [metadata.schema["data_collections"]]
        reason = "which is no array: parse it with from_json"
        check_types(arrays, lambda kind: isinstance(kind, T.ArrayType), "transaction_counts", reason)
        own = F.filter("data_collections", lambda each: each["data_collection"] == collection)
        count = F.aggregate(own, F.lit(0).cast("long"), lambda so_far, each: so_far + each["event_count"])
        count = F.coalesce(count, F.lit(0).cast("long"))
    ended = metadata.where("status = 'END'")
    return ended.select("id", count.cast("long").alias("changes")).distinct()


def _snapshot(source: ColumnOrName) -> Column:
    return F.lower(column(source)["snapshot"].cast("string"))
