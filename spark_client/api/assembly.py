"""Queries made of what writers describe: the plan of each, its runtime, and what it reads."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.api.keyed import KeyedWriter, check_provider
from spark_client.api.multi_output import SeveralWriter
from spark_client.api.places import Places
from spark_client.api.readers import ChannelReader, Readable, Reader, SourceReader, events_of
from spark_client.api.refusals import refuse_elsewhere
from spark_client.api.writer import ObservingWriter, TrackedWriter
from spark_client.columns import TRACKER, session_zone
from spark_client.counting.probes import ExecutorProbe, Reporting, TaskPromises
from spark_client.counting.runs import Run
from spark_client.datasource.options import AWAITS
from spark_client.datasource.watermark import TimeSemantics, with_progress
from spark_client.destinations.destination import Destination, SeveralDestinations
from spark_client.destinations.sink import check_sink, opened
from spark_client.errors import UsageError
from spark_client.plan.graph import JobGraph, state_of
from spark_client.plan.keyed import KeyedPlan
from spark_client.plan.releases import ReleasePlan
from spark_client.plan.streams import Source
from spark_client.release.keyed import with_ends
from spark_client.release.quarantine import LATE_SCHEMA
from spark_client.release.single import kept_at
from spark_client.runtime import assembly as runtime
from spark_client.runtime import declared
from spark_client.runtime.definition import Definition
from spark_client.runtime.elsewhere import QueryElsewhere
from spark_client.runtime.metrics import JobMetrics
from spark_client.runtime.observer import Observer
from spark_client.runtime.queries import FunctionQuery, NativeQuery, Read
from spark_client.runtime.queryplan import JobSettings, QueryPlan
from spark_client.runtime.served import PlannedQuery
from spark_client.spark_internals.observations import observe
from spark_client.spark_internals.readers import ASKS_WHERE_IT_ENDS
from spark_client.spark_internals.sessions import moved, own_session
from spark_client.spark_internals.stores import folder_of
from spark_client.storage.folder import Folder
from spark_client.trackers import JobClient
from spark_client.windows import lengths

_log = logging.getLogger("spark_client")

Start = Callable[[], StreamingQuery]


@dataclass(frozen=True)
class Assembly:
    """Common part of the queries of one `Tracking`.

    Attributes:
        spark: the session of the driver, in which the queries run.
        metrics: of the job; None: nobody counts.
        places: the directories of its queries.
    """

    spark: SparkSession
    client: JobClient
    settings: JobSettings
    graph: JobGraph
    definition: Definition
    metrics: JobMetrics | None = None
    places: Places = field(default_factory=Places)

    def plan(self, writer: TrackedWriter | SeveralWriter, checkpoint: Folder) -> QueryPlan:
        """Return the plan of the query that a writer describes."""
        late = opened(writer.to_late, checkpoint)
        if late is not None:
            check_sink(late, LATE_SCHEMA, self.spark)
        if isinstance(writer, TrackedWriter):
            to = writer.destination(kept_at(checkpoint, ""))
            return replace(self._plan(writer, checkpoint, writer.options_given, to), late_to=late)
        plans = []
        for name, places in writer.outputs.items():
            given = list(places.values())
            kept = kept_at(checkpoint, name)
            several = SeveralDestinations({place: each.destination(kept) for place, each in places.items()})
            options = {
                **{key: value for each in given for key, value in each.options_given.items()},
                **writer.options_given,
            }
            receipts = next((each for each in given if each.to_receipts is not None), given[0])
            plans.append(self._plan(receipts, checkpoint, options, several, name))
        return replace(plans[0], beside=tuple(plans[1:]), late_to=late)

    def _plan(
        self, writer: TrackedWriter, checkpoint: Folder, options: Mapping[str, str], to: Destination, name: str = ""
    ) -> QueryPlan:
        """Return the plan of a query that passes its rows on, or of one release."""
        release = writer.release
        to = to.at(checkpoint)
        to.check(writer.schema, release, self.spark)
        given = options.get("late_path")
        late = folder_of(self.spark, given, "late_path") if given else checkpoint / "tracker" / "late"
        stream = writer.rows.plan if release is None else release.stream
        trigger = writer.trigger_given
        bounded = bool({"availableNow", "once"} & trigger.keys())
        if (front := stream.input.front) is not None and front.after_runs and not bounded:
            raise UsageError(
                f"{front!r} promises when a run has read all that there is: start the query with "
                ".trigger(availableNow=True), or leave each= out"
            )
        every = trigger.get("processingTime")
        observes = isinstance(writer, ObservingWriter)
        if observes:  # all rows are counted, and the driver's count is all that is done with them
            stream = replace(stream, input=replace(cast(Source, stream.input), counted=True))
        return QueryPlan(
            replace(self.settings, mode="driver") if observes else self.settings,
            stream,
            release,
            to,
            checkpoint,
            late,
            seals=options.get("seal", "false") == "true",
            compact_from=int(options.get("compact_from", QueryPlan.compact_from)),
            receipts=opened(writer.to_receipts, checkpoint),
            given_up=writer.given_up,
            upstream=tuple(self.graph.leading_to(stream.segment)),
            connected=tuple(self.graph.connected(stream.segment)),
            origins={each: self.graph.trusts.get(each, "") for each in self.graph.origins_of(stream.segment)},
            received_beside=self.graph.received_here,
            state_segment=state_segment(release) if release is not None and to.sends else None,
            name=name,
            bounded=bounded,
            pace=0.0 if every is None else lengths.microseconds(self.spark, every, "trigger") / 1_000_000,
        )

    def query(self, writer: TrackedWriter | SeveralWriter, plan: QueryPlan) -> tuple[FunctionQuery, Start]:
        """Make the query that a writer describes, and what starts it. The job is defined already."""
        rows, checkpoint = writer.rows, plan.checkpoint
        check_zone(rows)
        _warn_of_no_front(rows)
        self.places.take(plan, rows.reader.places())
        tracked: FunctionQuery
        read: Callable[[], DataFrame]
        if isinstance(writer, KeyedWriter):
            check_provider(self.spark)
            tracked = runtime.keyed_query(plan, writer.keyed, self.spark, self.client)
            declared.check_outputs(plan)
            declared.check_plan(plan, {plan.name: min(1, declared.next_epoch(checkpoint))}, tracked.interrupted)
            read = partial(self._with_state, rows, writer.keyed, checkpoint)
            tracked.look()
        else:
            own = own_session(self.spark)
            tracked = runtime.resumed_query(plan, own, self.client, self.definition.largest)
            read = partial(_stream, plan, rows.reader, tracked.counting.observed)
        if self.metrics is not None:
            tracked.metrics = self.metrics.query(writer.name)
        if isinstance(writer, ObservingWriter):
            writer.trigger(once=True)  # of each step; the plan is of all of them

            def begin(function: Callable[[DataFrame, int], None]) -> Start:
                return _start(writer, read, function, checkpoint)

            return tracked, partial(_observe, Observer(writer.observed, tracked, begin))
        return tracked, _start(writer, read, tracked.function, checkpoint)

    def elsewhere(self, writer: TrackedWriter | SeveralWriter, plan: QueryPlan) -> tuple[QueryElsewhere, Start]:
        """Make the query that a writer describes, and what starts it where its batches run on a server. The job is
        defined already.
        """
        if (front := plan.stream.input.front) is not None and front.after_runs:
            refuse_elsewhere(self.spark, "Frontier(each='run')")
        check_zone(writer.rows)
        _warn_of_no_front(writer.rows)
        self.places.take(plan, writer.rows.reader.places())
        read = _stream(plan, writer.rows.reader, plan.counting().observed)
        own = own_session(self.spark)
        rows = moved(read, own)
        return QueryElsewhere(plan, self.client, self.definition.deployment, own), _start(
            writer, lambda: rows, PlannedQuery(plan).packed(), plan.checkpoint
        )

    def native(self, reads: Sequence[Readable], checkpoint: Folder) -> NativeQuery:
        """Make a query that Spark runs with its own stateful operators. The job is defined already.

        Args:
            reads: the streams that it is made of.
        """
        for rows in reads:
            check_zone(rows)
        opens = partial(Run, self.client, self.settings.job)
        tracked = NativeQuery(
            [Read.of(rows.plan, self.spark) for rows in reads], checkpoint, opens, self.graph.received_here
        )
        tracked.look()
        return tracked

    def events(self, **options: str) -> DataFrame:
        """Return the job's events as a streaming DataFrame, with options of the source ``tracker``."""
        return events_of(self.settings, self.spark, **options)

    def watermarked(self, rows: Readable, time: str, over: TimeSemantics) -> DataFrame:
        """Return the rows of a stream under the exact watermark.

        Args:
            time: its column of event time.
            over: what lives by the watermark.

        Raises:
            UsageError: the source's front makes no promise that a watermark could follow.
        """
        data, segment, rule = rows.reader.native(), rows.plan.segment, rows.plan.input.rule
        front = rows.plan.input.front
        if front is not None:
            if not front.moves_progress:
                raise UsageError(
                    f"{front!r} makes no promise for all scopes, which a watermark needs: use Frontier(delay), or "
                    "Schedule(counts) if they are known"
                )
            data = observe(data, segment, front.observed())
            if front.counts or rows.plan.input.counted:
                data = ExecutorProbe(self._reporting, segment, "passing", rule).on(data)
        if rows.plan.input.direction == "received":
            data = ExecutorProbe(self._reporting, segment, "received", rule).on(data)
        data = rows.plan.apply(data).drop(TRACKER)
        advanced = self._kept_events("Advanced", segment, f"watermark of {segment}")
        return with_progress(data, advanced, time, over, segment, rule)

    @property
    def _reporting(self) -> Reporting:
        return Reporting(self.settings.trackers, self.settings.job, self.definition.largest)

    def _kept_events(self, kinds: str, segment: str, subscription: str, **options: str) -> DataFrame:
        """Return the events of a segment, which the tracker keeps while the query is away."""
        options = {"kinds": kinds, "segments": json.dumps([segment]), "subscription": subscription, **options}
        if self.settings.max_away is not None:
            options["max_away"] = str(self.settings.max_away / timedelta(days=1))
        return self.events(**options)

    def _with_state(self, rows: Readable, keyed: KeyedPlan, checkpoint: Folder) -> DataFrame:
        """Return what comes of a stream's rows and of the ends of its substreams, with the state of a user's
        processor."""
        stream = rows.plan
        segment, front, direction = stream.segment, stream.input.front, stream.input.direction
        promises, values = (None, {}) if front is None else (TaskPromises.of(front), front.values())
        probe = ExecutorProbe(self._reporting, segment, direction, keyed.rule, promises)
        counted = probe.on(rows.reader.native(), values)
        ends = self._kept_events("Ended,Late", segment, f"state of {segment}", **{AWAITS: str(checkpoint)})
        return with_ends(keyed, stream.apply(counted).where(keyed.rule.requirement), ends)


