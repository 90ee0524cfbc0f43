"""Declarations of a job for Spark's own stateful operators: exact watermarks, and state by a user's code."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812

from spark_client.api.assembly import Assembly
from spark_client.api.keyed import KeyedResults, declared
from spark_client.api.refusals import check_exact, refuse_elsewhere
from spark_client.api.streams import TrackedStream
from spark_client.api.writer import NativeWriter, Starter
from spark_client.columns import resolve
from spark_client.datasource.watermark import TimeSemantics
from spark_client.errors import UsageError, check_choice
from spark_client.plan.keyed import SubstreamProcessor
from spark_client.windows.eventtime import INSTANT, WALL, check_kind_of
from spark_client.windows.substreams import Ability


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
        return declared(stream, processor, schema)

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
