"""`Tracking`: a job, declared in Spark's terms, and its queries while they run."""

from __future__ import annotations

import copy
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from types import TracebackType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.advice import explained
from spark_client.api.assembly import Assembly, check_zone, state_segment, stream_of
from spark_client.api.refusals import check_session, check_start
from spark_client.api.released import Released
from spark_client.api.streams import TrackedStream
from spark_client.api.writer import NativeWriter, TrackedWriter
from spark_client.channels.database import TableChannel
from spark_client.channels.files import Channel, FileChannel
from spark_client.channels.kafka import KafkaChannel
from spark_client.channels.received import Received
from spark_client.counting.probes import Way
from spark_client.datasource import events
from spark_client.datasource.watermark import Over, with_progress
from spark_client.errors import TrackingError, UsageError
from spark_client.plan import durations
from spark_client.plan.aggregates import Aggregate
from spark_client.plan.belonging import OnBadRows, belonging, in_range
from spark_client.plan.durations import Duration
from spark_client.plan.eventtime import WALL
from spark_client.plan.fileforms import told_by
from spark_client.plan.fronts import Front, Unspoken
from spark_client.plan.graph import JobGraph
from spark_client.plan.names import check_columns, check_job
from spark_client.plan.schedule import Rows, Schedule
from spark_client.plan.sources import Source
from spark_client.plan.streams import Input, Stream
from spark_client.plan.substreams import TRACKER, ColumnOrName, bytewise, declare, names_of, resolve
from spark_client.release.aggregation import Aggregation, OnOverflow
from spark_client.release.revisions import Revision, Revisions, late_rows
from spark_client.runtime.definition import Definition
from spark_client.runtime.drain_watch import DrainWatch
from spark_client.runtime.finishing import Finishing
from spark_client.runtime.native import NativeQuery
from spark_client.runtime.queries import TrackedQuery
from spark_client.runtime.running import Running
from spark_client.spark_internals.observations import observe
from spark_client.spark_internals.plans import is_plain
from spark_client.storage.databases import Connection
from spark_client.storage.directories import check_store, local_path
from tracker.client import (
    TrackerClient,
    TrackerError,
    TrackerUnavailable,
)
from tracker.client.jobs import Ordering

_log = logging.getLogger("spark_client")


