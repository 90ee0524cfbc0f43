"""`Tracking`: a job, declared in Spark's terms, and its queries while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta
from functools import wraps
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.api.assembly import Assembly
from spark_client.api.declarations import Declarations, StatefulDeclarations
from spark_client.api.multi_output import Outputs, SeveralWriter
from spark_client.api.refusals import check_session, check_start, refuse_elsewhere
from spark_client.api.streams import TrackedStream
from spark_client.api.writer import NativeWriter, TrackedWriter
from spark_client.errors import UsageError, check_choice
from spark_client.fronts.front import Front, Rows
from spark_client.plan.graph import JobGraph
from spark_client.plan.names import check_job
from spark_client.release.early import early_rows
from spark_client.release.revisions import Revision, Revisions, late_rows
from spark_client.release.single import kept_at
from spark_client.runtime.assembly import check_stores
from spark_client.runtime.definition import Definition
from spark_client.runtime.follower import Follower
from spark_client.runtime.metrics import JobMetrics, MetricsServer
from spark_client.runtime.queries import TrackedQuery
from spark_client.runtime.queryplan import CountingMode, JobSettings
from spark_client.runtime.running import Running
from spark_client.spark_internals.plans import without_call_sites
from spark_client.spark_internals.sessions import is_remote
from spark_client.spark_internals.stores import folder_of
from spark_client.trackers import Trackers
from spark_client.trackers.embedding import is_journal, tracker_of
from spark_client.windows.lengths import Duration, length
from spark_client.windows.substreams import Substreams
from tracker.client import Credentials, DrainMode, Ordering
from tracker.contract.values import table

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


_Part = TypeVar("_Part")
_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def _by(
    part: str, method: Callable[Concatenate[_Part, _Given], _Made]
) -> Callable[Concatenate[Tracking, _Given], _Made]:
    """Return a method of `Tracking` that one of its parts carries out, with that one's arguments and documentation."""

    @wraps(method)
    def delegated(self: Tracking, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        with without_call_sites():
            return method(getattr(self, part), *args, **kwargs)

    return delegated


class Tracking:
    """Tracking of one job's queries in one Spark session.

    Declare sources, channels and releases first, then start the queries: the first start defines the job with the graph
    that was declared. Queries of one job in several applications have to declare the same graph: give `segments` and
    `fronts` there.

    Args:
        spark: the session: classic, or of Spark Connect.
        job: the job as trackers, events and metrics name it.
        server: the tracker's address; or several, of which one has the job, as `tracker.client.servers.names` takes
            them. With `sharded`, all of them share it. Or a journal's address, ``file:///DIRECTORY``,
            ``sqlite:PATH``, ``s3://…``: its tracker then runs in this process, until the process ends, and this
            user's other programs on the machine find it by the same address. None: such a journal in the folder of
            the checkpoints, ``_tracker/JOB``; all queries of the job have their checkpoints there.
        deployment: which deployment of the job this is. Restarts keep it; a new version of the job with another graph,
            or the next start after a drain, takes a new one.
        probe: who reports what native aggregations have counted. ``"driver"``: the driver, so no task calls the
            tracker. ``"executors"``: of rows that are passed on, the tasks, so that no driver has to hold all groups.
        retry_for: seconds for which a tracker that cannot be reached is waited for, before a batch fails.
        outbox: whether the batch goes on then, instead: its report is kept in the checkpoint and sent when the tracker
            is back, and results wait until then. Not with state of the user's own, whose tasks need the tracker.
        sharded: a hash assigns each substream to one of the servers (`tracker.client.ShardedClient`), for a job that is
            too large for one. The servers and the ordering, ``"none"`` or ``"scope"``, then belong to the job for its
            whole life.
        segments: the whole graph, if not all of it is declared here: for each segment those that it feeds.
        fronts: all fronts, likewise; or for each front the segments that it feeds. A segment waits for the fronts from
            which it can be reached, so sources that never meet do not hold each other. A front is called as its
            source's segment, or that with ``/0``, ``/1``, … of its partitions; one that is called otherwise, and given
            without segments, feeds all.
        force: take the job over from another deployment even if its graph has changed while substreams are open, or
            it is being drained. Open substreams are abandoned; a warning counts and names them.
        ordering: a rule of the job, like the following ones: see `tracker.client.JobSpec`. Durations are timedeltas, or
            texts that Spark parses (``"10 minutes"``).
        progress: a rule of the job; it is on as soon as `with_watermark` is used.
        stall_after, expire_after, idle_after, retention: rules of the job.
        deadline, deadline_by_event_time, threshold, threshold_after, scope_idle_after, front_idle_after: rules that
            release what no front has promised; see `JobSpec`.
        remember: how long names of substreams that have ended are remembered where no front's promise does it, so that
            what comes of them later is late; None: as long as there is the job.
        max_away: how long a query may be stopped while the tracker keeps its ends for it, whatever `retention` is;
            None: 30 days. A release that comes back later asks the tracker for each substream of its state.
        credentials: the files of certificates and of the token, which the driver and the executors read; None: those
            that the driver's environment names (`tracker.client.Credentials.from_environment`).
        metrics: ``HOST:PORT``, where the driver serves metrics by HTTP from the first query's start to `stop`; or a
            registry of prometheus-client, which the program serves itself; None: nothing is counted.

    As a context manager it stops its queries at the end.

    >>> tracking = Tracking(spark, job="flights", server="127.0.0.1:7654")                     # doctest: +SKIP
    """

    def __init__(
        self,
        spark: SparkSession,
        job: str,
        server: str | None = None,
        deployment: str = "1",
        *,
        probe: CountingMode = "driver",
        retry_for: float = 60.0,
        outbox: bool = False,
        sharded: bool = False,
        segments: Mapping[str, Sequence[str]] | None = None,
        fronts: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        force: bool = False,
        ordering: Ordering = "none",
        progress: bool = False,
        stall_after: Duration | None = None,
        expire_after: Duration | None = None,
        idle_after: Duration | None = None,
        deadline: Duration | None = None,
        deadline_by_event_time: bool = False,
        threshold: float | None = None,
        threshold_after: Duration | None = None,
        scope_idle_after: Duration | None = None,
        front_idle_after: Duration | None = None,
        retention: Duration | None = None,
        remember: Duration | None = None,
        max_away: Duration | None = None,
        credentials: Credentials | None = None,
        metrics: str | CollectorRegistry | None = None,
    ) -> None:
        check_choice("probe", probe, "driver", "executors")
        check_session(spark)
        check_job(job, deployment)
        if metrics is not None:
            refuse_elsewhere(spark, "metrics=")
        if server is None or is_journal(server):
            refuse_elsewhere(spark, "server=")
        self.spark = spark
        self.job = job
        self.deployment = deployment
        self._metrics_server = None if metrics is None else MetricsServer(metrics)
        registry = None if self._metrics_server is None else self._metrics_server.registry
        _check_ordering(sharded, ordering)
        self._tracker = tracker_of(server, job)
        is_here = self._tracker.address.startswith("unix:")
        if probe == "executors" and is_here and not str(spark.sparkContext.master).startswith("local"):
            raise UsageError(
                "the tracker runs in this process, where executors of other machines cannot reach it: probe='driver', "
                "or run `tracker serve`, and give its address as server"
            )
        trackers = Trackers(
            self._tracker.address,
            ordering if sharded else None,
            retry_for,
            Credentials.from_environment() if credentials is None else credentials,
        )
        self.client = trackers.client(registry)
        self._retry_for = retry_for
        self._graph = JobGraph(segments, fronts)
        lengths = _lengths(spark, stall_after=stall_after, expire_after=expire_after, idle_after=idle_after)
        lengths |= _lengths(spark, deadline=deadline, threshold_after=threshold_after)
        lengths |= _lengths(spark, scope_idle_after=scope_idle_after, front_idle_after=front_idle_after)
        lengths |= _lengths(spark, retention=retention, remember=remember)
        chosen = {"ordering": ordering, "progress": progress, "threshold": threshold}
        rules = {**lengths, **chosen, "deadline_by_event_time": deadline_by_event_time}
        self._definition = Definition(self.client, job, deployment, self._graph, rules, force)
        self._max_away = _lengths(spark, max_away=max_away)["max_away"]
        settings = JobSettings(job, trackers, probe, self._max_away, lengths["remember"], outbox)
        counting = None if registry is None else JobMetrics(registry, job)
        self._assembly = Assembly(spark, self.client, settings, self._graph, self._definition, counting)
        self._declarations = Declarations(self, self._graph, self._definition)
        self._stateful = StatefulDeclarations(self, self._assembly)
        self._running = Running(self.client, job, deployment, self._graph)
        self.pausing = threading.Lock()  #: who holds it may pause the queries
        if counting is not None:
            counting.watch(self._running)

    def __repr__(self) -> str:
        return f"Tracking(job={self.job!r}, server={self.server!r}, deployment={self.deployment!r})"

    def _repr_html_(self) -> str:
        queries = [each.checkpoint for each in self._running.followed]
        return table({"job": self.job, "server": self.server, "deployment": self.deployment, "queries": queries})

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def server(self) -> str:
        """Return what other programs may give as ``server``; empty: the first query, which decides, has not started."""
        return self._tracker.name

    @property
    def metrics_url(self) -> str | None:
        """Return where the driver's metrics are served; None: no query was started, or they are not served here."""
        return None if self._metrics_server is None else self._metrics_server.url

    @property
    def queries(self) -> list[TrackedQuery]:
        """The queries whose batches this process drives: the newest run of each, whether it goes on or has ended."""
        return self._running.queries

    @property
    def source_rules(self) -> Mapping[str, Substreams]:
        """Return how the rows of the sources that are declared fall into substreams, by segment."""
        return self._graph.rules

    # ---------------------------------------------------------------- declarations

    source = _by("_declarations", Declarations.source)
    channel = _by("_declarations", Declarations.channel)
    table_channel = _by("_declarations", Declarations.table_channel)
    lake_channel = _by("_declarations", Declarations.lake_channel)
    kafka_channel = _by("_declarations", Declarations.kafka_channel)
    receive = _by("_declarations", Declarations.receive)
    release = _by("_declarations", Declarations.release)
    observe = _by("_declarations", Declarations.observe)
    sends = _by("_declarations", Declarations.sends)
    with_watermark = _by("_stateful", StatefulDeclarations.with_watermark)
    transform_with_state = _by("_stateful", StatefulDeclarations.transform_with_state)
    write_stream = _by("_stateful", StatefulDeclarations.write_stream)
    events = _by("_stateful", StatefulDeclarations.events)

    def write_together(self, outputs: Outputs) -> SeveralWriter:
        """Begin the output of one query that makes several releases of one stream, or write one to several places.

        Each batch is read and counted once, and acts on the same ends for all. Each output has each result once.

        Args:
            outputs: by name, which its part of the checkpoint is kept by: ``released.writeStream`` with where its
                results go; or, of one release, several such by the place's name.

        Raises:
            UsageError: they are not of one stream, or one of them needs a query of its own.

        >>> tracking.write_together({                                                      # doctest: +SKIP
        ...     "by_kind": by_kind.writeStream.format("parquet").option("path", "/data/by_kind"),
        ...     "by_shop": {"table": by_shop.writeStream.sink(tables), "topic": by_shop.writeStream.sink(topic)},
        ... }).option("checkpointLocation", "/cp").start()
        """
        return SeveralWriter(self, outputs)

    # ---------------------------------------------------------------- what came late, or early

    def late(self, checkpoint: str | PathLike[str], late_path: str | None = None) -> DataFrame:
        """Return what a query has set aside: late rows, and rows of no substream: `LATE_SCHEMA`, with ``revision``.

        Args:
            checkpoint: of the query, which need not run.
            late_path: the query's option, if it was given.

        Returns:
            One row for each late row (``kind`` ``row``), or for each result row that late rows would have made
            (``aggregate``); ``revision`` is null for what was not reopened. And one for each row that belongs to no
            substream (``bad``), with the reason: see `source`, on_bad_rows.
        """
        path = folder_of(self.spark, checkpoint, "checkpoint")
        late = path / "tracker" / "late" if late_path is None else folder_of(self.spark, late_path, "late_path")
        return late_rows(self.spark, path, late)

    def early(self, checkpoint: str | PathLike[str], early_path: str | None = None, *, release: str = "") -> DataFrame:
        """Return the newest early results of a release that writes files: one row for each key of what is open yet.

        They are of the moment in which this is called: call it again for newer ones. A reader of both reads these
        first, then the final ones, and takes the final one of a key that is in both.

        Args:
            checkpoint: of the query, which need not run; it was declared with ``release(…, early=…)``.
            early_path: the query's option, if it was given.
            release: its name, if the query has several (`write_together`).

        Returns:
            Rows with the columns of the results; ``final`` is false, and ``as_of`` the last batch whose rows are in it.

        Raises:
            UsageError: there are none yet.

        >>> tracking.early("/data/cp").orderBy("shop").show()                              # doctest: +SKIP
        """
        path = folder_of(self.spark, checkpoint, "checkpoint")
        early = None if early_path is None else folder_of(self.spark, early_path, "early_path")
        return early_rows(self.spark, path, kept_at(path, release), early)

    def reopen(
        self,
        checkpoint: str | PathLike[str],
        *,
        scope: str | None = None,
        name: str | None = None,
        end_time: datetime | None = None,
    ) -> list[Revision]:
        """Make revisions of what came late and is in none yet; the query releases them when it runs.

        A row that came late is in one revision of its substream, whoever asks, and however often.

        Args:
            checkpoint: of the release's query, which need not run; it was declared with ``revisions=True``.
            scope: only of substreams of this scope, as the table of late rows calls it.
            name: only of substreams of this name.
            end_time: only of substreams with this end time; it has its zone, or is in local time; of windows over a
                ``timestamp_ntz`` it has none.

        Returns:
            Those that were made now.

        Raises:
            UsageError: the query keeps nothing that could be reopened.
            TrackingError: the tracker could not be reached; it learns when the query starts, or with the next call.

        >>> tracking.reopen("/cp/2", scope="JFK", end_time=datetime(2026, 3, 2, tzinfo=UTC))    # doctest: +SKIP
        """
        revisions = Revisions(folder_of(self.spark, checkpoint, "checkpoint"))
        made = revisions.reopen(scope, name, end_time)
        revisions.tell(self.client)
        return made

    # ---------------------------------------------------------------- while it runs

    def process_all_available(self) -> None:
        """Wait until the queries of this session have processed all rows that are there, and the ends this brings.

        For tests and bounded data, as Spark's own ``processAllAvailable``; it never returns while rows keep coming.

        Raises:
            TrackingError: a query has failed.
        """
        rounds: list[list[object]] = []
        while len(rounds) < 2 or rounds[-1] != rounds[-2]:
            self.check()
            for followed in self._running.followed:
                with suppress(StreamingQueryException):  # `check` has the sentence that Spark's text is wrapped around
                    followed.settle()
                self.check()
            rounds.append([followed.progress for followed in self._running.followed])
        self.check()

    def finish(self, stream: TrackedStream) -> None:
        """Finish a source: what it has sent so far is all. This cannot be taken back.

        Call it when the query that reads the source has processed everything (`process_all_available`).

        Raises:
            TrackingError: the tracker refuses to finish it.
        """
        self._running.finish(_front_of(stream, "finish", "end when its senders have finished"))

    def expect(
        self,
        stream: TrackedStream,
        rows: Rows,
        *,
        through: datetime | date | None = None,
        revise: bool = False,
    ) -> None:
        """Give counts to a source whose front is a `Schedule`: how many rows substreams will have.

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
            TrackingError: the tracker refuses: another number was given before. Or the query has ended: nobody has
                taken the counts, so they have to be given again. Neither changes anything.

        >>> tracking.expect(orders, [("berlin", date(2026, 3, 1), 1204)])                     # doctest: +SKIP
        """
        front = _front_of(stream, "expect", "are counted by its senders")
        reading = [found for each in self._running.followed for found in each.reading(front)]
        if not reading:
            front.live(self.spark).expect(None, rows, through, revise)
            return
        live, run = next((each for each in reading if not each[1].closed), reading[-1])
        live.expect(run, rows, through, revise)

    def drain(self, timeout: float | None = None) -> None:
        """Finish everything: sources stop between two batches, what was read is released, then all queries stop.

        Args:
            timeout: seconds to wait for the end; None: as long as it takes.

        Raises:
            TimeoutError: it is not over in that time, and goes on. The message names what is missing.
            TrackingError: a query has failed.
        """
        self._ask_for(DrainMode.FINISH, timeout)

    def hand_over(self, timeout: float | None = None) -> None:
        """Stop everything so that the next deployment goes on with the windows that are open; none is split.

        Sources stop between two batches and do not finish. The rows read pass channels and loops, releases keep what
        has not ended in their checkpoints, and all queries stop. Then start the next version with the same checkpoints
        and another ``deployment=``.

        Args:
            timeout: seconds to wait for the end; None: as long as it takes.

        Raises:
            TimeoutError: it is not over in that time, and goes on. The message names what is missing.
            TrackingError: a query has failed, or the tracker refuses: the job is being drained already.

        >>> tracking.hand_over(timeout=600)                                                    # doctest: +SKIP
        """
        self._ask_for(DrainMode.HAND_OVER, timeout)

    def _ask_for(self, mode: DrainMode, timeout: float | None) -> None:
        if not self._running.has_drained():
            self._definition.define(to_drain=True)
        self._running.drain(mode)
        self.await_drained(timeout)

    def await_drained(self, timeout: float | None = None) -> None:
        """Wait until a drain or a hand-over, whoever asks for it, is over and the queries here have stopped.

        Raises:
            TimeoutError: it is not over in that time.
            TrackingError: a query has failed, or was stopped.
        """
        self._running.await_drained(timeout)

    def check(self) -> None:
        """Raise what has gone wrong in a query of this session: in the newest run of each.

        Raises:
            TrackingError: the tracker refused a commit, or Spark's query failed. It begins with what happened and what
                to do; Spark's own error is its cause.
        """
        self._running.check()

    def stop(self, timeout: float | None = None) -> None:
        """Stop the queries of this session between two batches; nothing ends: they can go on where they were.

        It can be called twice, from any thread, in a query's own batch (which then goes on to its end), while a query
        starts and while the tracker is away. When it has returned, nothing of this object acts any more, and queries
        can be started again, here or by another `Tracking`.

        Args:
            timeout: seconds after which a batch in hand is interrupted (it is read again by the next start), and a
                tracker that is away is waited for no longer; None: as many as `retry_for`.
        """
        self._running.stop(self._retry_for if timeout is None else timeout)
        if self._metrics_server is not None:
            self._metrics_server.close()

    # ---------------------------------------------------------------- starting

    @without_call_sites()
    def start(self, writer: TrackedWriter | SeveralWriter) -> StreamingQuery:
        """Start what a writer describes."""
        checkpoint = folder_of(self.spark, writer.options_given["checkpointLocation"], "checkpointLocation")
        check_start([writer.rows.plan], checkpoint, writer.name, self._running.followed, self.spark)
        plan = self._assembly.plan(writer, checkpoint)  # what cannot be written is refused before the job is defined
        if is_remote(self.spark):
            self.define()
            return self._running.launch(self.spark, *self._assembly.elsewhere(writer, plan))
        check_stores(plan)
        self._tracker.start(checkpoint)
        self.define()
        tracked, start = self._assembly.query(writer, plan)
        return self._launch(tracked, start)

    def start_native(self, writer: NativeWriter, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Start what a `NativeWriter` describes."""
        refuse_elsewhere(self.spark, "write_stream")
        assert writer.checkpoint is not None
        checkpoint = folder_of(self.spark, writer.checkpoint, "checkpointLocation")
        check_start([read.plan for read in writer.reads], checkpoint, writer.name, self._running.followed, self.spark)
        self._tracker.start(checkpoint)
        self.define()
        return self._launch(self._assembly.native(writer.reads, checkpoint), start)

    def _launch(self, tracked: TrackedQuery, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        if self._metrics_server is not None:
            self._metrics_server.open()
        return self._running.launch(self.spark, Follower(tracked), start)

    def define(self) -> None:
        self._definition.define()


def _front_of(stream: TrackedStream, call: str, else_they: str) -> Front:
    """Return the front of a source; refuse a channel, whose rows need no such call."""
    front = stream.readable.plan.input.front
    if front is None:
        raise UsageError(f"{call} takes the result of tracking.source; rows of a channel {else_they}")
    return front


def _check_ordering(sharded: bool, ordering: Ordering) -> None:
    if sharded and ordering == "global":
        raise UsageError(
            "sharded=True keeps no order over the servers, since a release acts on ends as each server announces "
            "them: take ordering='scope' or 'none', or one server"
        )


def _lengths(spark: SparkSession, **given: Duration | None) -> dict[str, timedelta | None]:
    """Return rules of the job that are lengths of time."""
    return {
        name: None if duration is None else timedelta(microseconds=length(spark, duration, name))
        for name, duration in given.items()
    }
