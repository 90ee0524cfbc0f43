"""`Tracking`: a job, declared in Spark's terms, and its queries while they run."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from spark_client import declared, events
from spark_client.aggregates import Aggregate
from spark_client.channels import Channel, FileChannel
from spark_client.database import TableChannel
from spark_client.directories import last_commit, local_path
from spark_client.draining import Drain
from spark_client.errors import TrackingError, UsageError
from spark_client.fileforms import told_by
from spark_client.fronts import Front, Unspoken
from spark_client.intake import observed_of
from spark_client.kafka import KafkaChannel
from spark_client.manifest import Manifest
from spark_client.observations import observe
from spark_client.outputs import Files, Function, Output, Sent
from spark_client.probes import Direction, ExecutorProbe, Way
from spark_client.queries import BatchQuery, NativeQuery, TrackedQuery
from spark_client.receipts import Receipts
from spark_client.release import Released, ReleaseQuery
from spark_client.revisions import Revision, Revisions, late_rows
from spark_client.routes import Routed
from spark_client.runs import Run, explained
from spark_client.sinks import Sunk
from spark_client.streams import Received, Source, TrackedStream
from spark_client.substreams import TRACKER, ColumnOrName, Duration, column, declare, micros_of, names_of, resolve
from spark_client.tables import Connection
from spark_client.watermark import Over, with_progress
from spark_client.writer import NativeWriter, TrackedWriter
from tracker.client import (
    Drained,
    DrainRequested,
    DrainState,
    JobSpec,
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
        fronts: all fronts, likewise.
        force: take the job over from another deployment even if its graph has changed while substreams are open, or
            it is being drained. What is open is abandoned; how much, and which, is logged as a warning.
        ordering, progress, stall_after, expire_after, idle_after, retention: rules of the job: see
            `tracker.client.JobSpec`. `progress` is on as soon as `with_watermark` is used.

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
        fronts: Sequence[str] | None = None,
        force: bool = False,
        ordering: Ordering = "none",
        progress: bool = False,
        stall_after: timedelta | None = None,
        expire_after: timedelta | None = None,
        idle_after: timedelta | None = None,
        retention: timedelta | None = None,
    ) -> None:
        if probe not in ("driver", "executors"):
            raise UsageError(f"probe={probe!r}: either 'driver' or 'executors'")
        self.spark = spark
        self.job = job
        self.server = server
        self.deployment = deployment
        self.client = TrackerClient(server, retry_for=retry_for)
        self._probe: Way = probe
        self._retry_for = retry_for
        self._force = force
        self._given = segments is not None or fronts is not None
        self._segments: dict[str, list[str]] = {name: list(feeds) for name, feeds in (segments or {}).items()}
        self._fronts: list[str] = list(fronts or ())
        self._fronts_here: list[str] = []
        self._consumed: set[str] = set()
        self._states: set[str] = set()  # segments that stand for the state of a release, which no query reads
        self._rules: dict[str, Any] = {
            "ordering": ordering,
            "progress": progress,
            "stall_after": stall_after,
            "expire_after": expire_after,
            "idle_after": idle_after,
            "retention": retention,
        }
        self._defined: JobSpec | None = None
        self._queries: dict[str, TrackedQuery] = {}  # by run id
        self._lock = threading.RLock()
        self._draining = threading.Event()
        self._drained = threading.Event()
        self._stopped_after_drain = threading.Event()
        self._drain_failure: Exception | None = None
        self._closed = threading.Event()
        events.register(spark)
        threading.Thread(target=self._follow, name="tracking-commits", daemon=True).start()

    def __repr__(self) -> str:
        return f"Tracking(job={self.job!r}, server={self.server!r}, deployment={self.deployment!r})"

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

        Raises:
            UsageError: a column is not there, a front does not fit, the segment is declared twice.
        """
        if not df.isStreaming:
            raise UsageError("source takes a streaming DataFrame (spark.readStream…); this one is a batch")
        if TRACKER in df.columns:
            raise UsageError(
                f"the rows have a column {TRACKER!r} already: to read what another query sent, use receive"
            )
        rule, *keys = declare(df, scope, window, substream)
        for value in identity:
            resolve(df, value, "identity")
        if front is not None and not isinstance(front, Front):
            raise UsageError(f"front={front!r}: a front is one of Schedule, Marks, Frontier")
        chosen = front or Unspoken()
        self._declare(segment)
        self._consume(segment)
        when = window[0] if window is not None else substream
        assert when is not None
        origin = Source(
            df,
            segment,
            rule,
            (keys[0], keys[1], keys[2]),
            [column(value) for value in identity],
            chosen,
            self.job,
            names_of([*([scope] if scope is not None else []), when, *identity]),
            told_by(rule, scope, when),
        )
        key = F.unix_micros(keys[2]) if rule.windows else keys[1]
        chosen.bind(segment, df, rule, (keys[0], key), column(window[0]) if window is not None else None)
        self._fronts_here.extend(chosen.names)
        if not self._given:
            self._fronts.extend(chosen.names)
        elif missing := [name for name in chosen.names if name not in self._fronts]:
            raise UsageError(f"front {missing[0]!r} is not among fronts={self._fronts}")
        return TrackedStream(self, origin, (), origin.native())

    def channel(self, segment: str, path: str, *, keep: bool = True) -> FileChannel:
        """A channel of files between two queries.

        Args:
            segment: that its rows travel.
            path: its directory, on a file system that driver and executors see as a path.
            keep: whether an epoch's files stay when they have been received.
        """
        self._declare(segment)
        return FileChannel(segment, path, keep)

    def table_channel(
        self,
        segment: str,
        connect: Callable[[], Connection],
        table: str,
        path: str,
        *,
        placeholder: str = "%s",
        keep: bool = True,
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
        ...     "clean", lambda: psycopg.connect(dsn), "clean", "/data/clean", keep=False)
        """
        self._declare(segment)
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
        self._declare(segment)
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
        origin = Received(self, channel, max_epochs_per_trigger)
        self._consume(channel.segment)
        return TrackedStream(self, origin, (), origin.native())

    def release(
        self,
        stream: TrackedStream,
        keys: Sequence[ColumnOrName] = (),
        *,
        aggs: Mapping[str, Aggregate | Column],
        revisions: bool = False,
    ) -> Released:
        """An aggregation by substream and keys whose rows come out once, when their substream has ended.

        Args:
            stream: of `source` or `receive`.
            keys: further columns to group by.
            aggs: by name: Spark's ``F.count("*")``, ``F.avg("delay")``, … over plain columns, or those of
                `spark_client.aggregates` over any expression.
            revisions: what comes after a substream's end can be reopened (`reopen`). Results have a column
                ``revision``: 0, and 1, 2, … for what was reopened.

        Raises:
            UsageError: a column is not there; an aggregate cannot be merged from parts (the message lists those that
                can).
        """
        return Released(stream, keys, aggs, revisions)

    def with_watermark(self, stream: TrackedStream, time: str, over: Over) -> DataFrame:
        """The stream as a DataFrame whose watermark is the tracker's knowledge: instead of ``withWatermark``.

        What Spark's stateful operators make of it comes out when the tracker says that everything is over, with no
        later data, and is pruned then. Start the query with `write_stream`.

        Args:
            stream: of `source` or `receive`.
            time: its column of event time.
            over: ``"windows"`` if windows of that column live by the watermark (``window``, ``session_window``),
                ``"instants"`` if the column itself does (``dropDuplicatesWithinWatermark``, joins of two streams).
        """
        if over not in ("windows", "instants"):
            raise UsageError(f"over={over!r}: 'windows' for window and session_window, 'instants' for other operators")
        field = resolve(stream.df, time, "with_watermark")
        if field.dataType.simpleString() != "timestamp":
            raise UsageError(f"with_watermark({time!r}): a timestamp is needed, not {field.dataType.simpleString()}")
        if not stream.input.rule.windows:
            raise UsageError("with_watermark needs substreams that are windows of time: the source's window=(…)")
        if self._defined is not None and not self._defined.progress:
            raise UsageError("declare with_watermark before the first query starts, or give Tracking(progress=True)")
        self._rules["progress"] = True
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
                    f"{front!r} makes no promise for all scopes, which a watermark needs: use Frontier(delay)"
                )
            data = observe(data, stream.segment, front.observed())
        if stream.input.direction == "received":
            data = self._executor_probe(stream, stream.segment, "received", None).on(data)
        data = stream.apply(data).drop(TRACKER)
        advanced = self.events(kinds="Advanced", segments=stream.segment)
        return with_progress(data, advanced, time, over)

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
        reader = self.spark.readStream.format(events.FORMAT)
        own = {"job": self.job, "server": self.server, "retry_for": str(self._retry_for)}
        return reader.options(**{**own, **options}).load()

    # ---------------------------------------------------------------- what came late

    def late(self, checkpoint: str, late_path: str | None = None) -> DataFrame:
        """What a release has set aside since it came after its substream's end: `LATE_SCHEMA`, with ``revision``.

        Args:
            checkpoint: of the release's query, which need not run.
            late_path: the query's option, if it was given.

        Returns:
            One row for each late row (``kind`` ``row``), or for each result row that late rows would have made
            (``aggregate``); ``revision`` is null for what was not reopened.
        """
        path = local_path(checkpoint, "checkpoint")
        return late_rows(self.spark, path, Path(late_path or path / "tracker" / "late"))

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
            scope, name, end_time: only of such substreams, as the table of late rows calls them.

        Returns:
            Those that were made now.

        Raises:
            UsageError: the query keeps nothing that could be reopened.
            TrackingError: the tracker could not be told; it will be when the query starts, or with the next call.

        >>> tracking.reopen("/cp/2", scope="JFK", end_time=datetime(2026, 3, 2, tzinfo=UTC))    # doctest: +SKIP
        """
        revisions = Revisions(local_path(checkpoint, "checkpoint"))
        made = revisions.reopen(scope, name, None if end_time is None else micros_of(end_time))
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
            for tracked in list(self._queries.values()):
                tracked.settle()
            rounds.append([tracked.run.last_epoch for tracked in list(self._queries.values())])
        self.check()

    def finish(self, stream: TrackedStream) -> None:
        """A source will send nothing more: what it has sent so far is all. Cannot be taken back.

        Call it when the query that reads the source has processed everything (`process_all_available`).

        Raises:
            TrackingError: the tracker refuses.
        """
        front = stream.input.front
        if front is None:
            raise UsageError("only a source is finished; what is received from a channel ends when its senders do")
        try:
            reading = next((q for q in self._queries.values() if stream.input in [s.input for s in q.reads]), None)
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

    def drain(self, timeout: float | None = None) -> None:
        """Finishes everything: sources stop between two batches, what was read is released, then all queries stop.

        Args:
            timeout: seconds.

        Raises:
            TimeoutError: not in time; it goes on. The message says what is missing.
            TrackingError: a query has failed.
        """
        self._define()
        self.client.drain(self.job, self.deployment, f"spark-{uuid.uuid4().hex[:8]}")
        self.await_drained(timeout)

    def await_drained(self, timeout: float | None = None) -> None:
        """Waits until a drain, asked for here or by ``tracker drain``, is over and the queries of this session have
        stopped.

        Raises:
            TimeoutError: not in time.
            TrackingError: a query has failed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while not self._stopped_after_drain.wait(0.1):
            self.check()
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(
                    f"job {self.job!r} is not drained after {timeout} s: {self.client.get_drain(self.job)}"
                )
        if self._drain_failure is not None:
            raise TrackingError(f"the drain failed: {self._drain_failure}") from self._drain_failure

    def check(self) -> None:
        """Raises what has gone wrong in a query of this session.

        Raises:
            TrackingError: the tracker refused a commit, or Spark's query failed.
        """
        for tracked in self._queries.values():
            if tracked.query is None:
                continue
            failure = tracked.query.exception() or (tracked.run.failure if tracked.query.isActive else None)
            if failure is not None:
                raise TrackingError(f"query {tracked.query.id} has failed: {failure}") from failure

    def stop(self) -> None:
        """Stops the queries of this session between two batches; nothing ends: they can go on where they were."""
        for tracked in list(self._queries.values()):
            tracked.stop()
            tracked.close()
        self._closed.set()

    # ---------------------------------------------------------------- starting

    def sends(self, what: TrackedStream | Released, channel: Channel) -> None:
        """A query will send rows into a channel: the graph and the channel learn of it."""
        if isinstance(what, Released):
            if what.stream.input.direction != "received":
                raise UsageError(
                    "a release that sends its results on has to read from a channel: send the source's rows through "
                    "one first"
                )
            schema = what.tracked(what.partial(what.stream.df, {}, labels=False), self.job).schema
            hold = _held(what)
            self._declare(hold)
            self._states.add(hold)
            self._feed(what.stream.segment, hold)
            self._feed(hold, channel.segment)
            rule = what.rule
        else:
            schema, rule = what.df.schema, what.input.rule
            self._feed(what.segment, channel.segment)
        channel.describe(schema, rule, None if isinstance(what, Released) else what.input.told)

    def start(self, writer: TrackedWriter) -> StreamingQuery:
        """Starts what a `TrackedWriter` describes."""
        self._define()
        what, options = writer.what, writer.options_given
        stream = what.stream if isinstance(what, Released) else what
        checkpoint = local_path(options["checkpointlocation"], "checkpointLocation")
        state = checkpoint / "tracker"
        files = {key: value for key, value in options.items() if key not in _OWN_OPTIONS}

        seals = options.get("seal", "false") == "true"
        manifest = Manifest(self.spark.sparkContext) if seals else None

        def probe(epoch: tuple[str, str, int]) -> ExecutorProbe:
            return self._executor_probe(stream, stream.segment, stream.input.direction, epoch, manifest)

        def sending(channel: Channel) -> Sent:
            def probe(epoch: tuple[str, str, int]) -> ExecutorProbe:
                return self._executor_probe(stream, channel.segment, "sent", epoch, manifest)

            return Sent(channel, writer.ordinal, probe if by_executors else None)

        by_executors = self._probe == "executors"
        output: Output
        conditional = [(condition, channel) for channel, condition in writer.routes if condition is not None]
        if conditional:
            output = Routed([(condition, sending(channel)) for condition, channel in conditional], state / "routed")
        elif writer.routes:
            ((channel, _),) = writer.routes
            output = sending(channel)
        elif writer.to_sink is not None:
            output = Sunk(writer.to_sink)
        elif writer.function is not None:
            output = Function(writer.function)
        else:
            path = local_path(options["path"], "the path of the results,")
            output = Files(path, writer.file_format or "parquet", files, writer.partition_columns)
        release = None
        if isinstance(what, Released):
            late = Path(options.get("late_path") or state / "late")
            held = _held(what) if writer.routes else None
            if isinstance(stream.input, Source) and not stream.steps:
                stream.input.prune(what.reads)
            compact_from = int(options.get("compact_from", "24"))
            leading = self._leading_to(stream.segment)
            receipts = None if writer.to_receipts is None else Receipts(writer.to_receipts, checkpoint)
            release = ReleaseQuery(what, output, checkpoint, late, held, compact_from, receipts, leading)
            Revisions(checkpoint).tell(self.client)
        last = last_commit(checkpoint)
        described = {
            "job": self.job,
            "segment": stream.segment,
            "substreams": stream.input.rule.to_json(),
            **(what.described() if isinstance(what, Released) else {}),
        }
        declared.check(state / "query.json", described, release.kept(0 if last is None else last + 1) if release else 0)
        aggregates = observed_of(stream, rides=release is not None)
        tracked = BatchQuery(
            stream,
            checkpoint,
            partial(self._open_run, seals=seals),
            output,
            release,
            bool(writer.routes),
            probe if by_executors else None,
            manifest,
            aggregates,
        )
        bell = None
        if isinstance(what, Released):
            bell = self.events(kinds="Ended,Late,Drained", segments=stream.segment, starting_seq="latest")
        writing = stream.input.stream(bell, aggregates).writeStream.foreachBatch(tracked.process)
        writing = writing.option("checkpointLocation", str(checkpoint))
        if writer.name is not None:
            writing = writing.queryName(writer.name)
        if writer.trigger_given:
            writing = writing.trigger(**writer.trigger_given)
        return self._launch(tracked, writing.start)

    def start_native(self, writer: NativeWriter, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Starts what a `NativeWriter` describes."""
        self._define()
        assert writer.checkpoint is not None
        tracked = NativeQuery(writer.reads, local_path(writer.checkpoint, "checkpointLocation"), self._open_run)
        return self._launch(tracked, start)

    def _launch(self, tracked: TrackedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        with self._lock:
            if self._draining.is_set() and tracked.fronts:
                tracked.gate.close()  # what its sources have now is for the next deployment
            listener = _Started(tracked)
            self.spark.streams.addListener(listener)
            try:
                query = start()
            finally:
                self.spark.streams.removeListener(listener)
            tracked.query = query
            self._queries[str(query.runId)] = tracked
        tracked.open(str(query.id), str(query.runId))
        try:
            tracked.run  # noqa: B018 - raises what went wrong
        except TrackingError:
            query.stop()
            raise
        return query

    def _open_run(self, query: str, run: str, resume_epoch: int, seals: bool = False) -> Run:
        return Run(self.client, self.job, query, run, resume_epoch, seals)

    def _executor_probe(
        self,
        stream: TrackedStream,
        segment: str,
        direction: Direction,
        epoch: tuple[str, str, int] | None,
        manifest: Manifest | None = None,
    ) -> ExecutorProbe:
        kept = None if manifest is None else manifest.kept
        rule = stream.input.rule
        return ExecutorProbe(self.server, self._retry_for, self.job, segment, direction, rule, epoch, kept)

    # ---------------------------------------------------------------- the job

    def _declare(self, segment: str) -> None:
        if segment in self._segments:
            if not self._given:
                raise UsageError(f"segment {segment!r} is declared twice: each source and channel has its own")
            return
        if self._given:
            raise UsageError(f"segment {segment!r} is not in segments={self._segments}")
        self._not_defined(f"segment {segment!r}")
        self._segments[segment] = []

    def _feed(self, segment: str, fed: str) -> None:
        if fed not in self._segments:
            raise UsageError(f"segment {fed!r} is of another Tracking: declare the channel here")
        if fed in self._segments[segment]:
            return
        if self._given:
            raise UsageError(f"segment {segment!r} does not feed {fed!r} in segments={self._segments}")
        self._not_defined(f"that {segment!r} feeds {fed!r}")
        self._segments[segment].append(fed)

    def _leading_to(self, segment: str) -> list[str]:
        """The segments from which this one can be reached."""
        found = {segment}
        while more := {name for name, feeds in self._segments.items() if found.intersection(feeds)} - found:
            found |= more
        return sorted(found - {segment})

    def _consume(self, segment: str) -> None:
        if segment in self._consumed:
            raise UsageError(
                f"segment {segment!r} has a consumer already: a segment has one. Send the rows into a channel for each"
            )
        self._consumed.add(segment)

    def _not_defined(self, what: str) -> None:
        if self._defined is not None:
            raise UsageError(
                f"{what} is declared after the first query has started: declare sources, channels and what is sent "
                "into them first, or give Tracking(segments=…, fronts=…)"
            )

    def _define(self) -> None:
        """Defines the job, once."""
        with self._lock:
            if self._defined is not None:
                return
            spec = JobSpec(
                job=self.job,
                deployment=self.deployment,
                segments=self._segments,
                fronts=self._fronts,
                **self._rules,
            )
            try:
                if self._force:
                    self._say_what_is_abandoned()
                defined = self.client.define_job(spec, force=self._force)
            except (TrackerError, TrackerUnavailable) as error:
                raise explained(error) from error
            if defined.drain.state is DrainState.DRAINED:
                raise TrackingError(
                    f"deployment {self.deployment!r} of job {self.job!r} has been drained: start another deployment="
                )
            self._defined = spec
            threading.Thread(
                target=self._watch, args=(defined.last_seq, defined.log_id), name="tracking-watch", daemon=True
            ).start()
            if defined.drain.state in (DrainState.DRAINING, DrainState.TIMED_OUT):
                self._begin_drain()

    def _say_what_is_abandoned(self) -> None:
        try:
            status = self.client.job(self.job)
        except TrackerError as error:
            if error.reason != "UNKNOWN_JOB":
                raise
            return
        if status.spec.deployment != self.deployment and status.open_substreams:
            some = islice(self.client.substreams(self.job), _NAMED)
            names = ", ".join(f"{substream.name} of {substream.scope!r}" for substream in some)
            _log.warning(
                "force: deployment %r takes job %r over from %r; if the graph has changed, what is open is abandoned: "
                "%d substreams, with %d elements in flight: %s%s",
                self.deployment,
                self.job,
                status.spec.deployment,
                status.open_substreams,
                status.in_flight,
                names,
                " and more" if status.open_substreams > _NAMED else "",
            )

    def _watch(self, after: int, log_id: str) -> None:
        """Hears of drains."""
        watch = self.client.watch(self.job, after, segments=[_NO_SEGMENT], log_id=log_id)
        while not self._closed.is_set():
            try:
                for event in watch:
                    if isinstance(event.kind, DrainRequested) and event.deployment == self.deployment:
                        self._begin_drain()
                    elif isinstance(event.kind, Drained) and event.deployment == self.deployment:
                        self._drained.set()
            except TrackerUnavailable as error:
                _log.warning("the watch over job %s waits for the tracker: %s", self.job, error)
            except TrackerError as error:
                _log.error("the watch over job %s has ended: %s", self.job, error)
                return

    # ---------------------------------------------------------------- drain

    def _begin_drain(self) -> None:
        if not self._draining.is_set():
            self._draining.set()
            threading.Thread(target=self._finish_everything, name="tracking-drain", daemon=True).start()

    def _finish_everything(self) -> None:
        try:
            self._await_queries()
            queries = list(self._queries.values())
            entries = [tracked for tracked in queries if tracked.fronts]
            drain = Drain(self.client, self.job, self.deployment, [q.run for q in queries if q.outlives_its_sources])
            for tracked in entries:
                if isinstance(tracked, NativeQuery):
                    for stream in tracked.reads:
                        self.finish(stream)  # it goes on, until what it holds has come out
                else:
                    tracked.stop()
                    tracked.close()
            drain.check()
            for front in self._fronts_here:
                self.client.finish_front(self.job, front)
            drain.await_ends()
            for tracked in queries:
                if tracked not in entries or isinstance(tracked, NativeQuery):
                    tracked.settle()
                    tracked.stop()
                    tracked.close()
                elif isinstance(tracked, BatchQuery) and tracked.release is not None:
                    tracked.release.drain(tracked.run, self.spark)
            drain.confirm()
            self._drained.wait()
        except Exception as error:
            _log.exception("the drain of job %s failed", self.job)
            self._drain_failure = error
        self._stopped_after_drain.set()

    def _await_queries(self) -> None:
        """Waits until all are started: a driver that starts while its job drains hears of it before that."""
        complain_at = time.monotonic() + _COMPLAIN_AFTER
        while True:
            with self._lock:
                read = {stream.segment for tracked in self._queries.values() for stream in tracked.reads}
            missing = (self._consumed if self._given else {*self._segments} - self._states) - read
            if not missing:
                return
            if time.monotonic() > complain_at:
                complain_at = float("inf")
                _log.warning(
                    "the drain of job %s waits for queries to be started: of %s", self.job, ", ".join(sorted(missing))
                )
            time.sleep(_LOOK_EVERY)

    # ---------------------------------------------------------------- commits

    def _follow(self) -> None:
        """Tells the tracker what Spark has committed, and which queries have ended, soon after they have."""
        while not self._closed.wait(_LOOK_EVERY):
            for tracked in list(self._queries.values()):
                try:
                    tracked.follow()
                except Exception as error:
                    _log.error("query %s: %s", tracked.query.id if tracked.query else "?", explained(error))
                    tracked.abandon()


class _Started(StreamingQueryListener):
    """Hears of a query before its first batch. Only while it is started: Python hears of progress at a price."""

    def __init__(self, tracked: TrackedQuery) -> None:
        self._tracked = tracked

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self._tracked.open(str(event.id), str(event.runId))

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass


_NAMED = 10  #: substreams, where it is said what is abandoned
_COMPLAIN_AFTER = 10.0  #: seconds for which a drain waits for queries to be started, and says nothing
_LOOK_EVERY = 0.01  #: seconds between two looks at what Spark has committed
_OWN_OPTIONS = frozenset({"checkpointlocation", "path", "late_path", "compact_from", "seal"})
_NO_SEGMENT = "\N{NULL}"  #: of no job: filters ends out of a watch that is for drains


def _held(released: Released) -> str:
    """The segment that stands for a release's state."""
    return f"{released.stream.segment}.held"