class Tracking:
    """Tracks the queries of one job in one Spark session.

    Declare sources, channels and releases first, then start the queries: the first start defines the job with the graph
    that was declared. Queries of one job in several applications have to declare the same graph: give `segments` and
    `fronts` there.

    Args:
        spark: the session (classic, not Connect).
        job: the job's name.
        server: the tracker's address; or several, of which one has the job, as `tracker.client.servers.names` takes
            them.
        deployment: which deployment of the job this is. Restarts keep it; a new version of the job with another graph,
            or the next start after a drain, takes a new one.
        probe: where rows are counted. ``"driver"``: by native aggregations that ride in what runs anyway; no task calls
            the tracker. ``"executors"``: by an Arrow operator in the tasks, each of which reports its partition.
        retry_for: seconds for which a tracker that cannot be reached is waited for, before a batch fails.
        segments: the whole graph, if not all of it is declared here: for each segment those that it feeds.
        fronts: all fronts, likewise; or for each front the segments that it feeds. A segment waits for the fronts from
            which it can be reached, so sources that never meet do not hold each other. A front is called as its
            source's segment, or that with ``/0``, ``/1``, … of its partitions; one that is called otherwise, and given
            without segments, feeds all.
        force: take the job over from another deployment even if its graph has changed while substreams are open, or
            it is being drained. What is open is abandoned; how much, and which, is logged as a warning.
        ordering, progress, stall_after, expire_after, idle_after, retention, remember: rules of the job: see
            `tracker.client.JobSpec`. `progress` is on as soon as `with_watermark` is used. `remember` is how long names
            of substreams that have ended are remembered where no front's promise does it, so that what comes of them
            later is late; None: as long as there is the job. Durations are timedeltas, or texts that Spark parses
            (``"10 minutes"``).
        max_away: how long a query may be stopped while the tracker keeps its ends for it, whatever `retention` says;
            None: 30 days. A release that comes back later asks the tracker for each substream of its state.

    As a context manager it stops its queries at the end.

    >>> tracking = Tracking(spark, job="flights", server="127.0.0.1:7654")                     # doctest: +SKIP
    """

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        server: str = "127.0.0.1:7654",
        deployment: str = "1",
        *,
        probe: Way = "driver",
        retry_for: float = 60.0,
        segments: Mapping[str, Sequence[str]] | None = None,
        fronts: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        force: bool = False,
        ordering: Ordering = "none",
        progress: bool = False,
        stall_after: Duration | None = None,
        expire_after: Duration | None = None,
        idle_after: Duration | None = None,
        retention: Duration | None = None,
        remember: Duration | None = None,
        max_away: Duration | None = None,
    ) -> None:
        if probe not in ("driver", "executors"):
            raise UsageError(f"probe={probe!r}: either 'driver' or 'executors'")
        check_session(spark)
        check_job(job, deployment)
        self.spark = spark
        self.job = job
        self.server = server
        self.deployment = deployment
        self.client = TrackerClient(server, retry_for=retry_for)
        self._retry_for = retry_for
        self._graph = JobGraph(segments, fronts)
        rules = {
            "ordering": ordering,
            "progress": progress,
            "stall_after": _duration(spark, "stall_after", stall_after),
            "expire_after": _duration(spark, "expire_after", expire_after),
            "idle_after": _duration(spark, "idle_after", idle_after),
            "retention": _duration(spark, "retention", retention),
            "remember": _duration(spark, "remember", remember),
        }
        self._definition = Definition(self.client, job, deployment, self._graph, rules, force)
        self._max_away = _duration(spark, "max_away", max_away)
        self._assembly = Assembly(
            spark, self.client, job, server, retry_for, probe, self._graph, self._definition, self._max_away
        )
        self._lock = threading.RLock()
        self._running = Running(self._at_rest)
        self._drain_watch = DrainWatch(self.client, job, deployment, self._begin_drain)
        self._finishing: Finishing | None = None
        self._awaiting = 0  # threads that wait for a drain
        events.register(spark)

    def __repr__(self) -> str:
        return f"Tracking(job={self.job!r}, server={self.server!r}, deployment={self.deployment!r})"

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ---------------------------------------------------------------- declarations

    def source(
        self,
        df: DataFrame,
        segment: str,
        *,
        scope: ColumnOrName | None = None,
        window: tuple[ColumnOrName, Duration] | tuple[ColumnOrName, Duration, Duration] | None = None,
        substream: ColumnOrName | None = None,
        identity: Sequence[ColumnOrName] = (),
        front: Front | None = None,
        on_bad_rows: OnBadRows = "fail",
    ) -> TrackedStream:
        """Rows that enter the job.

        Args:
            df: a streaming DataFrame.
            segment: names the edge from the source into this query.
            scope: the column that groups substreams that belong together, such as a tenant.
            window: substreams are tumbling windows: (time column, length) or (time column, length, offset).
            substream: or they are named by a column.
            identity: columns that name a row for ever: (topic, partition, offset), (file, row), a business key. Needed
                where rows are sent into a channel; without, a row is named by its place in the batch, which only holds
                if a replay of the batch reads the rows in the same partitions and order.
            front: what the source can promise: `Schedule`, `Marks`, `Frontier`. None: nothing, until `finish`.
            on_bad_rows: what happens to rows that belong to no substream: their scope, time or name is null, or is
                nothing that the tracker takes. ``"fail"``: the batch fails before anything of it is published, unless
                a step of the stream drops them; the message says how many, why, and what to do. ``"quarantine"``:
                they are set aside before any step, in the table that `late` reads, with the reason.

        Raises:
            UsageError: a column is not there, a front does not fit, the segment is declared twice.
        """
        if not df.isStreaming:
            raise UsageError("source takes a streaming DataFrame (spark.readStream…); this one is a batch")
        if TRACKER in df.columns:
            raise UsageError(
                f"the rows have a column {TRACKER!r} already: to read what another query sent, use receive"
            )
        check_columns(df, f"source {segment!r}")
        rule, *keys = declare(df, scope, window, substream)
        for value in identity:
            resolve(df, value, "identity")
        if front is not None and not isinstance(front, Front):
            raise UsageError(f"front={front!r}: a front is one of Schedule, Marks, Frontier")
        chosen = Unspoken() if front is None else copy.copy(front)  # what it learns here is of this source alone
        when = window[0] if window is not None else substream
        assert when is not None
        belongs = belonging(df, rule, scope, when, chosen.conditions(df), on_bad_rows)
        scope_of, name_of, end_of = (belongs.guarded(key) for key in keys)
        self._graph.declare(segment)
        self._graph.consume(segment)
        origin = Source(
            df,
            segment,
            rule,
            (scope_of, name_of, end_of),
            belongs,
            [bytewise(df, value) for value in identity],
            chosen,
            self.job,
            names_of([*([scope] if scope is not None else []), when, *identity]),
            told_by(rule, scope, when) if all(is_plain(df, c) for c in (scope, when) if c is not None) else None,
        )
        key = F.unix_micros(end_of) if rule.windows else name_of
        time = in_range(df, window[0], rule) if window is not None else None
        chosen.bind(segment, df, rule, (scope_of, key), time)
        self._graph.declare_fronts(chosen.names, segment)
        return TrackedStream(self, origin, (), origin.native())

    def channel(self, segment: str, path: str, *, keep: bool = False) -> FileChannel:
        """A channel of files between two queries.

        Args:
            segment: that its rows travel.
            path: its directory, on a file system that driver and executors see as a path.
            keep: whether an epoch's files stay when they have been received; else they are removed once Spark has
                committed the batch that received them. Nothing else bounds how many there are.
        """
        self._graph.declare(segment)
        return FileChannel(segment, path, keep)

    def table_channel(
        self,
        segment: str,
        connect: Callable[[], Connection],
        table: str,
        path: str,
        *,
        placeholder: str = "%s",
        keep: bool = False,
    ) -> TableChannel:
        """A table of a database between two queries.

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
        return TableChannel(segment, connect, table, path, placeholder, keep)

    def kafka_channel(
        self,
        segment: str,
        topic: str,
        servers: str,
        path: str,
        *,
        deduplicate: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> KafkaChannel:
        """A Kafka topic between two queries: written at least once, received once.

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
        return KafkaChannel(segment, topic, servers, path, deduplicate, options)

    def receive(self, channel: Channel, max_epochs_per_trigger: int | None = None) -> TrackedStream:
        """Rows that another query has sent into a channel.

        Args:
            channel: of `channel`, `table_channel` or `kafka_channel`.
            max_epochs_per_trigger: at most so many of the sender's epochs in a batch; None: a thousand.
                Kafka's batches are bounded by the channel's options instead.

        Raises:
            UsageError: nobody has declared what is sent: do that first (``….writeStream.channel(…)``).
        """
        origin = Received(self.spark, channel, max_epochs_per_trigger)
        self._graph.consume(channel.segment)
        return TrackedStream(self, origin, (), channel.shape(self.spark))

    def release(
        self,
        stream: TrackedStream,
        keys: Sequence[ColumnOrName] = (),
        *,
        aggs: Mapping[str, Aggregate | Column],
        revisions: bool = False,
        completeness: bool = False,
        on_overflow: OnOverflow = "fail",
    ) -> Released:
        """An aggregation by substream and keys whose rows come out once, when their substream has ended.

        Args:
            stream: of `source` or `receive`.
            keys: further columns to group by.
            aggs: by name: Spark's ``F.count("*")``, ``F.avg("delay")``, … over plain columns, or those of
                `spark_client.aggregates` over any expression.
            revisions: what comes after a substream's end can be reopened (`reopen`). Results have a column
                ``revision``: 0, and 1, 2, … for what was reopened.
            completeness: results have a column ``completeness``: ``whole``; ``drained``: a drain closed the substream
                before its sources did, so more of it may follow in the next deployment; ``rest``: that is what
                followed, and all of it; ``drained rest``: or as far as the next drain; ``late``: a revision.
            on_overflow: what a sum or mean becomes that does not fit its type. ``"fail"``: what Spark's own becomes:
                in ANSI mode the query fails, and can be started again with the other choice; else it is null, or
                wrapped for integers. ``"null"``: null.

        Raises:
            UsageError: a column is not there; an aggregate cannot be merged from parts (the message lists those that
                can).
        """
        return Released(stream, keys, aggs, revisions, completeness, on_overflow)

    def with_watermark(self, stream: TrackedStream, time: str, over: Over) -> DataFrame:
        """The stream as a DataFrame whose watermark is the tracker's knowledge: instead of ``withWatermark``.

        What Spark's stateful operators make of it comes out when the tracker says that everything is over, with no
        later data, and is pruned then. Start the query with `write_stream`.

        Args:
            stream: of `source` or `receive`.
            time: its column of event time.
            over: ``"windows"`` if windows of that column live by the watermark (``window``, ``session_window``),
                ``"instants"`` if the column itself does (``dropDuplicatesWithinWatermark``, joins of two streams).

        Spark's watermarks start at 1970, so a row whose time is before it fails its batch: drop such rows in a step
        before this, or `release` them.
        """
        if over not in ("windows", "instants"):
            raise UsageError(f"over={over!r}: 'windows' for window and session_window, 'instants' for other operators")
        field = resolve(stream.df, time, "with_watermark")
        if field.dataType.simpleString() != "timestamp":
            raise UsageError(f"with_watermark({time!r}): a timestamp is needed, not {field.dataType.simpleString()}")
        if stream.input.rule.time == WALL:
            raise UsageError(
                f"with_watermark({time!r}): {stream.segment!r} has windows over a timestamp_ntz, and a watermark over "
                "a timestamp is on another clock: give the source window=(…) over a timestamp"
            )
        if not stream.input.rule.windows:
            raise UsageError("with_watermark needs substreams that are windows of time: the source's window=(…)")
        self._definition.require_progress()
        if isinstance(stream.input, Received) and not stream.input.exact:
            raise UsageError(
                f"with_watermark: the rows of {stream.segment!r} come at least once, and Spark's operators would count "
                "doubled ones: release them, or send them through a channel of files"
            )
        data = stream.input.native()
        front = stream.input.front
        if front is not None:
            if not front.moves_progress:
                raise UsageError(
                    f"{front!r} makes no promise for all scopes, which a watermark needs: use Frontier(delay), or "
                    "Schedule(counts) if they are known"
                )
            data = observe(data, stream.segment, front.observed())
            if front.counts:
                data = self._assembly.probe(stream, stream.segment, "passing", None).on(data)
        if stream.input.direction == "received":
            data = self._assembly.probe(stream, stream.segment, "received", None).on(data)
        data = stream.apply(data).drop(TRACKER)
        subscribed = {"subscription": f"watermark of {stream.segment}"}
        if self._max_away is not None:
            subscribed["max_away"] = str(self._max_away / timedelta(days=1))
        advanced = self.events(kinds="Advanced", segments=json.dumps([stream.segment]), **subscribed)
        return with_progress(data, advanced, field.name, over, stream.segment)

    def write_stream(self, df: DataFrame, reads: TrackedStream | Sequence[TrackedStream]) -> NativeWriter:
        """Begins the output of a query with Spark's own stateful operators.

        Args:
            df: made of what `with_watermark` gave.
            reads: the tracked streams it was made of.
        """
        streams = [reads] if isinstance(reads, TrackedStream) else list(reads)
        return NativeWriter(self, df, streams)

    def events(self, **options: str) -> DataFrame:
        """The job's events as a streaming DataFrame: ``spark.readStream.format("tracker")`` with its options."""
        return self._assembly.events(**options)

    # ---------------------------------------------------------------- what came late

    def late(self, checkpoint: str, late_path: str | None = None) -> DataFrame:
        """What a query has set aside: late rows, and rows of no substream: `LATE_SCHEMA`, with ``revision``.

        Args:
            checkpoint: of the query, which need not run.
            late_path: the query's option, if it was given.

        Returns:
            One row for each late row (``kind`` ``row``), or for each result row that late rows would have made
            (``aggregate``); ``revision`` is null for what was not reopened. And one for each row that belongs to no
            substream (``bad``), with the reason: see `source`, on_bad_rows.
        """
        path = local_path(checkpoint, "checkpoint")
        return late_rows(self.spark, path, local_path(late_path or path / "tracker" / "late", "late_path"))

    def reopen(
        self,
        checkpoint: str,
        *,
        scope: str | None = None,
        name: str | None = None,
        end_time: datetime | None = None,
    ) -> list[Revision]:
        """Makes revisions of what came late and is in none yet; the query releases them when it runs.

        A row that came late is in one revision of its substream, whoever asks, and however often.

        Args:
            checkpoint: of the release's query, which need not run; it was declared with ``revisions=True``.
            scope, name, end_time: only of such substreams, as the table of late rows calls them. `end_time` has its
                zone, or is in local time; of windows over a ``timestamp_ntz`` it has none.

        Returns:
            Those that were made now.

        Raises:
            UsageError: the query keeps nothing that could be reopened.
            TrackingError: the tracker could not be told; it will be when the query starts, or with the next call.

        >>> tracking.reopen("/cp/2", scope="JFK", end_time=datetime(2026, 3, 2, tzinfo=UTC))    # doctest: +SKIP
        """
        revisions = Revisions(local_path(checkpoint, "checkpoint"))
        made = revisions.reopen(scope, name, end_time)
        revisions.tell(self.client)
        return made

    # ---------------------------------------------------------------- while it runs

    def process_all_available(self) -> None:
        """Waits until the queries of this session have processed all rows that are there, and the ends this brings.

        For tests and bounded data, as Spark's own ``processAllAvailable``; it never returns while rows keep coming.

        Raises:
            TrackingError: a query has failed.
        """
        rounds: list[list[int | None]] = []
        while len(rounds) < 2 or rounds[-1] != rounds[-2]:
            self.check()
            for tracked in self._running.queries:
                tracked.settle()
            rounds.append([tracked.run.last_epoch for tracked in self._running.queries])
        self.check()

    def finish(self, stream: TrackedStream) -> None:
        """A source will send nothing more: what it has sent so far is all. Cannot be taken back.

        Call it when the query that reads the source has processed everything (`process_all_available`).

        Raises:
            TrackingError: the tracker refuses.
        """
        self._finish(stream.input)

    def expect(
        self,
        stream: TrackedStream,
        rows: Rows,
        *,
        through: datetime | date | None = None,
        revise: bool = False,
    ) -> None:
        """Gives counts to a source whose front is a `Schedule`: how many rows substreams will have.

        Before its query is started, or while it runs; before, while, or after the rows come. To give the counts of a
        stream, call it in that stream's ``foreachBatch``.

        Args:
            stream: the source, as `source` gave it.
            rows: of (scope, when, count), or of (when, count) if the source has no scope: a DataFrame, or tuples.
            through: a time up to whose window there will be no other substreams than those given so far: rows of others
                are late, and an exact watermark moves.
            revise: a count that was given before as another number takes its place, while its substream is open.

        Raises:
            UsageError: the source's front is no `Schedule`; rows of another form.
            TrackingError: the tracker refuses: another number was given before.

        >>> tracking.expect(orders, [("berlin", date(2026, 3, 1), 1204)])                     # doctest: +SKIP
        """
        front = stream.input.front
        if not isinstance(front, Schedule):
            raise UsageError("expect gives counts to a source with front=Schedule(…): Schedule() for all to come later")
        front.add(rows, through, revise)
        for tracked in self._running.queries:
            if stream.input in [read.input for read in tracked.reads] and tracked.query is not None:
                tracked.run.announce(front)

    def drain(self, timeout: float | None = None) -> None:
        """Finishes everything: sources stop between two batches, what was read is released, then all queries stop.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: not in time; it goes on. The message says what is missing.
            TrackingError: a query has failed.
        """
        if self._finishing is None or not self._finishing.drained:
            self._define()
            self.client.drain(self.job, self.deployment, f"spark-{uuid.uuid4().hex[:8]}")
            self._begin_drain()
        self.await_drained(timeout)

    def await_drained(self, timeout: float | None = None) -> None:
        """Waits until a drain, asked for here or by ``tracker drain``, is over and the queries of this session have
        stopped.

        Raises:
            TimeoutError: not in time.
            TrackingError: a query has failed, or was stopped.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._awaiting += 1
        try:
            if self._finishing is None:
                self._drain_watch.open()
            while self._finishing is None or not self._finishing.over.wait(0.1):
                if self._finishing is None:
                    time.sleep(0.1)
                self.check()
                if until is not None and time.monotonic() >= until:
                    raise TimeoutError(
                        f"job {self.job!r} is not drained after {timeout} s: {self.client.get_drain(self.job)}"
                    )
        finally:
            with self._lock:
                self._awaiting -= 1
        if (failure := self._finishing.failure) is not None:
            raise TrackingError(f"the drain failed: {failure}") from failure
        self._drain_watch.close()

    def check(self) -> None:
        """Raises what has gone wrong in a query of this session: in the newest run of each.

        Raises:
            TrackingError: the tracker refused a commit, or Spark's query failed. It begins with what happened and what
                to do; Spark's own error is its cause.
        """
        self._running.check()

    def stop(self, timeout: float | None = None) -> None:
        """Stops the queries of this session between two batches; nothing ends: they can go on where they were.

        It can be called twice, from any thread, in a query's own batch (which then goes on to its end), while a query
        starts and while the tracker is away. When it has returned, nothing of this object acts any more, and queries
        can be started again, here or by another `Tracking`.

        Args:
            timeout: seconds after which a batch in hand is interrupted (it is read again by the next start), and a
                tracker that is away is waited for no longer; None: as many as `retry_for`.
        """
        self._drain_watch.close()
        finishing = self._finishing
        if finishing is not None:
            finishing.stop()
        self._running.stop(self._retry_for if timeout is None else timeout)

    # ---------------------------------------------------------------- starting

    def sends(self, what: Stream | Aggregation, channel: Channel) -> None:
        """A query will send rows into a channel: the graph and the channel learn of it."""
        if isinstance(what, Aggregation):
            if what.stream.input.direction != "received":
                raise UsageError(
                    "a release that sends its results on has to read from a channel: send the source's rows through "
                    "one first"
                )
            schema = what.tracked(what.partial(what.stream.df, {}, labels=False), self.job).schema
            hold = state_segment(what)
            self._graph.declare_state(hold)
            self._graph.feed(what.stream.segment, hold)
            self._graph.feed(hold, channel.segment)
            rule = what.rule
        else:
            check_columns(what.df, f"channel {channel.segment!r}")
            schema, rule = what.df.schema, what.input.rule
            self._graph.feed(what.segment, channel.segment)
        channel.describe(schema, rule, None if isinstance(what, Aggregation) else what.input.told)

    def start(self, writer: TrackedWriter) -> StreamingQuery:
        """Starts what a `TrackedWriter` describes."""
        checkpoint = local_path(writer.options_given["checkpointlocation"], "checkpointLocation")
        check_store(checkpoint, "checkpointLocation")
        check_start([stream_of(writer)], checkpoint, writer.name, self._running.queries, self.spark)
        for channel, _ in writer.routes:
            channel.check_session(self.spark)
        self._define()
        tracked, start = self._assembly.query(writer, checkpoint)
        return self._launch(tracked, start)

    def start_native(self, writer: NativeWriter, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Starts what a `NativeWriter` describes."""
        assert writer.checkpoint is not None
        checkpoint = local_path(writer.checkpoint, "checkpointLocation")
        check_start(writer.reads, checkpoint, writer.name, self._running.queries, self.spark)
        self._define()
        for stream in writer.reads:
            check_zone(stream)
            if stream.input.front is not None:
                stream.input.front.look(at_once=True)
        tracked = NativeQuery(writer.reads, checkpoint, self._assembly.open_run)
        return self._launch(tracked, start)

    def _launch(self, tracked: TrackedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        if self._finishing is not None and not self._finishing.over.is_set() and tracked.fronts:
            tracked.rest()
        query = self._running.launch(self.spark, tracked, start)
        self._drain_watch.open()
        return query

    def _at_rest(self) -> None:
        """No query runs any more: nobody has to listen, unless somebody waits for a drain."""
        with self._lock:
            if self._awaiting:
                return
        self._drain_watch.close()

    def _define(self) -> None:
        with self._lock:
            if self._definition.define():
                self._begin_drain()

    # ---------------------------------------------------------------- drain

    def _finish(self, source: Input) -> None:
        front = source.front
        if front is None:
            raise UsageError("only a source is finished; what is received from a channel ends when its senders do")
        try:
            reading = next((q for q in self._running.queries if source in [s.input for s in q.reads]), None)
            if reading is None or reading.query is None or not reading.query.isActive:
                for name in front.names:
                    self.client.finish_front(self.job, name)
                return
            while True:
                try:
                    reading.run.promise(front.finish())
                    return
                except TrackerError as error:
                    if error.reason != "EPOCH_STAGED":
                        raise
                time.sleep(0.05)  # a batch is under way: it will be committed
        except (TrackerError, TrackerUnavailable) as error:
            raise explained(error) from error

    def _begin_drain(self) -> None:
        with self._lock:
            former = self._finishing
            if former is not None and former.stopped:
                former.over.wait()  # it is in its last step
            if former is None or (former.over.is_set() and not former.drained):
                self._finishing = Finishing(
                    self.spark,
                    self.client,
                    self.job,
                    self.deployment,
                    self._running,
                    lambda: self._graph.read_here,
                    self._finish,
                )


def _duration(spark: SparkSession, name: str, duration: Duration | None) -> timedelta | None:
    """A rule of the job: a length of time."""
    return None if duration is None else timedelta(microseconds=durations.length(spark, duration, name))
