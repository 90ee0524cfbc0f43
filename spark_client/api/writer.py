"""The output of a tracked query, written as with ``DataFrame.writeStream``; and an observer's, which writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.api.queryoptions import OWN, QueryOptions
from spark_client.api.readers import Readable
from spark_client.api.refusals import check_checkpoint, check_operators, check_option, check_trigger, refuse_elsewhere
from spark_client.columns import check_present
from spark_client.destinations.channel import Channel
from spark_client.destinations.destination import Destination, Nowhere, Written
from spark_client.destinations.formats import FORMATS, TABLES
from spark_client.destinations.routes import ChannelDestination, check_results
from spark_client.destinations.sink import BatchFunction, FunctionDestination, Sink, SinkDestination, check_writes
from spark_client.errors import UsageError, check_choice, check_faults, check_kind, check_seconds, refused
from spark_client.plan.releases import ReleasePlan
from spark_client.plan.streams import Source
from spark_client.release.declaring import results_schema
from spark_client.runtime.observer import Observed
from spark_client.spark_internals.checkpoints import checkpoint_of, started_query
from spark_client.spark_internals.plans import options_read
from spark_client.spark_internals.stores import folder_of
from spark_client.storage.folder import Folder
from spark_client.trackers import JobClient
from spark_client.windows.substreams import Ability, Substreams

#: Options of an observed source under which rows could be missing, or files go: by name in small letters, with the one
#: value that is none of them.
_UNFIT: Final = {
    "cleansource": ("off", "it would remove files of the query that is observed"),
    "failondataloss": ("true", "rows that are gone would be missing in the counts, and nobody would know"),
    "ignoremissingfiles": ("false", "rows that are gone would be missing in the counts, and nobody would know"),
}


class Starter(Protocol):
    """Part of a `Tracking` for a writer and a release."""

    spark: SparkSession
    job: str
    client: JobClient

    @property
    def source_rules(self) -> Mapping[str, Substreams]:
        """Return how the rows of the sources that are declared fall into substreams, by segment."""
        ...

    def define(self) -> None:
        """Define the job at the tracker."""
        ...

    def sends(self, rows: Readable, release: ReleasePlan | None, channel: Channel) -> None:
        """Note that a query will send rows into a channel."""
        ...

    def start(self, writer: TrackedWriter) -> StreamingQuery:
        """Start what a `TrackedWriter` describes."""
        ...

    def start_native(self, writer: NativeWriter, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Start what a `NativeWriter` describes."""
        ...


