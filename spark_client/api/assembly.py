"""Queries made of what writers describe: the output, the release, the probes and the batches of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.api.writer import TrackedWriter
from spark_client.channels.channel import Channel
from spark_client.channels.routes import RoutedOutput
from spark_client.channels.sending import ChannelOutput
from spark_client.counting.batch_input import observed_of
from spark_client.counting.manifest import Manifest
from spark_client.counting.probes import CountingMode, ExecutorProbe
from spark_client.counting.runs import Run
from spark_client.datasource import events
from spark_client.datasource.watermark import TimeSemantics, with_progress
from spark_client.errors import UsageError
from spark_client.plan.graph import JobGraph
from spark_client.plan.outputs import BatchId, Output, check_sink
from spark_client.plan.sources import Source
from spark_client.plan.streams import Direction, Stream
from spark_client.plan.substreams import TRACKER, session_zone
from spark_client.release.aggregation import Aggregation
from spark_client.release.quarantine import Quarantine
from spark_client.release.query import ReleaseQuery
from spark_client.release.receipts import Receipts
from spark_client.release.revisions import Revisions
from spark_client.runtime import declared
from spark_client.runtime.batches import BatchQuery
from spark_client.runtime.definition import Definition
from spark_client.sinks.outputs import Files, ForeachBatchOutput, SinkOutput
from spark_client.spark_internals.checkpoints import last_commit
from spark_client.spark_internals.observations import observe
from spark_client.storage.directories import check_store, local_path
from tracker.client import TrackerClient

_OWN_OPTIONS: Final = frozenset({"checkpointlocation", "path", "late_path", "compact_from", "seal"})

Start = Callable[[], StreamingQuery]


@dataclass(frozen=True)
class Assembly:
    """What the queries of one `Tracking` have in common.

    Attributes:
        spark: the session.
        client: to the tracker.
        job: the job's name.
        server: the tracker's address, for executors.
        retry_for: seconds for which they wait for it.
        way: where rows are counted.
        graph: of the job.
        definition: of the job.
        max_away: for how long the tracker keeps the ends of a query that is away.
    """

    spark: SparkSession
    client: TrackerClient
    job: str
    server: str
    retry_for: float
    way: CountingMode
    graph: JobGraph
    definition: Definition
    max_away: timedelta | None

    def query(self, writer: TrackedWriter, checkpoint: Path) -> tuple[BatchQuery, Start]:
        """Makes the query that a writer describes, and what starts it. The job is defined already.

        Args:
            writer: it.
            checkpoint: the query's.

        Raises:
            UsageError: something does not fit, or cannot be written.
        """
        what, stream, options = writer.what, stream_of(writer), writer.options_given
        check_zone(stream)
        seals = options.get("seal", "false") == "true"
        by_executors = self.way == "executors"
        manifest = Manifest(self.spark.sparkContext) if seals or by_executors else None
        late = local_path(options.get("late_path") or checkpoint / "tracker" / "late", "late_path")
        check_store(late, "late_path")
        quarantine = Quarantine(checkpoint, late, None)
        output = self._output(writer, checkpoint, quarantine, manifest, seals)
        release = None
        if isinstance(what, Aggregation):
            release = self._release(writer, what, output, checkpoint, late)
        self._check_declared(writer, checkpoint, release)
        aggregates = observed_of(stream, rides=release is not None)
        if stream.input.front is not None:
            stream.input.front.look(at_once=True)

        def probe(batch: BatchId) -> ExecutorProbe:
            return self.probe(stream, stream.segment, stream.input.direction, batch, manifest, seals)

        tracked = BatchQuery(
            stream,
            checkpoint,
            partial(self.open_run, seals=seals),
            output,
            release,
            bool(writer.routes),
            probe if by_executors else None,
            manifest,
            seals,
            aggregates,
            quarantine,
        )
        read = stream.input.stream(None if release is None else self._wake_ups(stream, checkpoint), aggregates)
        return tracked, _start(writer, read, tracked, checkpoint)

    def probe(
        self,
        stream: Stream,
        segment: str,
        direction: Direction,
        batch: BatchId | None,
        manifest: Manifest | None = None,
        seals: bool = False,
    ) -> ExecutorProbe:
        """A probe for the executors.

        Args:
            stream: whose rows pass it.
            segment: that they are counted on.
            direction: which way.
            batch: that they are of; None: as the task's own context has it.
            manifest: told whose reports are kept.
            seals: whether the query seals its batches.
        """
        return ExecutorProbe(
            self.server,
            self.retry_for,
            self.job,
            segment,
            direction,
            stream.input.rule,
            batch,
            None if manifest is None else manifest.kept,
            seals,
            self.definition.largest,
        )

    def open_run(self, query: str, run: str, resume_epoch: int, seals: bool = False) -> Run:
        """Opens a run of a query at the tracker.

        Raises:
            TrackingError: the tracker refuses it, or cannot be reached.
        """
        return Run(self.client, self.job, query, run, resume_epoch, seals)

    def events(self, **options: str) -> DataFrame:
        """The job's events as a streaming DataFrame, with options of the source ``tracker``."""
        reader = self.spark.readStream.format(events.FORMAT)
        own = {"job": self.job, "server": self.server, "retry_for": str(self.retry_for)}
        return reader.options(**{**own, **options}).load()

    def watermarked(self, stream: Stream, time: str, over: TimeSemantics) -> DataFrame:
        """The rows of a stream under the exact watermark.

        Args:
            stream: it.
            time: its column of event time.
            over: what lives by the watermark.

        Raises:
            UsageError: the source's front makes no promise that a watermark could follow.
        """
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
                data = self.probe(stream, stream.segment, "passing", None).on(data)
        if stream.input.direction == "received":
            data = self.probe(stream, stream.segment, "received", None).on(data)
        data = stream.apply(data).drop(TRACKER)
        subscribed = {"subscription": f"watermark of {stream.segment}"}
        if self.max_away is not None:
            subscribed["max_away"] = str(self.max_away / timedelta(days=1))
        advanced = self.events(kinds="Advanced", segments=json.dumps([stream.segment]), **subscribed)
        return with_progress(data, advanced, time, over, stream.segment)

    def _wake_ups(self, stream: Stream, checkpoint: Path) -> DataFrame:
        """The stream that makes a batch happen when something has ended."""
        kinds, segments = "Ended,Late,Drained", json.dumps([stream.segment])
        return self.events(kinds=kinds, segments=segments, **{events.WAKE_UP: str(checkpoint)})

    def _output(
        self, writer: TrackedWriter, checkpoint: Path, quarantine: Quarantine, manifest: Manifest | None, seals: bool
    ) -> Output:
        """Where the rows go."""
        what, stream = writer.what, stream_of(writer)

        def sending(channel: Channel) -> ChannelOutput:
            def probe(batch: BatchId) -> ExecutorProbe:
                return self.probe(stream, channel.segment, "sent", batch, manifest, seals)

            belongs = stream.input.belonging
            aside = quarantine if belongs is not None and belongs.sets_aside else None
            return ChannelOutput(channel, writer.ordinal, probe if self.way == "executors" else None, aside)

        conditional = [(condition, channel) for channel, condition in writer.routes if condition is not None]
        if conditional:
            path = checkpoint / "tracker" / "routed"
            return RoutedOutput([(condition, sending(channel)) for condition, channel in conditional], path)
        if writer.routes:
            ((channel, _),) = writer.routes
            return sending(channel)
        if writer.to_sink is not None:
            check_sink(writer.to_sink, what.schema if isinstance(what, Aggregation) else what.df.schema, self.spark)
            return SinkOutput(writer.to_sink)
        if writer.function is not None:
            return ForeachBatchOutput(writer.function)
        return self._files(writer)

    def _files(self, writer: TrackedWriter) -> Files:
        path = local_path(writer.options_given["path"], "the path of the results,")
        check_store(path, "the path of the results,")
        options = {key: value for key, value in writer.options_given.items() if key not in _OWN_OPTIONS}
        output = Files(path, writer.file_format or "parquet", options, writer.partition_columns)
        assert isinstance(writer.what, Aggregation)
        output.check(writer.what.schema, self.spark)
        return output

    def _release(
        self, writer: TrackedWriter, what: Aggregation, output: Output, checkpoint: Path, late: Path
    ) -> ReleaseQuery:
        stream = what.stream
        if isinstance(stream.input, Source) and not stream.steps:
            stream.input.prune(what.reads)
        receipts = None if writer.to_receipts is None else Receipts(writer.to_receipts, checkpoint)
        if receipts is not None:
            receipts.check(self.spark)
        held = state_segment(what) if writer.routes else None
        compact_from = int(writer.options_given.get("compact_from", "24"))
        leading = self.graph.leading_to(stream.segment)
        release = ReleaseQuery(what, output, checkpoint, late, held, compact_from, receipts, leading, self.max_away)
        Revisions(checkpoint).tell(self.client)
        return release

    def _check_declared(self, writer: TrackedWriter, checkpoint: Path, release: ReleaseQuery | None) -> None:
        """Whether the query is still what it was when it wrote its checkpoint."""
        what, stream = writer.what, stream_of(writer)
        described = {
            "job": self.job,
            "segment": stream.segment,
            "substreams": {**stream.input.rule.to_json(), "zone": None},
            declared.ZONE: stream.input.rule.zone,
            **(what.described() if isinstance(what, Aggregation) else {}),
        }
        last = last_commit(checkpoint)
        kept = 0 if release is None else release.kept(0 if last is None else last + 1)
        declared.check(checkpoint / "tracker" / "query.json", described, kept)


def stream_of(writer: TrackedWriter) -> Stream:
    """The stream whose rows a writer's query reads."""
    return writer.what.stream if isinstance(writer.what, Aggregation) else writer.what


def state_segment(released: Aggregation) -> str:
    """The segment that stands for a release's state."""
    return f"{released.stream.segment}.held"


def check_zone(stream: Stream) -> None:
    """Refuses a time zone under which rows belong elsewhere than when their source was declared.

    Raises:
        UsageError: it has changed.
    """
    declared_in, now = stream.input.rule.zone, session_zone(stream.df)
    if isinstance(stream.input, Source) and declared_in not in (None, now):
        raise UsageError(
            f"source {stream.segment!r} was declared while spark.sql.session.timeZone was {declared_in}, and it is "
            f"now {now}: where its rows belong depends on it. Set it before the declarations"
        )


def _start(writer: TrackedWriter, read: DataFrame, tracked: BatchQuery, checkpoint: Path) -> Start:
    writing = read.writeStream.foreachBatch(tracked.process).option("checkpointLocation", str(checkpoint))
    if writer.name is not None:
        writing = writing.queryName(writer.name)
    if writer.trigger_given:
        writing = writing.trigger(**writer.trigger_given)
    return writing.start
