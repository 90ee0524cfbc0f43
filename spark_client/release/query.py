"""Release: an aggregation whose rows come out when their substream has ended, each once, and whose state is then gone.

A batch's rows are aggregated natively into partial rows by substream and key; counting what was received rides in the
same aggregation. The end of a substream merges its partial rows natively and writes the result under the batch's epoch.
Which ends a batch acts on is written down before it acts, so a replay acts on the same ones.

What comes after its substream's end never joins a result: it goes to the quarantine, and from there, on demand, into a
revision: a result of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property, reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from pyspark import inheritable_thread_target
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.api.streams import TrackedStream
from spark_client.counting.folding import files, fold_table
from spark_client.counting.intake import Intake
from spark_client.counting.probes import add_groups, groups_of
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.aggregates import Aggregate, decompose, result_field, storable
from spark_client.plan.belonging import no_revision
from spark_client.plan.fronts import Group
from spark_client.plan.labels import child_label
from spark_client.plan.names import alike, check_columns
from spark_client.plan.substreams import TRACKER, ColumnOrName, Substream, column, named, names_of, resolve
from spark_client.release.exchanges import exchanging
from spark_client.release.inbox import Inbox
from spark_client.release.quarantine import Quarantine
from spark_client.release.receipts import End, Receipts
from spark_client.release.revisions import Revision, Revisions, numbered
from spark_client.release.state import Account, PartialState
from spark_client.sinks.outputs import Counted, Output
from spark_client.spark_internals.checkpoints import planned
from spark_client.storage.directories import parquet_of, publishing_after
from tracker.client import Ended, Event, Late, Report, label

if TYPE_CHECKING:
    from spark_client.api.writer import TrackedWriter

OnOverflow: TypeAlias = Literal["fail", "null"]

_REMEMBERED = 100_000  #: ended substreams whose late rows are caught row by row
_LISTED = 200  #: substreams that are looked for by a list rather than by a join
_REVISION = "revision"  #: the results' column that tells their revision
_COMPLETENESS = "completeness"  #: the results' column that tells what of their substream they are of


@dataclass(frozen=True)
class Measure:
    """One aggregate of the result and the columns that hold its parts."""

    name: str
    aggregate: Aggregate
    parts: tuple[str, ...]
    result: T.DataType
    nullable: bool

    @property
    def value(self) -> Column:
        """The result, from the merged parts; null, or wrapped, if it has overflowed."""
        value = self.aggregate.finish(*map(F.col, self.parts)).cast(self.result)
        if self.nullable:
            return value
        nothing = F.array() if isinstance(self.result, T.ArrayType) else F.lit(0)
        return F.coalesce(value, nothing.cast(self.result))

    @property
    def overflowed(self) -> Column | None:
        """Whether it has overflowed; None: it cannot."""
        check = self.aggregate.overflowed
        return None if check is None else check(*map(F.col, self.parts))


class Released:
    """The results of a release, as `Tracking.release` gives them: `writeStream` says where they go.

    Attributes:
        columns: of the results: the scope, ``window`` (or the substream's name), the keys, the aggregates, and
            ``revision`` if there are revisions, and ``completeness`` if that was asked for.
    """

    def __init__(
        self,
        stream: TrackedStream,
        keys: Sequence[ColumnOrName],
        aggs: Mapping[str, Aggregate | Column],
        revisions: bool = False,
        completeness: bool = False,
        on_overflow: OnOverflow = "fail",
    ) -> None:
        if not aggs:
            raise UsageError("release needs aggs={'name': F.count('*'), …}")
        if on_overflow not in ("fail", "null"):
            raise UsageError(f"on_overflow={on_overflow!r}: either 'fail' or 'null'")
        self._on_overflow = on_overflow
        self._made: dict[bool, list[Column]] = {}  # what `_checked` gives, in ANSI mode and without
        self.stream = stream
        self.rule = stream.input.rule
        self.revisions = revisions
        self.completeness = completeness
        check_columns(stream.df, f"release of {stream.segment!r}")  # what comes late is kept by its columns' names
        if revisions and not self.rule.windows and stream.input.belonging is not None:
            stream.input.belonging.require(no_revision(str(self.rule.name)))
        fields = [resolve(stream.df, key, "keys") for key in keys]
        if unfit := [field for field in fields if not storable(field.dataType)]:
            raise UsageError(
                f"keys: files of the state cannot hold {unfit[0].name!r}, which is {unfit[0].dataType.simpleString()}: "
                "cast it to a type that Parquet has"
            )
        self.keys = [field.name for field in fields]
        self._key_columns = [column(key) for key in keys]
        self.measures = []
        for number, (name, value) in enumerate(aggs.items()):
            aggregate = decompose(name, value, stream.df)
            parts = tuple(f"_part_{number}_{place}" for place in range(len(aggregate.partial)))
            result = result_field(stream.df, aggregate)
            self.measures.append(Measure(name, aggregate, parts, result.dataType, result.nullable))
        self.added = [*([_REVISION] if revisions else []), *([_COMPLETENESS] if completeness else [])]
        self.columns = [*self._own_columns(), *self.keys, *(measure.name for measure in self.measures), *self.added]
        taken = {*alike(self.columns, stream.df.sparkSession), *(name for name in self.columns if name.startswith("_"))}
        if taken:
            raise UsageError(
                f"release: the names {sorted(taken)} are taken or empty, or begin with an underscore: choose others, "
                "for keys with .alias('…')"
            )
        if passing := [name for name in self.keys if "lambda" in name and name not in stream.df.columns]:
            raise UsageError(
                f"release: the key {passing[0]!r} is called otherwise at each start: give it a name, with .alias('…')"
            )

    def __repr__(self) -> str:
        return f"Released(segment={self.stream.segment!r}, columns={self.columns})"

    @property
    def writeStream(self) -> TrackedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        from spark_client.api.writer import TrackedWriter

        return TrackedWriter(self.stream.tracking, self)

    def described(self) -> dict[str, object]:
        """What shapes its state, as plain data."""
        parts = {field.name: field.dataType.simpleString() for field in self.part_schema.fields}
        aggregates = {
            measure.name: f"{measure.aggregate.description} kept as "
            + ", ".join([*filter(None, [measure.aggregate.form]), *(parts[part] for part in measure.parts)])
            for measure in self.measures
        }
        return {"keys": {key: parts[key] for key in self.keys}, "aggregates": aggregates}

    def _own_columns(self) -> list[str]:
        scope = [] if self.rule.scope is None else [self.rule.scope]
        return [*scope, "window" if self.rule.windows else str(self.rule.name)]

    # ---------------------------------------------------------------- native plans
    # Columns are made once: each costs some calls into the JVM, which a small batch would notice.

    @cached_property
    def _grouping(self) -> list[Column]:
        key = F.col(f"{TRACKER}.{'end' if self.rule.windows else 'name'}")
        keys = [value.alias(name) for name, value in zip(self.keys, self._key_columns, strict=True)]
        return [F.col(f"{TRACKER}.scope").alias("_scope"), key.alias("_key"), *keys]

    @cached_property
    def _partial(self) -> list[Column]:
        parts = [
            value.alias(name)
            for measure in self.measures
            for name, value in zip(measure.parts, measure.aggregate.partial, strict=True)
        ]
        return [*parts, F.count("*").alias("_rows")]

    @cached_property
    def _xor(self) -> Column:
        return F.bit_xor(F.col(f"{TRACKER}.label")).alias("_xor")

    @cached_property
    def part_schema(self) -> T.StructType:
        """Of a part of the state."""
        return self.partial(self.stream.df, {}, labels=False).schema.toNullable()  # as Parquet gives it back

    @cached_property
    def _merge(self) -> list[Column]:
        parts = [
            merge(*map(F.col, measure.parts)).cast(self.part_schema[name].dataType).alias(name)
            for measure in self.measures
            for name, merge in zip(measure.parts, measure.aggregate.merge, strict=True)
        ]
        return [*parts, F.sum("_rows").alias("_rows")]

    @cached_property
    def _own_result(self) -> list[Column]:
        name, end = (F.lit(None), F.col("_key")) if self.rule.windows else (F.col("_key"), F.lit(None))
        return [*self.rule.result_columns(F.col("_scope"), name, end), *[named(key) for key in self.keys]]

    @cached_property
    def _values(self) -> list[Column]:
        return [measure.value.alias(measure.name) for measure in self.measures]

    def _checked(self, spark: SparkSession) -> list[Column]:
        """The values, and what an overflow makes of them: it is Spark's, unless it is to be null."""
        ansi = spark.conf.get("spark.sql.ansi.enabled") == "true"
        if ansi not in self._made:
            self._made[ansi] = [self._unless_overflowed(measure, ansi).alias(measure.name) for measure in self.measures]
        return self._made[ansi]

    def _unless_overflowed(self, measure: Measure, ansi: bool) -> Column:
        overflowed, value = measure.overflowed, measure.value
        if overflowed is None:
            return value
        if self._on_overflow == "null":
            return F.when(~F.coalesce(overflowed, F.lit(False)), value)
        if not ansi and not measure.aggregate.fails:
            return value
        where = F.to_json(F.struct("_scope", "_key", *[named(key) for key in self.keys]))
        fault = F.concat(
            F.lit(f"the aggregate {measure.name!r} of "),
            where,
            F.lit(
                f" does not fit {measure.result.simpleString()}, and Spark's own would fail. Nothing is lost: start "
                "the query again, with the same checkpoint and release(…, on_overflow='null'): such results are null"
                + ("; or with spark.sql.ansi.enabled=false, and they are what Spark gives then" if ansi else "")
            ),
        )
        return F.when(overflowed, F.raise_error(fault).cast(measure.result)).otherwise(value)

    def partial(self, rows: DataFrame, measures: Mapping[str, Column], labels: bool) -> DataFrame:
        """A batch's partial rows: ``_scope``, ``_key``, the keys, the parts, ``_rows`` and the front's measures."""
        counted = [*([self._xor] if labels else []), *[value.alias(name) for name, value in measures.items()]]
        return rows.groupBy(*self._grouping).agg(*self._partial, *counted)

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns of the stream's rows that it uses; None: not known."""
        reads = [names_of(self._key_columns), *(measure.aggregate.reads for measure in self.measures)]
        known = [names for names in reads if names is not None]
        return frozenset().union(*known) if len(known) == len(reads) else None

    def parts(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """The partial rows of some parts of the state."""
        return parquet_of(spark, self.part_schema).parquet(*paths)

    def rollup(self, part: Path, measures: Sequence[str], labels: bool) -> tuple[list[Group], int]:
        """What a batch's partial rows, as written, say of its substreams; and how many they are."""
        columns = ["_scope", "_key", "_rows", *(["_xor"] if labels else []), *measures]
        table = files(part).to_table(columns=columns)
        folded = fold_table(table, "_xor" if labels else None, measures)
        return groups_of(folded.items(), self.rule), table.num_rows

    def merged(self, partials: DataFrame, wanted: set[Substream]) -> DataFrame:
        """The partial rows of some substreams, one for each key."""
        found = self.of(partials, wanted)
        return found.groupBy("_scope", "_key", *map(named, self.keys)).agg(*self._merge)

    def results(self, merged: DataFrame, keep: Sequence[ColumnOrName] = (), checked: bool = True) -> DataFrame:
        """The result rows of merged partial rows, with some of their columns kept.

        Args:
            merged: the rows.
            keep: of their columns.
            checked: whether an overflow fails where Spark's own aggregate would; else it is null or wrapped.
        """
        values = self._checked(merged.sparkSession) if checked else self._values
        return merged.select(*self._own_result, *values, *keep)

    @property
    def schema(self) -> T.StructType:
        """Of the results."""
        kinds = {_REVISION: F.lit(0), _COMPLETENESS: F.lit("")}
        added = [kinds[name].alias(name) for name in self.added]
        return self.results(self.partial(self.stream.df, {}, labels=False), added).schema

    def results_by_substream(self, merged: DataFrame) -> dict[tuple[Substream, int], int]:
        """How many result rows merged partial rows make, by substream and revision."""
        windows = self.rule.windows
        key = F.unix_micros("_key") if windows else F.col("_key")
        marked = merged if self.revisions else merged.withColumn("_revision", F.lit(0))
        counted = marked.groupBy("_scope", key.alias("_key"), "_revision").count().collect()
        return {
            (self.rule.substream(scope, None if windows else name, name if windows else None), number): rows
            for scope, name, number, rows in counted
        }

    def tracked(self, merged: DataFrame, job: str) -> DataFrame:
        """The result rows with `_tracker`, for a channel: each is a child of the state that it was kept in."""
        scope, key = F.col("_scope"), F.col("_key")
        name, end = (
            (F.lit(None).cast("string"), key) if self.rule.windows else (key, F.lit(None).cast(T.TimestampType()))
        )
        lineage = child_label(F.xxhash64(F.lit(job), scope, key), self.stream.segment, self._key_parts)
        tracker = F.struct(scope.alias("scope"), name.alias("name"), end.alias("end"), lineage.alias("label"))
        return self.results(merged.withColumn(TRACKER, tracker), keep=(TRACKER,))

    @cached_property
    def _key_parts(self) -> list[Column]:
        """The keys, for a label; those made of several values as text, since a hash does not see where each ends."""
        made_of_several = (T.ArrayType, T.MapType, T.StructType)
        return [
            F.to_json(F.struct(named(name)))
            if isinstance(self.part_schema[name].dataType, made_of_several)
            else named(name)
            for name in self.keys
        ]

    def of(self, partials: DataFrame, wanted: set[Substream]) -> DataFrame:
        """The rows of some substreams."""
        windows = self.rule.windows
        if len(wanted) <= _LISTED:
            # As one constant: Spark compiles what it generates anew whenever a number in it is another one.
            listed = ", ".join(_literal(substream) for substream in wanted)
            return partials.where(f"array_contains(array({listed}), struct(_scope, _key))")
        rows = [(scope, name if end_time is None else end_time) for scope, name, end_time in wanted]
        table = partials.sparkSession.createDataFrame(rows, f"_s string, _k {'long' if windows else 'string'}")
        key = F.unix_micros("_key") if windows else F.col("_key")
        matches = (F.col("_scope") == F.col("_s")) & (key == F.col("_k"))
        return partials.join(F.broadcast(table), matches, "left_semi")


def _literal(substream: Substream) -> str:
    """A substream's scope and key in SQL; texts in hexadecimal, so that nothing in them is read as SQL."""

    def text(value: str) -> str:
        return f"cast(X'{value.encode().hex()}' as string)"

    scope, name, end_time = substream
    key = text(name) if end_time is None else f"timestamp_micros({end_time})"
    return f"named_struct('_scope', {text(scope)}, '_key', {key})"


@dataclass
class Ending:
    """What a batch's events end, with the parts of the state that each is kept in.

    Attributes:
        whole: substreams that are released as they are.
        split: those of which the state also has rows that came after the end: the parts from before it.
        late: what came after the end.
        gone: all of them, and those that had no rows here.
        revised: revisions that have ended.
        completeness: of what is released, whether it is all of its substream: as results say it.
        ends: what receipts are to be left of.
        results: rows that were written, by substream and revision, if that is asked for.
    """

    whole: dict[Substream, list[str]] = field(default_factory=dict)
    split: list[tuple[Substream, list[str]]] = field(default_factory=list)
    late: dict[Substream, tuple[list[str], Account]] = field(default_factory=dict)
    gone: set[Substream] = field(default_factory=set)
    revised: list[Revision] = field(default_factory=list)
    completeness: dict[Substream, str] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    results: dict[tuple[Substream, int], int] = field(default_factory=dict)

    @property
    def parts(self) -> set[str]:
        """All parts of the state that have to be read."""
        late = (parts for parts, _ in self.late.values())
        return set(chain.from_iterable(chain(self.whole.values(), (parts for _, parts in self.split), late)))


class ReleaseQuery:
    """What a releasing query does with a batch.

    Args:
        released: the aggregation.
        output: where results go.
        checkpoint: the query's, which its state is in.
        late: where the table of what came late is.
        held: if results are sent on: the segment that stands for the state, which keeps a substream open downstream:
            one element of each substream that is kept here is in flight there.
        compact_from: how many parts of state there may be before they are made one.
        receipts: where receipts go; None: none are written.
        upstream: the segments that lead to the release's, for receipts.
        max_away: how long the query may be away before the tracker stops keeping its ends.

    Attributes:
        xors: whether the XOR of its rows' labels is asked for.
        quarantine: where late rows go, and those that belong to no substream.
    """

    def __init__(
        self,
        released: Released,
        output: Output,
        checkpoint: Path,
        late: Path,
        held: str | None,
        compact_from: int,
        receipts: Receipts | None = None,
        upstream: Sequence[str] = (),
        max_away: timedelta | None = None,
    ) -> None:
        self._released = released
        self._segment = released.stream.segment
        self._output = output
        self._checkpoint = checkpoint
        self._path = checkpoint / "tracker"
        self._held = held
        self._receipts = receipts
        self.xors = receipts is not None and released.stream.input.named
        self._state = PartialState(self._path / "state", compact_from)
        segments = [self._segment] if receipts is None else [self._segment, *upstream]
        self._inbox = Inbox(self._path / "events", self._state, self._segment, segments, max_away)
        self.quarantine = Quarantine(checkpoint, late, released.described() if released.revisions else None)
        self._revisions = Revisions(checkpoint)
        if not released.revisions and self._revisions.all():
            raise UsageError("the query has revisions already, and would drop them: keep release(…, revisions=True)")
        self._over: OrderedDict[Substream, None] = OrderedDict()
        self._crossing: int | None = None  # how many partial rows the last batch had
        self._beside = ThreadPoolExecutor(1, "tracking-release")

    def process(self, intake: Intake | None, run: Run, epoch: int, spark: SparkSession) -> None:
        """Takes a batch in, if it has rows; releases what has ended; and reports both."""
        state, released = self._state, self._released
        state.load(epoch)
        if epoch and epoch == run.resume_epoch:
            self._finish_drain(run, epoch, spark)
        before = state.substreams
        ending = self._ending(run, epoch)

        groups: list[Group] = []
        sent: Counted = {}
        if intake is None:
            sent = self._write_ended(ending, epoch, run, spark)
        elif released.stream.steps or not self._output.concurrent:
            groups = self._take_in(intake, ending, epoch, run)
            sent = self._write_ended(ending, epoch, run, spark)
        else:
            # The ends are of earlier batches' rows, so both can be written at once, and neither needs much of Spark.
            crossing = None if self._crossing is None else self._crossing * max(1, len(ending.parts))
            with exchanging(spark, crossing):
                taken: Future[list[Group]] = Future()  # nothing appears of an epoch whose rows cannot be taken in

                def write() -> Counted:
                    with publishing_after(taken.result):
                        return self._write_ended(ending, epoch, run, spark)

                writing = self._beside.submit(inheritable_thread_target(spark)(write))
                try:
                    groups = self._take_in(intake, ending, epoch, run)
                    taken.set_result(groups)
                except BaseException as error:
                    taken.set_exception(error)
                    raise
                finally:
                    wait([writing])
                sent = writing.result()
        if intake is not None:
            intake.read_the_rest()
            state.bad += intake.set_aside(self.quarantine)
        if self._receipts is not None:
            self._receipts.write(ending.ends, ending.results, state, run, epoch, spark)
        entered = state.substreams
        state.drop(ending.gone)

        report = run.report(epoch)
        if self._held is not None:
            left = entered - state.substreams
            self._hold_in(self._held, report, run.job, sent=entered - before, received=left)
        for segment, sent_on in sent.items():
            add_groups(report, segment, "sent", sent_on)
        if intake is not None:
            intake.say(report, groups)
        run.send(report, epoch)
        state.compact(epoch, epoch - 1, lambda paths, live: released.merged(released.parts(spark, paths), live))
        state.publish(epoch)

    def _take_in(self, intake: Intake, ending: Ending, epoch: int, run: Run) -> list[Group]:
        """Makes a batch's rows part of the state, all but those that are late; counts all."""
        state, released = self._state, self._released
        rides = intake.rides or not intake.must_count
        measures = intake.measures if rides else {}
        labels = rides and intake.counts_labels
        part = state.write_part(epoch, released.partial(intake.rows, measures, labels))
        kept, self._crossing = released.rollup(part, list(measures), labels)
        groups = kept if rides else intake.count()
        rows = {
            substream: Account(int(values["_rows"]), values["_xor"] if intake.counts_labels else None, epoch, epoch)
            for substream, values in groups
        }
        if released.revisions and (taken := [name for (_, name, _), _ in kept if numbered(name)[1]]):
            raise intake.refusal() or TrackingError(
                f"a substream is called {taken[0]!r}: with revisions=True such names are of revisions. The batch was "
                "not committed, and nothing of it was published. Drop these rows, "
                f"receive(…).where({no_revision(str(released.rule.name)).sql!r}), or rename them before they are sent; "
                "then start the query again with the same checkpoint"
            )
        over = rows.keys() & (ending.gone | self._over.keys())
        late = self.quarantine.decide(epoch, over, again=epoch == run.resume_epoch) & rows.keys()
        bare = rows.keys() - {substream for substream, _ in kept}
        if late:
            partials = released.of(released.parts(intake.rows.sparkSession, [str(part)]), late)
            accounts = {substream: rows[substream] for substream in late}
            self._set_rows_aside(None if late <= bare else intake.rows, partials, accounts, epoch)
        batch = None if self._receipts is None else planned(self._checkpoint, epoch)
        state.add(part, epoch, rows, late, batch, bare)
        return groups

    def sweep(self, query: str) -> None:
        """Removes what drivers of this query that were killed have left half written, beside its results."""
        self._state.sweep()
        self._inbox.sweep()
        if self._receipts is not None:
            self._receipts.sweep(query)

    def committed(self, epoch: int) -> None:
        """Spark has committed an epoch."""
        self._inbox.committed(epoch)

    def close(self) -> None:
        """The query has stopped: its thread ends."""
        self._beside.shutdown(wait=False)

    def kept(self, epoch: int) -> int:
        """How many substreams its state holds before an epoch."""
        self._state.load(epoch)
        return len(self._state.substreams)

    def drain(self, run: Run, spark: SparkSession) -> None:
        """Releases what has ended since the last batch, when no other batch will come: the query has stopped."""
        last = run.last_epoch
        if last is None:
            return
        epoch = -last - 1  # the number of no batch; a drain that is repeated after the same batch gives it again
        state = self._state
        state.load(last + 1)
        run.must_be_newest()
        self._inbox.act_instead(epoch, last + 1)
        ending = self._ending(run, epoch)
        # No epoch reports this, so the tracker cannot refuse it. The note of what is released was written before it is
        # asked: a run that is opened later finds the note, and finishes this drain rather than release it again.
        run.must_be_newest()
        self._write_ended(ending, epoch, run, spark)
        if self._receipts is not None:
            self._receipts.write(ending.ends, ending.results, state, run, epoch, spark)
        state.drop(ending.gone)
        state.publish(last)
        self._inbox.committed(epoch)

    def _finish_drain(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """A driver that died in its drain, after what it wrote and before its state, would have it written again.

        Where the batch itself has begun, the driver that was fenced before it could drain has left only its note.
        """
        noted = self._inbox.up_to(-epoch)
        if noted is not None and noted > self._state.position and not self.begun(epoch):
            self.drain(run, spark)

    def begun(self, epoch: int) -> bool:
        """Whether an attempt of a batch has begun to act on events: its results may be out."""
        return self._inbox.up_to(epoch) is not None

    # ---------------------------------------------------------------- ends

    def _ending(self, run: Run, epoch: int) -> Ending:
        """What this epoch's events end, and which parts of the state that is about."""
        state = self._state
        ending = Ending()
        overdue: list[Late] = []
        events = self._inbox.take(run, epoch)
        missed = self._missed(events, run)
        for event in events:
            kind = event.kind
            if not isinstance(kind, Ended | Late):
                continue
            if kind.segment != self._segment:
                if isinstance(kind, Ended) and kind.elements:
                    state.upstream.setdefault(_substream(kind), {})[kind.segment] = kind.elements
                continue
            revision = self._revisions.find(kind.scope, kind.name)
            if revision is not None:
                ending.revised.append(revision)
                ending.ends.append(End(event, revision.substream, revision.number, revision.account, 0))
            elif isinstance(kind, Late):
                overdue.append(kind)
            else:
                self._end(ending, event, kind, missed)
        named = {(substream.scope, substream.name): substream for substream in state.substreams - ending.gone}
        for lateness in overdue:
            tardy = named.get((lateness.scope, lateness.name))
            if tardy is not None and tardy not in ending.gone:
                self._set_aside(ending, tardy, [name for _, name in state.of(tardy)])
        return ending

    def _missed(self, events: Iterable[Event], run: Run) -> set[tuple[str, str]]:
        """Substreams that ended before this query's last committed batch took effect: scope and name.

        What of a batch came too late is announced batch by batch. Earlier batches were committed before earlier events
        were read, so it is the last one that is meant. Nothing is counted: steps may have dropped rows on the way.
        """
        return {
            (kind.scope, kind.name)
            for event in events
            for kind in [event.kind]
            if isinstance(kind, Late) and kind.segment == self._segment and kind.producer == run.query
        }

    def _end(self, ending: Ending, event: Event, ended: Ended, missed: Set[tuple[str, str]]) -> None:
        """A substream is released; what its state has from after the end is set aside."""
        substream = _substream(ended)
        parts = self._state.of(substream)
        last = self._state.epoch if (ended.scope, ended.name) in missed else None
        own, after = [name for epoch, name in parts if epoch != last], [name for epoch, name in parts if epoch == last]
        has_results = self._state.has_rows(substream, own)
        if not after and has_results:
            ending.whole[substream] = own
        elif has_results:
            ending.split.append((substream, own))
        late = self._set_aside(ending, substream, after)
        before = self._state.drained.get(substream, 0)
        ending.ends.append(End(event, substream, 0, self._state.account(substream, own), late, before))
        if ended.by_drain and ended.elements:
            self._state.note_drained(substream, ended.elements)
        elif not ended.by_drain:
            self._state.drained.pop(substream, None)
        if own:
            ending.completeness[substream] = _completeness(before > 0, ended.by_drain)

    def _set_aside(self, ending: Ending, substream: Substream, parts: list[str]) -> int:
        """Its state is over: these parts of it came too late. Says how many rows are in them."""
        account = self._state.account(substream, parts)
        if parts:
            ending.late[substream] = (parts, account)
        ending.gone.add(substream)
        self._remember(substream)
        return account.rows

    def _write_ended(self, ending: Ending, epoch: int, run: Run, spark: SparkSession) -> Counted:
        """Writes the results of what has ended, and sets aside what came too late; says what it has sent."""
        released = self._released

        def merged(substreams: set[Substream], parts: Iterable[str]) -> DataFrame:
            return released.merged(released.parts(spark, self._state.paths(parts)), substreams)

        sent: Counted = {}
        ended = [self._marked(merged({each}, own), ending.completeness[each]) for each, own in ending.split]
        alike: dict[str, set[Substream]] = {}  # one plan, unless results have to be told apart
        for substream in ending.whole:
            alike.setdefault(ending.completeness[substream] if released.completeness else "", set()).add(substream)
        for completeness, substreams in alike.items():
            parts = chain.from_iterable(ending.whole[substream] for substream in substreams)
            ended.append(self._marked(merged(substreams, parts), completeness))
        if released.revisions:
            ended += self._revised(ending, spark)
        if ended:
            rows = reduce(DataFrame.unionByName, ended)
            added = [F.col(f"_{name}").alias(name) for name in released.added]
            results = released.results(rows, added) if self._held is None else released.tracked(rows, run.job)
            sent = self._output.write(results, run, epoch)
            if self._receipts is not None:
                ending.results = released.results_by_substream(rows)
        if ending.late:
            late = [merged({substream}, parts) for substream, (parts, _) in ending.late.items()]
            accounts = {substream: account for substream, (_, account) in ending.late.items()}
            has_rows = any(self._state.has_rows(substream, parts) for substream, (parts, _) in ending.late.items())
            self._set_aggregates_aside(reduce(DataFrame.unionByName, late), accounts, epoch, has_rows)
        return sent

    def _revised(self, ending: Ending, spark: SparkSession) -> list[DataFrame]:
        """The merged partial rows of revisions: of each those parts of the quarantine that it is made of."""
        alike: dict[tuple[int, tuple[tuple[int, str], ...]], set[Substream]] = {}
        for revision in ending.revised:
            alike.setdefault((revision.number, revision.parts), set()).add(revision.substream)
        revised = []
        for (number, parts), substreams in alike.items():
            paths = [self.quarantine.partials(epoch, kind) for epoch, kind in parts]
            merged = self._released.merged(self._released.parts(spark, paths), substreams)
            revised.append(self._marked(merged, "late", number))
        return revised

    def _marked(self, merged: DataFrame, completeness: str, revision: int = 0) -> DataFrame:
        """Merged partial rows with what is added to results."""
        if self._released.revisions:
            merged = merged.withColumn(f"_{_REVISION}", F.lit(revision))
        return merged.withColumn(f"_{_COMPLETENESS}", F.lit(completeness)) if self._released.completeness else merged

    def _remember(self, substream: Substream) -> None:
        self._over[substream] = None
        if len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)

    def _hold_in(self, segment: str, report: Report, job: str, sent: set[Substream], received: set[Substream]) -> None:
        for substreams, say in ((sent, report.sent), (received, report.received)):
            for scope, name, end_time in substreams:
                say(segment, scope, name, label(job, segment, scope, name), end_time)

    # ---------------------------------------------------------------- side output

    def _set_rows_aside(
        self, rows: DataFrame | None, partials: DataFrame, late: Mapping[Substream, Account], epoch: int
    ) -> None:
        """Rows whose substream is known to be over; None: no step has left any."""
        table = None
        if rows is not None:
            own = [name for name in rows.columns if name != TRACKER]
            scope, key = F.col(f"{TRACKER}.scope"), self._released.rule.end_or_name()
            flat = rows.select(scope.alias("_scope"), key.alias("_key"), _json(own))
            table = self._table(self._released.of(flat, set(late)))
        self.quarantine.put(epoch, "row", table, partials, late)

    def _set_aggregates_aside(
        self, merged: DataFrame, late: Mapping[Substream, Account], epoch: int, has_rows: bool
    ) -> None:
        """Partial rows that came to be known as late only after their rows had been aggregated."""
        table = None
        if has_rows:
            own = [name for name in self._released.columns if name not in self._released.added]
            keyed = self._released.results(merged, keep=("_scope", "_key"), checked=False)
            table = self._table(keyed.select("_scope", "_key", _json(own)))
        self.quarantine.put(epoch, "aggregate", table, merged, late)

    def _table(self, flat: DataFrame) -> DataFrame:
        """The columns of `LATE_SCHEMA` that are in the files."""
        windows = self._released.rule.windows
        key = F.col("_key")
        return flat.select(
            F.col("_scope").alias("scope"),
            (F.lit(None).cast("string") if windows else key).alias("name"),
            (key if windows else F.lit(None).cast(T.TimestampType())).alias("end_time"),
            "data",
        )


def _json(columns: Sequence[str]) -> Column:
    return F.to_json(F.struct(*map(named, columns))).alias("data")


def _substream(kind: Ended) -> Substream:
    return Substream(kind.scope, kind.name, kind.end_time)


def _completeness(continues: bool, by_drain: bool) -> str:
    """What of a substream a result is of: see `Tracking.release`."""
    if by_drain:
        return "drained rest" if continues else "drained"
    return "rest" if continues else "whole"