class TrackedWriter(QueryOptions):
    """Writer of a tracked query's rows, which starts the query.

    Made by ``writeStream`` of a `TrackedStream` or of the result of `Tracking.release`. Its rows may go:

    - a `TrackedStream`: to a `channel`, or by `route` to several, where its rows are counted as sent, to a `sink`, or
      to a function (`foreachBatch`);
    - a release: to files (`format` and a path), to a `sink`, to a function, or to a `channel`.

    Options: ``checkpointLocation`` (required), ``queryName``, and for files those of Spark's batch writer; for a
    release ``late_path`` (where the table of rows that come after their substream's end is; default ``tracker/late`` in
    the checkpoint), ``early_path`` (where early results of files are; default ``tracker/early``) and ``compact_from``
    (how many parts of state there may be before they are made one; default 24).
    ``seal`` (default false): what counts of a batch is fixed at the tracker before Spark commits it, by the attempts
    whose work Spark has kept. It is needed where the work is not deterministic and executors count it; it costs a call
    a batch.

    >>> query = daily.writeStream.option("checkpointLocation", "cp").format("parquet").start("daily")  # doctest: +SKIP

    Attributes:
        writes_files: whether what it writes are results, which may go to files.
    """

    writes_files = False

    def __init__(self, tracking: Starter, rows: Readable, release: ReleasePlan | None = None) -> None:
        super().__init__()
        self._tracking = tracking
        self.rows = rows
        self.release = release
        self.writes_files = self.writes_files or release is not None
        self.file_format: str | None = None
        self._destinations: dict[str, Destination] = {}  # by the method that they were given to; files have a path
        self.to_receipts: Folder | Sink | None = None
        self.given_up = False
        self.partition_columns: tuple[str, ...] = ()

    @property
    def sends(self) -> bool:
        """Return whether the rows go to other queries of the job."""
        return any(to.sends for to in self._destinations.values())

    @property
    def schema(self) -> T.StructType:
        """Of the rows that are written."""
        return self.rows.df.schema if self.release is None else results_schema(self.release, self.rows.df)

    def partitionBy(self, *columns: str) -> TrackedWriter:  # noqa: N802
        """Partition the files of a release."""
        self.partition_columns = columns
        return self

    def outputMode(self, mode: str) -> TrackedWriter:  # noqa: N802
        """Accept only ``append``: final rows, each once."""
        check_choice("outputMode", mode, "append", why=": a tracked query writes final rows once")
        return self

    def format(self, file_format: str) -> TrackedWriter:
        """Choose a table of Delta or Iceberg (``delta``, ``iceberg``), of which each epoch is one commit; or files
        (``parquet``, ``orc``, ``json``, ``csv``), of which each epoch is a directory ``epoch=N``.
        """
        if not self.writes_files:
            raise UsageError(
                "rows of a tracked stream go to a channel (.channel(…)), where they are counted as sent, or to a "
                "function (.foreachBatch(…)); .format(…) is for the results of tracking.release"
            )
        why = (
            "; for others use .sink(…), or .foreachBatch(…) and write by the key (scope, window, keys), since a batch "
            "may be replayed"
        )
        check_choice("format", file_format, *FORMATS, why=why)
        self.file_format = file_format
        return self

    def toTable(self, table: str) -> StreamingQuery:  # noqa: N802
        """Start the query, and write into a table of a catalog, of ``format("delta")`` or ``format("iceberg")``.

        Raises:
            UsageError: files of another format cannot be written there: a replay would add them again.
        """
        why = (
            ", which take each epoch once. Files of other formats go to a path, .start(path), and results for a "
            "database to .sink(Tables(…))"
        )
        check_choice(f"toTable({table!r}): format", self.file_format, *TABLES, why=why)
        return self.start(table)

    def foreachBatch(self, function: BatchFunction) -> TrackedWriter:  # noqa: N802
        """Give the rows to a function of (rows, epoch), called again with the same rows when a batch is replayed.

        It may read all of the rows, some, none, or all twice: what it does not read is counted all the same.

        Of a release it is called only when something is released. Results that are released between two batches come
        with a negative number, which is no batch's and the same whenever they are written again.
        """
        check_kind("the function of foreachBatch", function, Callable, "give a function of (rows, epoch)")
        self._destinations["foreachBatch"] = FunctionDestination(function)
        return self

    def sink(self, sink: Sink) -> TrackedWriter:
        """Write into a place in which a replay puts rows once: `tables.Tables`, `kafka.Topic`, or your own.

        As with `foreachBatch`, of a release it is written to only by batches that have results.
        """
        check_writes(sink, "sink")
        self._destinations["sink"] = SinkDestination(sink)
        return self

    def receipts(self, to: str | os.PathLike[str] | Sink, *, given_up: bool = False) -> TrackedWriter:
        """Leave a receipt for each substream that ends: a row of `RECEIPT_SCHEMA`, written once, after the results.

        Args:
            to: a directory on a file system that this process sees as a path, for Parquet files, which several queries
                may share; or a sink. Into the database of the results it is a sink of its own, which may have the same
                table of epochs.
            given_up: the rows of this release are those that the job has given up (dead letters): the ledger counts
                them so.

        >>> daily.writeStream.receipts("/data/receipts")                                  # doctest: +SKIP
        """
        if self.release is None:
            raise UsageError(
                "receipts are for results of tracking.release: give them to the query that releases; a processor's "
                "handleEnd returns rows of the end instead"
            )
        self.release.rule.require(Ability.RECEIPTS, f"receipts of {self.rows.plan.segment!r}")
        folder = self._folder(to, "the path of the receipts,") if isinstance(to, str | os.PathLike) else to
        self.to_receipts, self.given_up = folder, given_up
        return self

    def channel(self, channel: Channel, ordinal: str | Sequence[str] = ()) -> TrackedWriter:
        """Send the rows to another query.

        Args:
            ordinal: columns that tell apart the rows made of one row (the position of an `explode`, a key of what it
                was joined with), if there can be several.
        """
        return self._send([(channel, None)], ordinal)

    def route(
        self, routes: Sequence[tuple[Channel, Column | str | None]], ordinal: str | Sequence[str] = ()
    ) -> TrackedWriter:
        """Deal the rows out to several channels: each goes where the first condition holds, or nowhere.

        The way each row goes is kept before any is sent, so work that would come out otherwise when it is done again
        sends it one way only.

        Args:
            routes: channels of `Tracking.channel`, with their conditions; None: for all rows that are left.

        >>> again.transform(try_it).writeStream.route(                                     # doctest: +SKIP
        ...     [(clean, "error is null"), (retry, "attempts < 5"), (given_up, None)]
        ... )
        """
        check_faults(
            "route",
            (
                self.release is not None,
                "distributes the rows of a tracked stream; results of a release go to one place: .channel(…)",
            ),
            (not routes, "needs at least one (channel, condition)"),
        )
        given: list[tuple[Channel, Column | None]] = []
        columns = ", ".join(self.rows.df.columns)
        for channel, condition in routes:
            with refused(f"route: {condition!r} is not a condition on the rows, which have: {columns}"):
                asked = F.expr(condition) if isinstance(condition, str) else condition
                if asked is not None:
                    # Spark Connect looks at it when it is asked for a schema that it does not know already.
                    self.rows.df.where(asked).select(F.lit(1)).schema  # noqa: B018
            given.append((channel, F.lit(True) if asked is None else asked))
        return self._send(given, ordinal)

    def _send(self, routes: list[tuple[Channel, Column | None]], ordinal: str | Sequence[str]) -> TrackedWriter:
        ordinal = (ordinal,) if isinstance(ordinal, str) else tuple(ordinal)
        if self.release is not None:
            check_results(self.release)
        columns = self.rows.df.columns if self.release is None else self.release.columns
        check_present(ordinal, columns, "ordinal")
        self._destinations["channel"] = ChannelDestination(routes, ordinal)
        for channel, _ in routes:
            self._tracking.sends(self.rows, self.release, channel)
        return self

    def start(self, path: str | os.PathLike[str] | None = None) -> StreamingQuery:
        """Start the query, once the job is defined and the run is open at the tracker.

        Args:
            path: of files; or the option ``path``.

        Raises:
            UsageError: the rows have no place, or several, or the query has no checkpoint.
            TrackingError: the tracker cannot be reached, or refuses the job or the run.
        """
        if path is not None:
            self.option("path", path)
        self.check_place()
        check_checkpoint(self.options_given.get("checkpointLocation"))
        return self._tracking.start(self)

    def check_place(self) -> None:
        """Refuse rows of which nobody says where they go, or that would go to several places."""
        to_files = self.file_format is not None or "path" in self.options_given
        if to_files + len(self._destinations) != 1 or (to_files and "path" not in self.options_given):
            raise UsageError(
                "the rows need a place: one of .channel(…), .route(…), .sink(…), .foreachBatch(…), or for a release "
                ".start(path)"
            )
        if to_files:
            if self.file_format is None:
                self.format("parquet")
        elif foreign := [key for key in self.options_given if key not in OWN]:
            raise UsageError(
                f"option({foreign[0]!r}): only files take options of Spark's writer, and the rows go elsewhere; "
                f"a tracked query takes {', '.join(OWN)}"
            )

    def _folder(self, location: str | os.PathLike[str], what: str) -> Folder:
        return folder_of(self.rows.df.sparkSession, location, what)

    def destination(self, kept: Folder) -> Destination:
        """Return where the rows go; `check_place` has passed.

        Args:
            kept: the directory in the query's checkpoint where early results of files are, unless an option has
                another.
        """
        if self._destinations:
            (to,) = self._destinations.values()
            return to
        early = None
        if self.release is not None and self.release.early is not None:
            given = self.options_given.get("early_path")
            early = self._folder(given, "early_path") if given else kept / "early"
        options = {key: value for key, value in self.options_given.items() if key not in OWN}
        file_format, place = self.file_format or "parquet", self.options_given["path"]
        folder = None if file_format in TABLES else self._folder(place, "the path of the results,")
        return FORMATS[file_format](Written(place, file_format, options, self.partition_columns, folder, early))


