"""Receipts: one row for each substream that has ended on a release's segment, in a table of the user's.

A receipt has what the tracker counted, what the release took in, from which batches and offsets, and what it made of
it, so that all of it can be checked against source and sink. It is written once, after the results and with the same
epoch. This module must never look at rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.counting.runs import Run
from spark_client.destinations.sink import Sink, check_sink
from spark_client.release.inbox import Act
from spark_client.release.parts import RowTally
from spark_client.release.state import PartialState
from spark_client.spark_internals.checkpoints import planned
from spark_client.storage.folder import Folder
from spark_client.windows.eventtime import micros_of
from spark_client.windows.substreams import Substream
from tracker.client import Ended, Event, Late

RECEIPT_SCHEMA: Final = T.StructType(
    [
        T.StructField("job", T.StringType()),
        T.StructField("deployment", T.StringType()),
        T.StructField("segment", T.StringType()),  # that the release reads
        T.StructField("scope", T.StringType()),
        T.StructField("name", T.StringType()),
        T.StructField("end_time", T.TimestampType()),  # of a window
        T.StructField("revision", T.LongType()),  # 0; 1, 2, … of what was reopened
        T.StructField("reason", T.StringType()),  # a tracker's Reason; LATE: see the docs
        T.StructField("elements", T.LongType()),  # the tracker's count: sent on this segment
        T.StructField("expected", T.LongType()),  # how many its sources had said there would be; null: they had not
        T.StructField("by_drain", T.BooleanType()),  # only a drain closed it: more may follow in the next deployment
        T.StructField("before", T.LongType()),  # elements of it that earlier deployments have released; 0: none
        T.StructField("in_flight", T.LongType()),  # the tracker's: lost sight of; 0 if COMPLETE
        T.StructField("upstream", T.StringType()),  # the tracker's, as JSON: sent on each segment that leads here
        T.StructField("rows", T.LongType()),  # taken in by the release
        T.StructField("xor", T.LongType()),  # of their labels; null: they have none that last
        T.StructField("late", T.LongType()),  # rows set aside when it ended; those of later epochs are not in it
        T.StructField("bad", T.LongType()),  # rows the query has set aside so far, in all, that belong to no substream
        T.StructField("results", T.LongType()),  # result rows
        T.StructField("first_epoch", T.LongType()),  # in which rows were taken in
        T.StructField("last_epoch", T.LongType()),
        T.StructField("epoch", T.LongType()),  # that wrote the results
        T.StructField("offsets_from", T.StringType()),  # of the source before the first epoch; one line a source
        T.StructField("offsets_to", T.StringType()),  # after the last one
        T.StructField("first_seen", T.TimestampType()),  # when the first epoch was planned
        T.StructField("last_seen", T.TimestampType()),
        T.StructField("ended", T.TimestampType()),  # the tracker's
        T.StructField("released", T.TimestampType()),  # when the epoch that wrote the results was planned
        T.StructField("query", T.StringType()),  # its id
        T.StructField("seq", T.LongType()),  # of the event in the job's log that ended it
        T.StructField("kept", T.LongType()),  # rows that the release's own steps have made of them: in the results
        T.StructField("given_up", T.BooleanType()),  # the release is of rows that were given up
        T.StructField("origins", T.StringType()),  # as JSON: the segments on which its rows entered the job
        T.StructField("upstream_in_flight", T.LongType()),  # the tracker's: lost sight of on what leads here
        T.StructField("trusts", T.StringType()),  # as JSON: what the end rests on, by origin
    ]
)

_TYPES: Final = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_(), "timestamp": pa.int64()}
_AT_ONCE: Final = 10_000  #: receipts that are made before they are written, about two kilobytes each
_TIME: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class End:
    """End of a substream, as a release acts on it.

    Attributes:
        event: the tracker's: `Ended`; or `Late`, of a revision that was reopened when all sources had finished.
        substream: that has ended, whichever revision of it.
        revision: 0, or the revision's number.
        tally: of the rows that the result is made of.
        late: how many rows of it are set aside in the same epoch.
        before: elements of it that earlier deployments have released, when a drain or a rule ended it.
    """

    event: Event
    substream: Substream
    revision: int
    tally: RowTally
    late: int
    before: int = 0


class Receipts:
    """Place of a release's receipts.

    Args:
        to: a folder, which gets Parquet files with one directory ``query=…/epoch=N`` for each epoch that ended
            something, so that several queries may share it; or a sink.
        given_up: whether the release is of rows that were given up.
        origins: the segments on which its rows entered the job, and what the promise of each trusts.
    """

    def __init__(
        self,
        to: Folder | Sink,
        checkpoint: Folder,
        given_up: bool,
        origins: Mapping[str, str],
    ) -> None:
        self._own = {"given_up": given_up, "origins": json.dumps([*origins]), "trusts": json.dumps({**origins})}
        self._to = to
        self._checkpoint = checkpoint
        if isinstance(to, Folder):
            to.check("the path of the receipts,")

    def check(self, spark: SparkSession) -> None:
        """Let a sink refuse what it could not write."""
        if not isinstance(self._to, Folder):
            check_sink(self._to, RECEIPT_SCHEMA, spark)

    def write(
        self,
        ends: Sequence[End],
        results: Mapping[tuple[Substream, int], int],
        state: PartialState,
        run: Run,
        act: Act,
        spark: SparkSession,
    ) -> None:
        """Write the receipts of an act, so that writing them again changes nothing.

        Args:
            ends: that have been acted on.
            results: how many result rows were written, by substream and revision.
            state: the release's, with what has ended still in it.
        """
        if not ends:
            return
        epoch = act.epoch
        released = act.at if act.batch is None else planned(self._checkpoint, epoch).at or act.at
        own = {**self._own, "job": run.job, "query": run.query, "epoch": epoch, "released": released}

        def table(some: Sequence[End]) -> pa.Table:
            return _table(
                [
                    {
                        **own,
                        "results": results.get((end.substream, end.revision), 0),
                        **_of(end),
                        **_taken_in(end, state),
                    }
                    for end in some
                ]
            )

        if not isinstance(self._to, Folder):
            # Under a name of their own: the results may go to the same database, under the same epoch.
            self._to.write(spark.createDataFrame(table(ends)), f"{run.query}.receipts", epoch)
            return
        in_folder = ["query", "epoch"]  # in the folders' names
        own_folder = self._to / f"query={run.query}"

        def write(folder: Folder) -> list[str]:
            buffer = pa.BufferOutputStream()
            schema = table([]).drop_columns(in_folder).schema
            with pq.ParquetWriter(buffer, schema) as file:
                for first in range(0, len(ends), _AT_ONCE):
                    file.write_table(table(ends[first : first + _AT_ONCE]).drop_columns(in_folder))
            folder.put("receipts.parquet", buffer.getvalue().to_pybytes())
            return ["receipts.parquet"]

        own_folder.publish(f"epoch={epoch}", write)

    def sweep(self, query: str) -> None:
        """Remove what drivers of this query that were killed have left half written."""
        if isinstance(self._to, Folder):
            (self._to / f"query={query}").sweep()


def _of(end: End) -> dict[str, object]:
    """Return what the tracker has said."""
    kind = end.event.kind
    if isinstance(kind, Ended):
        outcome = {
            "reason": str(kind.reason),
            "elements": kind.elements,
            "in_flight": kind.in_flight,
            "expected": kind.expected,
            "by_drain": kind.by_drain,
        }
    else:
        assert isinstance(kind, Late)
        outcome = {"reason": "LATE", "elements": kind.sent, "in_flight": 0, "expected": None, "by_drain": False}
    return {
        **outcome,
        "deployment": end.event.deployment,
        "segment": kind.segment,
        "scope": end.substream.scope,
        "name": end.substream.name,
        "end_time": end.substream.end_time,
        "revision": end.revision,
        "before": end.before,
        "ended": micros_of(end.event.at),
        "seq": end.event.seq,
    }


def _taken_in(end: End, state: PartialState) -> dict[str, object]:
    """Return what the release has counted, and in which batches."""
    tally = end.tally
    first, last = state.batch(tally.first), state.batch(tally.last)
    return {
        "upstream": json.dumps(state.upstream.get(end.substream, {}), sort_keys=True),
        "upstream_in_flight": state.lost.get(end.substream, 0),
        "rows": tally.rows,
        "kept": tally.kept,
        "xor": tally.xor,
        "late": end.late,
        "bad": state.bad,
        "first_epoch": tally.first,
        "last_epoch": tally.last,
        "offsets_from": first.since,
        "offsets_to": last.until,
        "first_seen": first.at,
        "last_seen": last.at,
    }


def _table(receipts: Sequence[Mapping[str, object]]) -> pa.Table:
    """Return the receipts in Arrow: in a file without a Spark job."""
    columns = {}
    for field in RECEIPT_SCHEMA.fields:
        kind = field.dataType.simpleString()
        column = pa.array([receipt[field.name] for receipt in receipts], _TYPES[kind])
        columns[field.name] = column.cast(_TIME) if kind == "timestamp" else column
    return pa.table(columns)
