"""Readers in a query's session: of a source's streaming DataFrame, or of what a channel makes of its directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.datasource import events
from spark_client.datasource.options import options_of
from spark_client.destinations.channel import Channel
from spark_client.plan.streams import Source, Stream
from spark_client.runtime.queryplan import JobSettings
from spark_client.spark_internals.observations import observe
from spark_client.spark_internals.plans import paths_read
from spark_client.windows.belonging import BAD_ROWS


@dataclass(frozen=True, eq=False)
class SourceReader:
    """Reader of a source.

    Attributes:
        df: the user's streaming DataFrame.
        source: as it was declared.
    """

    df: DataFrame
    source: Source

    def stream(self, aggregates: Mapping[str, Column] | None) -> DataFrame:
        """Return the stream, for batches that this package processes.

        Args:
            aggregates: of all its own rows, that are to be observed; None: none are.
        """
        belonging = self.source.belonging
        if belonging.sets_aside:
            aggregates = {**(aggregates or {}), BAD_ROWS: belonging.number_of_bad}
        return observe(self._stamped, self.source.segment, aggregates)

    def native(self) -> DataFrame:
        """Return the tracked rows as a streaming DataFrame, for queries that Spark runs without `foreachBatch`."""
        return self.source.tracked_for_ever(self._stamped)

    @property
    def _stamped(self) -> DataFrame:
        return self.df.withColumns(self.source.stamps) if self.source.stamps else self.df

    def places(self) -> list[tuple[str, str]]:
        """Return what is read from files: a name for messages, and a path, a URI or a pattern of paths."""
        return [("the source's path", path) for path in paths_read(self.df)]

    def pruned(self, used: frozenset[str] | None) -> SourceReader:
        """Read only the columns that are used, if it is known which: what makes substreams and labels is kept.

        Spark cannot see through `foreachBatch` which columns are used there, and would read all of them.

        Args:
            used: by what is done with the rows.
        """
        own, watched = self.source.reads, self.source.front.reads
        if self.source.belonging.sets_aside:
            return self  # rows that are set aside keep all that they have
        if used is None or own is None or watched is None:
            return self
        needed = used | own | watched
        if not needed <= set(self.df.columns):
            return self
        return replace(self, df=self.df.select(*[F.col(name) for name in self.df.columns if name in needed]))


@dataclass(frozen=True, eq=False)
class ChannelReader:
    """Reader of a channel, with the methods of a `SourceReader`.

    Attributes:
        spark: the session in which the stream is made.
        max_epochs: at most so many of the senders' epochs in a batch; None: as many as the channel likes.
    """

    spark: SparkSession
    channel: Channel
    max_epochs: int | None

    def stream(self, aggregates: Mapping[str, Column] | None) -> DataFrame:  # noqa: ARG002
        return self.channel.stream(self.spark, self.max_epochs)

    def native(self) -> DataFrame:
        return self.channel.native(self.spark, self.max_epochs)

    def places(self) -> list[tuple[str, str]]:
        return [(f"channel {self.channel.segment!r}", str(self.channel.path))]


#: Maker of what a query reads.
Reader: TypeAlias = SourceReader | ChannelReader


@dataclass(frozen=True, eq=False)
class Readable:
    """A declared stream in the session that reads it.

    Attributes:
        plan: what is declared of it.
        df: a streaming DataFrame with its columns, never run: what steps, and names of columns, are tried on.
        reader: makes what a query reads.
    """

    plan: Stream
    df: DataFrame
    reader: Reader


def events_of(settings: JobSettings, spark: SparkSession, **options: str) -> DataFrame:
    """Return a job's events as a streaming DataFrame.

    Args:
        options: of the source ``tracker``.
    """
    events.register(spark)
    trackers = settings.trackers
    own = {"job": settings.job, "server": trackers.server, "retry_for": str(trackers.retry_for)}
    if trackers.ordering is not None:
        own["sharded"] = trackers.ordering
    files = options_of(trackers.credentials)
    return spark.readStream.format(events.FORMAT).options(**{**own, **files, **options}).load()
