"""Declarations of a job: its sources and channels, what is made of their rows, watermarks, and a user's own state."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.aggregates.aggregate import Aggregate
from spark_client.api.assembly import Assembly, state_segment
from spark_client.api.keyed import KeyedResults
from spark_client.api.keyed import declared as declare_keyed
from spark_client.api.readers import ChannelReader, Readable, SourceReader
from spark_client.api.refusals import check_exact, refuse_elsewhere
from spark_client.api.released import Released
from spark_client.api.streams import TrackedStream
from spark_client.api.writer import NativeWriter, ObservingWriter, Starter
from spark_client.columns import TRACKER, ColumnOrName, column, hashable, names_of, resolve, session_zone
from spark_client.datasource.watermark import TimeSemantics
from spark_client.destinations.channel import Channel, Received
from spark_client.destinations.file_channel import FileChannel
from spark_client.destinations.kafka_channel import KafkaChannel
from spark_client.destinations.lake import LakeTable
from spark_client.destinations.lake_channel import LakeChannel
from spark_client.destinations.table_channel import TableChannel
from spark_client.errors import UsageError, check_choice, check_faults, check_kind, check_some
from spark_client.fronts.front import COPIES, READ_ONCE, Front, ManualFront, SourceRows
from spark_client.plan.graph import JobGraph
from spark_client.plan.keyed import SubstreamProcessor
from spark_client.plan.layouts import derived_layout
from spark_client.plan.names import check_columns
from spark_client.plan.releases import OnOverflow, ReleasePlan
from spark_client.plan.streams import Source, Stream
from spark_client.release.aggregation import Aggregation
from spark_client.release.declaring import declare as declare_release
from spark_client.runtime.definition import Definition
from spark_client.runtime.observer import Observer
from spark_client.spark_internals.columns import expression_form
from spark_client.spark_internals.stores import folder_of
from spark_client.storage.databases import Connection
from spark_client.storage.folder import Folder
from spark_client.windows.belonging import OnBadRows
from spark_client.windows.declaration import Window, declare
from spark_client.windows.eventtime import INSTANT, WALL, check_kind_of
from spark_client.windows.lengths import Duration
from spark_client.windows.substreams import Ability


class Declarations:
    """The declarations of one job's streams, channels and releases.

    Args:
        tracking: starts what is made of them.
        graph: of the job, which they make.
        definition: of the job, of which fronts ask for rules.
    """

    def __init__(self, tracking: Starter, graph: JobGraph, definition: Definition) -> None:
        self._tracking = tracking
        self._graph = graph
        self._definition = definition

    def source(
        self,
        df: DataFrame,
        segment: str,
        *,
        scope: ColumnOrName | None = None,
        window: Window | None = None,
        substream: ColumnOrName | None = None,
        identity: Sequence[ColumnOrName] = (),
        front: Front | None = None,
        on_bad_rows: OnBadRows = "fail",
        counted: bool = False,
        deduplicate: bool = False,
    ) -> TrackedStream:
        """Declare rows that enter the job.

        Args:
            segment: names the edge from the source into this query.
            scope: the column that groups substreams that belong together, such as a tenant.
            window: substreams are windows of time: (time column, length) or (time column, length, offset). The length
                is a text such as ``"1 hour"``, a timedelta, `calendar`, `sliding`,
                `session` or `nested`.
            substream: or they are named by a column.
            identity: columns that name a row for ever: (topic, partition, offset), (file, row), a business key. Needed
                where rows are sent into a channel; without, a row is named by its place in the batch, which only holds
                if a replay of the batch reads the rows in the same partitions and order.
            front: what the source can promise: `Schedule`, `Marks`, `Frontier`, or one that finds its promises
                by itself: `ResultsOf`, `SuccessMarkers`, `Manifests`, `ControlTable`, `EndOffsets`. None: nothing,
                until `finish`.
            on_bad_rows: what happens to rows that belong to no substream: their scope, time or name is null, or is
                nothing that the tracker takes. ``"fail"``: the batch fails before anything of it is published, unless
                a step of the stream drops them; the message has how many, why, and what to do. ``"quarantine"``:
                they are set aside before any step, in the table that `late` reads, with the reason.
            counted: all rows are counted by substream before any step, as with `Schedule`: then the ledger has how
                many rows entered the job, and how many of them steps have dropped.
            deduplicate: a row that is delivered again, with an `identity` that its substream has had, is dropped before
                anything is counted: in a batch, in later ones, after restarts and hand-overs. Needs `identity`, and
                implies `counted`. The labels of open substreams are kept in the checkpoint.

        Raises:
            UsageError: a column is not there, a front does not fit, the segment is declared twice.

        >>> orders = tracking.source(                                                         # doctest: +SKIP
        ...     raw, "orders", scope="shop", window=("at", "1 day"), front=Schedule(counts),
        ...     identity=["order_id"], deduplicate=True)
        """
        if deduplicate:
            one = "column of identity=['event_id'], which names a row for ever"
            check_some(f"source {segment!r}: deduplicate=True", identity, one)
        _check_source(df, segment, front)
        named = {"scope": scope, "window": window and window[0], "substream": substream}
        declared = declare(df, scope, window, substream)
        rule = declared.rule
        identified = tuple(hashable(df, value) for value in identity)
        if deduplicate:  # the labels that are kept are of rows as they were identified then
            named["identity"] = F.struct(*map(column, identity))
        chosen = ManualFront() if front is None else copy.copy(front)  # what it learns here is of this source alone
        if rule.several and not chosen.overlapping:
            raise UsageError(
                f"{chosen!r} ends one window by a time, or by a row, which belongs to several {rule.called}: "
                "use Frontier('10 minutes'), or no front and tracking.finish(source)"
            )
        belongs = declared.belonging(chosen.conditions(df), on_bad_rows)
        scope_of, key_of = belongs.guarded(declared.scope), belongs.guarded(declared.key)
        self._graph.declare(segment)
        self._graph.consume(segment)
        self._graph.rules[segment] = rule
        self._graph.trusts[segment] = chosen.trusts.replace(READ_ONCE, COPIES) if deduplicate else chosen.trusts
        origin = Source(
            segment,
            rule,
            (scope_of, key_of),
            belongs,
            identified,
            chosen,
            self._tracking.job,
            names_of([*declared.read, *identity]),
            derived_layout(rule, scope, declared.given) if declared.plain else None,
            counted or deduplicate,
            {name: expression_form(df, column(value)) for name, value in named.items() if value is not None},
            deduplicate,
        )
        chosen.bind(SourceRows(segment, df, rule, scope_of, rule.plain(key_of), declared.time))
        self._graph.declare_fronts(chosen.names, segment)
        for which, silence in chosen.idle_after.items():
            self._definition.require_idle(which, silence, repr(chosen))
        if rule.clock == WALL:
            self._definition.check_deadline(segment, session_zone(df))
        chosen.live(self._tracking.spark)  # refuses here what it could not look for when the query starts
        reader = SourceReader(df, origin)
        return TrackedStream(self._tracking, Readable(Stream(origin), reader.native(), reader))

    def channel(self, segment: str, path: str | os.PathLike[str], *, keep: bool = False) -> FileChannel:
        """Return a channel of files between two queries.

        Args:
            segment: that its rows travel.
            path: its directory, on a file system that driver and executors see as a path.
            keep: whether an epoch's files stay when they have been received; else they are removed once Spark has
                committed the batch that received them. Nothing else bounds how many there are.
        """
        self._graph.declare(segment)
        return FileChannel(segment, self._folder(segment, path), keep)

    def table_channel(
        self,
        segment: str,
        connect: Callable[[], Connection],
        table: str,
        path: str | os.PathLike[str],
        *,
        placeholder: str = "%s",
        keep: bool = False,
    ) -> TableChannel:
        """Return a table of a database between two queries.

        Args:
            segment: that its rows travel.
            connect: makes a DB-API 2 connection that is not in autocommit mode; called in the driver and in executors.
            table: made by the statements of `spark_client.channel_tables`; this channel's alone.
            path: a directory of the channel's own, for its outbox, on a file system that driver and executors see as a
                path.
            placeholder: how the database's driver writes a parameter: ``%s``, or ``?`` as sqlite3 does.
            keep: whether an epoch's rows stay in the table when they have been received.

        >>> import psycopg                                                                    # doctest: +SKIP
        >>> clean = tracking.table_channel(                                                   # doctest: +SKIP
        ...     "clean", lambda: psycopg.connect(dsn), "clean", "/data/clean")
        """
        self._graph.declare(segment)
        return TableChannel(segment, connect, table, self._folder(segment, path), placeholder, keep)

    def kafka_channel(
        self,
        segment: str,
        topic: str,
        servers: str,
        path: str | os.PathLike[str],
        *,
        deduplicate: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> KafkaChannel:
        """Return a Kafka topic between two queries: written at least once, received once.

        Args:
            segment: that its rows travel.
            topic: that has to be there, and is this channel's alone.
            servers: the brokers' addresses, ``host:port,host:port``.
            path: a directory of the channel's own, on a file system that driver and executors see as a path: for its
                outbox, and what it remembers of what was received.
            deduplicate: whether copies are dropped when they are received. Without, a record that was written twice
                is counted twice, and its substream does not end.
            options: of Spark's Kafka source and sink, such as ``maxOffsetsPerTrigger``, ``kafka.security.protocol``.

        Raises:
            UsageError: an option that the channel sets itself.
        """
        self._graph.declare(segment)
        return KafkaChannel(segment, topic, servers, self._folder(segment, path), deduplicate, options)

    def lake_channel(self, segment: str, table: LakeTable, path: str | os.PathLike[str]) -> LakeChannel:
        """Return a table of Delta or Iceberg between two queries. Its rows stay: readers of the lake may use them.

        Args:
            table: a `DeltaTable` or an `IcebergTable`, this channel's alone. The first batch creates it.
            path: a directory of the channel's own, for its outbox and what it announces, that both queries see.

        >>> clean = tracking.lake_channel(                                                    # doctest: +SKIP
        ...     "clean", DeltaTable("s3a://lake/clean"), "s3a://lake/_clean")
        """
        self._graph.declare(segment)
        return LakeChannel(segment, table, self._folder(segment, path))

    def _folder(self, segment: str, path: str | os.PathLike[str]) -> Folder:
        return folder_of(self._tracking.spark, path, f"the path of channel {segment!r},")

    def receive(self, channel: Channel, max_epochs_per_trigger: int | None = None) -> TrackedStream:
        """Receive rows that another query has sent into a channel.

        Args:
            channel: of `channel`, `lake_channel`, `table_channel` or `kafka_channel`.
            max_epochs_per_trigger: at most so many of the sender's epochs in a batch; None: a thousand.
                Kafka's batches are bounded by the channel's options instead.

        Raises:
            UsageError: nobody has declared what is sent: do that first (``….writeStream.channel(…)``).
        """
        plan = Stream(Received.of(channel))
        self._graph.consume(channel.segment)
        reader = ChannelReader(self._tracking.spark, channel, max_epochs_per_trigger)
        return TrackedStream(self._tracking, Readable(plan, channel.shape(self._tracking.spark), reader))

    def release(
        self,
        stream: TrackedStream,
        keys: ColumnOrName | Sequence[ColumnOrName] = (),
        *,
        aggs: Mapping[str, Aggregate | Column] | None = None,
        columns: Sequence[ColumnOrName] = (),
        revisions: bool = False,
        completeness: bool = False,
        on_overflow: OnOverflow = "fail",
        early: Duration | None = None,
    ) -> Released:
        """Return an aggregation by substream and keys whose rows come out once, when their substream has ended.

        Or, with `columns`, the rows themselves: kept until then, for a function over all of them (`Released.apply`).

        Args:
            stream: of `source` or `receive`.
            keys: further columns to group by, or one.
            aggs: by name: Spark's ``F.count("*")``, ``F.avg("delay")``, … over plain columns, or those of
                `spark_client.aggregates` over any expression.
            columns: instead of `aggs`: the columns of the rows to keep.
            revisions: what comes after a substream's end can be reopened (`reopen`). Results have a column
                ``revision``: 0, and 1, 2, … for what was reopened.
            completeness: results have a column ``completeness``: ``whole``; ``drained``: a drain closed the substream
                before its sources did, so more of it may follow in the next deployment; ``deadline``, ``threshold``,
                ``idle``, ``expired``, ``abandoned``: likewise, by that reason; ``rest``: that is what followed, and
                all of it; ``drained rest``: or as far as the next drain; ``late``: a revision.
            on_overflow: what a sum or mean becomes that does not fit its type. ``"fail"``: what Spark's own becomes:
                in ANSI mode the query fails, and can be started again with the other choice; else it is null, or
                wrapped for integers. ``"null"``: null.
            early: open substreams are shown before they have ended, by batches that are at least so long apart: rows
                with ``final`` false and, in ``as_of``, the last batch whose rows are in them. The final row, in which
                ``final`` is true, replaces them. None: there are only final rows, without these columns.

        Raises:
            UsageError: a column is not there; an aggregate cannot be merged from parts (the message lists those that
                can).
        """
        rows = stream.readable
        plan = declare_release(rows.plan, rows.df, keys, aggs, columns, revisions, completeness, on_overflow, early)
        return Released(stream, plan)

    def observe(
        self,
        stream: TrackedStream,
        query: StreamingQuery | str | os.PathLike[str],
        checkpoint: str | os.PathLike[str],
        *,
        source: int | None = None,
        from_now: bool = False,
        every: float = 1.0,
    ) -> Observer:
        """Follow another query by its commits, and change nothing of it: ends are of what that query has committed.

        The rows that it has read of its source are read once more, only the columns that substreams and the front need,
        and counted. So a substream ends when the front has promised all of it, and the query has committed all of it.

        Args:
            stream: of `source`: the rows that the query reads, declared as they are there, with what they promise.
            query: that is observed: its checkpoint, or the query itself, if this process has started it. It may be of
                another application, and has been started once.
            checkpoint: of the observer; nothing else has it.
            source: which of the query's sources these rows are, from 0; None: it has one.
            from_now: what the query had committed when it was observed first is left out; else everything is counted
                from the source's beginning on.
            every: seconds between two looks at what the query has committed.

        Returns:
            The observer, which runs: it has what a streaming query has (``stop``, ``processAllAvailable``, …), and
            ``lag``, in batches.

        Raises:
            UsageError: the query or its source is none that can be observed.
            TrackingError: the tracker cannot be reached, or refuses the job or the run.

        >>> orders = tracking.source(raw, "orders", scope="shop", window=("at", "1 day"))   # doctest: +SKIP
        >>> tracking.observe(orders, "/cp/daily", "/cp/observer")                           # doctest: +SKIP
        """
        writer = ObservingWriter(stream.tracking, stream.readable, query, checkpoint, source, from_now, every)
        return cast(Observer, self._tracking.start(writer))

    def sends(self, rows: Readable, release: ReleasePlan | None, channel: Channel) -> None:
        """Note that a query will send rows into a channel, in the graph and the channel."""
        origin = rows.plan.input
        if release is None:
            check_columns(rows.df, f"channel {channel.segment!r}")
            self._graph.feed(origin.segment, channel.segment)
            channel.describe(rows.df.schema, origin.rule, origin.layout)
            return
        if origin.direction != "received":
            raise UsageError(
                "a release that sends its results on has to read from a channel: send the source's rows through "
                "one first"
            )
        schema = Aggregation(release).tracked_schema(rows.df, self._tracking.job)
        state = state_segment(release)
        self._graph.declare_state(state)
        self._graph.feed(origin.segment, state)
        self._graph.feed(state, channel.segment)
        channel.describe(schema, release.rule, None)


class StatefulDeclarations:
    """The declarations of one job whose state Spark keeps.

    Args:
        tracking: starts what is made of them.
    """

    def __init__(self, tracking: Starter, assembly: Assembly) -> None:
        self._tracking = tracking
        self._assembly = assembly

    def with_watermark(self, stream: TrackedStream, time: str, over: TimeSemantics) -> DataFrame:
        """Return the stream as a DataFrame whose watermark is the tracker's knowledge: instead of ``withWatermark``.

        Results of Spark's stateful operators on it come out when the tracker announces that everything is over, with no
        later data, and their state is pruned then. Start the query with `write_stream`.

        Args:
            stream: of `source` or `receive`.
            time: its column of event time.
            over: ``"windows"`` if windows of that column live by the watermark (``window``), ``"instants"`` if the
                column itself does (``session_window``, ``dropDuplicatesWithinWatermark``, joins of two streams).

        Spark's watermarks start at 1970, so a row whose time is before it fails its batch: drop such rows in a step
        before this, or `release` them.
        """
        refuse_elsewhere(self._assembly.spark, "with_watermark")
        why = ": 'windows' for window, 'instants' for session_window and other operators"
        check_choice("over", over, "windows", "instants", why=why)
        source = stream.readable.plan.input
        field = resolve(stream.readable.df, time, "with_watermark")
        check_kind_of("with_watermark: time", time, field.dataType.simpleString(), (INSTANT,))
        if source.rule.clock == WALL:
            raise UsageError(
                f"with_watermark({time!r}): {stream.segment!r} has windows over a timestamp_ntz, and a watermark over "
                "a timestamp is on another clock: give the source window=(…) over a timestamp"
            )
        source.rule.require(Ability.WATERMARK, f"with_watermark of {stream.segment!r}")
        self._assembly.definition.require_progress()
        check_exact(stream.readable.plan, "with_watermark")
        return self._assembly.watermarked(stream.readable, field.name, over)

    def transform_with_state(
        self, stream: TrackedStream, processor: SubstreamProcessor, schema: T.StructType | str
    ) -> KeyedResults:
        """Keep state of your own for each substream, in Spark's state store, until the substream has ended.

        Spark's ``transformWithState`` with substreams as keys: no time to live and no watermark has to be guessed.

        Args:
            stream: of `source` or `receive`.
            processor: keeps the state, and makes the final rows in ``handleEnd``.
            schema: of the rows that it makes; results have the columns of their substream beside them.

        Raises:
            UsageError: Spark is older than 4.1, its state store is not RocksDB, or something does not fit.

        >>> made = tracking.transform_with_state(flights, Longest(), "carrier string, delay double")  # doctest: +SKIP
        >>> made.writeStream.option("checkpointLocation", "cp").start("longest")                      # doctest: +SKIP
        """
        refuse_elsewhere(self._assembly.spark, "transform_with_state")
        return declare_keyed(stream, processor, schema)

    def write_stream(self, df: DataFrame, reads: TrackedStream | Sequence[TrackedStream]) -> NativeWriter:
        """Begin the output of a query with Spark's own stateful operators.

        Args:
            df: made of what `with_watermark` gave.
            reads: the tracked streams it was made of.
        """
        streams = [reads] if isinstance(reads, TrackedStream) else list(reads)
        return NativeWriter(self._tracking, df, [stream.readable for stream in streams])

    def events(self, /, **options: str) -> DataFrame:
        """Return the job's events as a streaming DataFrame: ``spark.readStream.format("tracker")`` with its options."""
        return self._assembly.events(**options)


def _check_source(df: DataFrame, segment: str, front: Any) -> None:
    """Refuse rows that cannot be a source's, and what is no front."""
    check_faults(
        f"source {segment!r}",
        (not df.isStreaming, "takes a streaming DataFrame (spark.readStream…); this one is a batch"),
        (TRACKER in df.columns, f"has a column {TRACKER!r} already: to read what another query sent, use receive"),
    )
    check_columns(df, f"source {segment!r}")
    check_kind("front", front, Front | None, "a front is one of Schedule, Marks, Frontier, ResultsOf, …")