def state_segment(release: ReleasePlan) -> str:
    """Return the segment that stands for a release's state."""
    return state_of(release.stream.segment)


def check_zone(rows: Readable) -> None:
    """Refuse a time zone under which rows belong elsewhere than when their source was declared."""
    declared_in, now = rows.plan.input.rule.zone, session_zone(rows.df)
    if isinstance(rows.plan.input, Source) and declared_in not in (None, now):
        raise UsageError(
            f"source {rows.plan.segment!r} was declared while spark.sql.session.timeZone was {declared_in}, and it is "
            f"now {now}: where its rows belong depends on it. Set it before the declarations"
        )


def _warn_of_no_front(rows: Readable) -> None:
    source = rows.plan.input
    if isinstance(source, Source) and not source.front.automatic:
        _log.warning(
            "source %r has no front=, so nothing of it ends before tracking.finish(source) or a drain: give what it "
            "can promise, such as Marks, Schedule or Frontier",
            source.segment,
        )


def _reader_of(plan: QueryPlan, reader: Reader) -> Reader:
    """Read what the plan needs: of a source that is released as it is, only the columns that are used."""
    source = plan.stream.input
    if isinstance(reader, ChannelReader) and plan.bounded and not ASKS_WHERE_IT_ENDS:
        return replace(reader, max_epochs=sys.maxsize)  # its one batch takes all that is there
    if not isinstance(reader, SourceReader) or not isinstance(source, Source):
        return reader
    reader = replace(reader, source=source)
    if plan.stream.steps or not (plan.releases or plan.only_counts):
        return reader
    used = [each.release.reads if each.release is not None else None for each in plan.releases]
    known = [names for names in used if names is not None]
    return reader.pruned(frozenset().union(*known) if len(known) == len(used) else None)


def _stream(plan: QueryPlan, reader: Reader, observed: Mapping[str, Column] | None) -> DataFrame:
    return _reader_of(plan, reader).stream(observed)


def _observe(observer: Observer) -> StreamingQuery:
    return cast(StreamingQuery, observer.start())


def _start(
    writer: TrackedWriter | SeveralWriter,
    read: Callable[[], DataFrame],
    function: Callable[[DataFrame, int], None],
    checkpoint: Folder,
) -> Start:
    def start() -> StreamingQuery:
        writing = read().writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
        if writer.name is not None:
            writing = writing.queryName(writer.name)
        if writer.trigger_given:
            writing = writing.trigger(**writer.trigger_given)
        return writing.start()

    return start