class ObservingWriter(TrackedWriter):
    """Writer of an observer, which counts the rows of a stream and writes none.

    Args:
        rows: of what `Tracking.source` returned, which are counted.
        query: that is observed, or its checkpoint.
        checkpoint: the directory of the observer's own checkpoint.

    Raises:
        UsageError: that cannot be observed.
    """

    def __init__(
        self,
        tracking: Starter,
        rows: Readable,
        query: StreamingQuery | str | os.PathLike[str],
        checkpoint: str | os.PathLike[str],
        source: int | None,
        from_now: bool,
        every: float,
    ) -> None:
        origin, spark = rows.plan.input, rows.df.sparkSession
        refuse_elsewhere(spark, "observe")
        if not isinstance(origin, Source) or rows.plan.steps:
            raise UsageError(
                "observe takes the result of tracking.source as it is: do before what is done to the rows, "
                "tracking.source(raw.where(…), …)"
            )
        check_seconds("observe: every", every)
        given = options_read(rows.df)
        for option, (fit, why) in _UNFIT.items():
            if given.get(option, fit).lower() != fit:
                raise UsageError(f"observe: the source {origin.segment!r} has {option}={given[option]}: {why}")
        place = query if isinstance(query, str | os.PathLike) else checkpoint_of(query)
        observed = folder_of(spark, place, "the checkpoint of the query that is observed,")
        own = folder_of(spark, checkpoint, "checkpoint")
        if f"{own.real}/".startswith(f"{observed.real}/") or f"{observed.real}/".startswith(f"{own.real}/"):
            raise UsageError(
                f"observe: {own} and {observed}, the checkpoint of the query that is observed, are one inside the "
                "other, and nothing is written there: give the observer a checkpoint beside it"
            )
        started_query(observed)
        super().__init__(tracking, rows)
        self.observed = Observed(observed, source, from_now, every)
        self._destinations["observe"] = Nowhere()
        self.option("checkpointLocation", checkpoint)


