"""What of a job is declared for Spark's own stateful operators: exact watermarks, and state by a user's code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.api.assembly import Assembly
from spark_client.api.keyed import KeyedResults, declared
from spark_client.api.reading import Readable
from spark_client.api.several import SeveralWriter
from spark_client.api.streams import TrackedStream
from spark_client.api.writer import NativeWriter, TrackedWriter
from spark_client.channels.channel import Channel
from spark_client.channels.received import Received
from spark_client.columns import resolve
from spark_client.datasource.watermark import TimeSemantics
from spark_client.errors import UsageError
from spark_client.plan.graph import JobGraph
from spark_client.plan.keyed import SubstreamProcessor
from spark_client.plan.releases import ReleasePlan
from spark_client.runtime.definition import Definition
from spark_client.trackers.jobclient import JobClient
from spark_client.windows.eventtime import WALL
from spark_client.windows.substreams import Substreams


class StatefulDeclarations(ABC):
    """Those declarations of one job whose state Spark keeps.

    Attributes:
        spark: the session.
        job: the job's name.
        client: calls its trackers.
    """

    spark: SparkSession
    job: str
    client: JobClient
    _graph: JobGraph
    _definition: Definition
    _assembly: Assembly

    @property
    def source_rules(self) -> Mapping[str, Substreams]:
        """How the rows of the sources that are declared fall into substreams, by segment."""
        return self._graph.rules

    @abstractmethod
    def define(self) -> None:
        """Define the job at the tracker, with all that is declared; the first start of a query does so."""

    @abstractmethod
    def start(self, writer: TrackedWriter | SeveralWriter) -> StreamingQuery:
        """Start what a writer describes."""

    @abstractmethod
    def start_native(self, writer: NativeWriter, start: Callable[[], StreamingQuery]) -> StreamingQuery:
        """Start what a `NativeWriter` describes."""

    @abstractmethod
    def sends(self, rows: Readable, release: ReleasePlan | None, channel: Channel) -> None:
        """A query will send rows into a channel: the graph and the channel learn of it."""

    def with_watermark(self, stream: TrackedStream, time: str, over: TimeSemantics) -> DataFrame:
        """Return the stream as a DataFrame whose watermark is the tracker's knowledge: instead of ``withWatermark``.

        What Spark's stateful operators make of it comes out when the tracker says that everything is over, with no
        later data, and is pruned then. Start the query with `write_stream`.

        Args:
            stream: of `source` or `receive`.
            time: its column of event time.
            over: ``"windows"`` if windows of that column live by the watermark (``window``), ``"instants"`` if the
                column itself does (``session_window``, ``dropDuplicatesWithinWatermark``, joins of two streams).

        Spark's watermarks start at 1970, so a row whose time is before it fails its batch: drop such rows in a step
        before this, or `release` them.
        """
        if over not in ("windows", "instants"):
            raise UsageError(f"over={over!r}: 'windows' for window, 'instants' for session_window and other operators")
        source = stream.readable.plan.input
        field = resolve(stream.readable.df, time, "with_watermark")
        if field.dataType.simpleString() != "timestamp":
            raise UsageError(f"with_watermark({time!r}): a timestamp is needed, not {field.dataType.simpleString()}")
        if source.rule.time == WALL:
            raise UsageError(
                f"with_watermark({time!r}): {stream.segment!r} has windows over a timestamp_ntz, and a watermark over "
                "a timestamp is on another clock: give the source window=(…) over a timestamp"
            )
        if source.rule.slide:
            raise UsageError(
                f"with_watermark: the rows of {stream.segment!r} are in several windows each, and Spark's operators "
                "would count them as often: give the source window=(time, '1 minute'), and let Spark's window slide"
            )
        if source.rule.shared:
            raise UsageError(
                f"with_watermark: {stream.segment!r} has {source.rule.called}, which release makes: give the source "
                "window=(time, '1 minute'), and let Spark's session_window or window make them"
            )
        if source.rule.calendar is not None and source.rule.calendar.by_row:
            raise UsageError(
                f"with_watermark: the windows of {stream.segment!r} are cut in a zone of each row, and there is one "
                "watermark for all: give the source window=(time, '1 minute')"
            )
        if not source.rule.windows:
            raise UsageError("with_watermark needs substreams that are windows of time: the source's window=(…)")
        self._definition.require_progress()
        if isinstance(source, Received) and not source.channel.exact:
            raise UsageError(
                f"with_watermark: the rows of {stream.segment!r} come at least once, and Spark's operators would count "
                "doubled ones: release them, or send them through a channel of files"
            )
        return self._assembly.watermarked(stream.readable, field.name, over)

    def transform_with_state(
        self, stream: TrackedStream, processor: SubstreamProcessor, schema: T.StructType | str
    ) -> KeyedResults:
        """Your own state for each substream, in Spark's state store, removed when the substream has ended.

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
        return declared(stream, processor, schema)

    def write_stream(self, df: DataFrame, reads: TrackedStream | Sequence[TrackedStream]) -> NativeWriter:
        """Begin the output of a query with Spark's own stateful operators.

        Args:
            df: made of what `with_watermark` gave.
            reads: the tracked streams it was made of.
        """
        streams = [reads] if isinstance(reads, TrackedStream) else list(reads)
        return NativeWriter(self, df, [stream.readable for stream in streams])

    def events(self, **options: str) -> DataFrame:
        """Return the job's events as a streaming DataFrame: ``spark.readStream.format("tracker")`` with its options."""
        return self._assembly.events(**options)
