"""``spark.readStream.format("tracker")`` and ``spark.read.format("tracker")``: the tracker's events, as rows.

As a stream: a job's events. Offsets are the log's id and the event's number in it, so Spark's own checkpoint makes them
exactly-once: a batch that is replayed reads the same range again. As a batch: the events of a range, or the substreams
as they stand now.

This module runs in Spark's Python workers too. It only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.datasource.options import ReaderOptions, explained
from spark_client.datasource.streams import (
    EVENT_SCHEMA,
    SUBSTREAM_SCHEMA,
    EventStream,
    OwnEnds,
    event_row,
    offset_of,
    oldest,
    read_between,
    substream_rows,
)
from spark_client.spark_internals.readers import (
    DataSource,
    DataSourceReader,
    InputPartition,
    SimpleDataSourceStreamReader,
    register_source,
)
from spark_client.trackers.eventlogs import EventLogs, newest

FORMAT: Final = "tracker"


class TrackerDataSource(DataSource):
    """The format ``tracker``. `Tracking.events` registers it; alone: ``spark.dataSource.register(TrackerDataSource)``.

    Options:
        job: the name of the job whose events are read. Required.
        server: the tracker's address; default ``127.0.0.1:7654``.
        sharded: the job's ordering, if all of these servers share it (`tracker.client.ShardedClient`); default: one has
            it. Each row's ``seq`` is then the event's number at its server.
        segments, scopes: only of these, comma-separated; default: all. They filter Ended, Late, Excess and Advanced.
        kinds: only these, comma-separated, such as ``Ended,Late``; default: all.
        starting_seq: where a new stream begins: ``earliest`` (kept), ``latest``, or the seq of the last event not
            wanted; default ``earliest``. A stream with a checkpoint goes on where it was.
        subscription: stream only: the name of a durable subscription of this stream's own: the tracker keeps its events
            until Spark has committed the batch that had them, whatever the job's retention.
        max_away: with a subscription, days for which at most; default: as the tracker likes.
        max_events_per_trigger: at most so many in a micro-batch; default 10000.
        retry_for: seconds for which a tracker that cannot be reached is waited for; default 60.
        tls_ca, tls_cert, tls_key, token_file: the files of `tracker.client.Credentials`; default: the environment's.
        what: batch only: ``events`` (default) or ``substreams``.
        after_seq, up_to_seq: batch only: the range of events; default: all that are kept.
        include_ended: batch only, substreams: ``true`` for those that have ended too.

    >>> events = spark.readStream.format("tracker").option("job", "flights").load()           # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> T.StructType:
        return SUBSTREAM_SCHEMA if ReaderOptions(self.options).substreams else EVENT_SCHEMA

    def reader(self, schema: T.StructType) -> DataSourceReader:  # noqa: ARG002
        return _BatchReader(ReaderOptions(self.options))

    def simpleStreamReader(self, schema: T.StructType) -> SimpleDataSourceStreamReader:  # noqa: ARG002, N802
        wanted = ReaderOptions(self.options)
        return OwnEnds(wanted) if wanted.awaits else EventStream(wanted)


def register(spark: SparkSession) -> None:
    """Make ``format("tracker")`` known to a session."""
    register_source(spark, TrackerDataSource, 'format("tracker")')


class _BatchReader(DataSourceReader):
    def __init__(self, wanted: ReaderOptions) -> None:
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002
        wanted = self._wanted
        with explained(wanted.job), wanted.client() as client:
            if wanted.substreams:
                for status in client.substreams(wanted.job, wanted.scopes, wanted.include_ended):
                    yield from substream_rows(status, wanted.segments)
            elif wanted.sharded:
                logs = EventLogs(client, wanted.job)
                statuses = logs.statuses()
                start, end = offset_of(oldest(statuses)), newest(statuses)
                events, _ = read_between(logs.all, start, end, wanted.segments, wanted.scopes, wanted.ordered)
                yield from map(event_row, filter(wanted.wants, events))
            else:
                ((only, _),) = client.logs(wanted.job)
                yield from map(event_row, wanted.range(only, wanted.after_seq, wanted.up_to_seq, ""))