class NativeWriter:
    """The output of a query that Spark runs with its own stateful operators, as `Tracking.write_stream` gives it.

    Has the methods of Spark's ``DataStreamWriter``; `start` and `toTable` open the query's run at the tracker.
    """

    def __init__(self, tracking: Starter, df: DataFrame, reads: Sequence[Readable]) -> None:
        self._tracking = tracking
        self._df = df
        self._writer = df.writeStream
        self.reads = reads
        self.checkpoint: str | None = None
        self.name: str | None = None

    def option(self, key: str, value: Any) -> NativeWriter:
        """Set one option, as Spark's."""
        check_option(key, value)
        if key.lower() == "checkpointlocation":
            self.checkpoint = str(value)
        self._writer = self._writer.option(key, value)
        return self

    def options(self, **options: Any) -> NativeWriter:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def trigger(self, **trigger: Any) -> NativeWriter:
        """Choose when batches are made, as Spark's."""
        check_trigger(trigger)
        self._writer = self._writer.trigger(**trigger)
        return self

    def queryName(self, name: str) -> NativeWriter:  # noqa: N802
        """Name the query, in Spark's pages and in logs."""
        self.name = name
        self._writer = self._writer.queryName(name)
        return self

    def outputMode(self, mode: str) -> NativeWriter:  # noqa: N802
        """Choose ``append``, final rows; or ``update``, rows as they change, the final ones among them."""
        why = ": in another one state would never go, and no row be final"
        check_choice("outputMode", str(mode).lower(), "append", "update", why=why)
        self._writer = self._writer.outputMode(mode)
        return self

    def start(self, path: str | None = None) -> StreamingQuery:
        """Start the query, once the job is defined and the run is open at the tracker."""
        return self._start(lambda: self._writer.start(path))

    def toTable(self, table: str) -> StreamingQuery:  # noqa: N802
        """Start the query likewise, and write into a table, which is created if it is not there."""
        return self._start(lambda: self._writer.toTable(table))

    def _start(self, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        check_checkpoint(self.checkpoint)
        check_operators(self._df)
        return self._tracking.start_native(self, start)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._writer, name)

        def call(*args: Any, **kwargs: Any) -> NativeWriter:
            self._writer = method(*args, **kwargs)
            return self

        return call
