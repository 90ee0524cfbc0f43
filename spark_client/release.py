"""Release: an aggregation whose rows come out when their substream has ended, each once, and whose state is then gone.

A batch's rows are aggregated natively into partial rows by substream and key; counting what was received rides in the
same aggregation. The end of a substream merges its partial rows natively and writes the result under the batch's epoch.
Which ends a batch acts on is written down before it acts, so a replay acts on the same ones.

What comes after its substream's end never joins a result: it goes to the quarantine, and from there, on demand, into a
revision: a result of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import inheritable_thread_target
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.aggregates import Aggregate, decompose, result_type
from spark_client.batches import planned
from spark_client.directories import read_json, write_first
from spark_client.errors import TrackingError, UsageError
from spark_client.exchanges import exchanging
from spark_client.folding import files, fold_table
from spark_client.fronts import Group
from spark_client.intake import Intake
from spark_client.labels import child_label
from spark_client.outputs import Counted, Output
from spark_client.probes import add_groups, groups_of
from spark_client.quarantine import Quarantine
from spark_client.receipts import End, Receipts
from spark_client.revisions import Revision, Revisions, numbered
from spark_client.runs import Run
from spark_client.state import Account, PartialState
from spark_client.streams import TrackedStream
from spark_client.substreams import TRACKER, ColumnOrName, Substream, column, names_of, resolve
from tracker.client import Ended, Event, Late, Reason, Report, label

if TYPE_CHECKING:
    from spark_client.writer import TrackedWriter

_REMEMBERED = 100_000  #: ended substreams whose late rows are caught row by row
_LISTED = 200  #: substreams that are looked for by a list rather than by a join
_REVISION = "revision"  #: the results' column that tells their revision


@dataclass(frozen=True)
class Measure:
    """One aggregate of the result and the columns that hold its parts."""

    name: str
    aggregate: Aggregate
    parts: tuple[str, ...]
    result: T.DataType


class Released:
    """The results of a release, as `Tracking.release` gives them: `writeStream` says where they go.

    Attributes:
        columns: of the results: the scope, ``window`` (or the substream's name), the keys, the aggregates, and
            ``revision`` if there are revisions.
    """

    def __init__(
        self,
        stream: TrackedStream,
        keys: Sequence[ColumnOrName],
        aggs: Mapping[str, Aggregate | Column],
        revisions: bool = False,
    ) -> None:
        if not aggs:
            raise UsageError("release needs aggs={'name': F.count('*'), …}")
        self.stream = stream
        self.rule = stream.input.rule
        self.revisions = revisions
        fields = [resolve(stream.df, key, "keys") for key in keys]
        self.keys = [field.name for field in fields]
        self._key_columns = [column(key) for key in keys]
        self.measures = []
        for number, (name, value) in enumerate(aggs.items()):
            aggregate = decompose(name, value, stream.df)
            parts = tuple(f"_part_{number}_{place}" for place in range(len(aggregate.partial)))
            self.measures.append(Measure(name, aggregate, parts, result_type(stream.df, aggregate)))
        revision = [_REVISION] if revisions else []
        self.columns = [*self._own_columns(), *self.keys, *(measure.name for measure in self.measures), *revision]
        doubled = {name for name in self.columns if self.columns.count(name) > 1 or name.startswith("_")}
        if doubled:
            raise UsageError(
                f"release: the names {sorted(doubled)} are taken, or begin with an underscore: choose others"
            )

    def __repr__(self) -> str:
        return f"Released(segment={self.stream.segment!r}, columns={self.columns})"

    @property
    def writeStream(self) -> TrackedWriter:  # noqa: N802 - Spark's name
        """Begins the query's output, as ``DataFrame.writeStream`` does."""
        from spark_client.writer import TrackedWriter

        return TrackedWriter(self.stream.tracking, self)

    def described(self) -> dict[str, object]:
        """What shapes its state, as plain data."""
        parts = {field.name: field.dataType.simpleString() for field in self.part_schema.fields}
        aggregates = {
            measure.name: f"{measure.aggregate.native} kept as {', '.join(parts[part] for part in measure.parts)}"
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
            merge(F.col(name)).cast(self.part_schema[name].dataType).alias(name)
            for measure in self.measures
            for name, merge in zip(measure.parts, measure.aggregate.merge, strict=True)
        ]
        return [*parts, F.sum("_rows").alias("_rows")]

    @cached_property
    def _result(self) -> list[Column]:
        name, end = (F.lit(None), F.col("_key")) if self.rule.windows else (F.col("_key"), F.lit(None))
        own = self.rule.result_columns(F.col("_scope"), name, end)
        values = [
            measure.aggregate.finish(*[F.col(name) for name in measure.parts]).cast(measure.result).alias(measure.name)
            for measure in self.measures
        ]
        return [*own, *[F.col(name) for name in self.keys], *values]

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
        return spark.read.schema(self.part_schema).parquet(*paths)

    def rollup(self, part: Path, measures: Sequence[str], labels: bool) -> tuple[list[Group], int]:
        """What a batch's partial rows, as written, say of its substreams; and how many they are."""
        columns = ["_scope", "_key", "_rows", *(["_xor"] if labels else []), *measures]
        table = files(part).to_table(columns=columns)
        folded = fold_table(table, "_xor" if labels else None, measures)
        return groups_of(folded.items(), self.rule), table.num_rows

    def merged(self, partials: DataFrame, wanted: set[Substream]) -> DataFrame:
        """The partial rows of some substreams, one for each key."""
        found = self.of(partials, wanted)
        return found.groupBy("_scope", "_key", *self.keys).agg(*self._merge)

    def results(self, merged: DataFrame, keep: Sequence[ColumnOrName] = ()) -> DataFrame:
        """The result rows of merged partial rows, with some of their columns kept."""
        return merged.select(*self._result, *keep)

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
        name, end = (F.lit(None).cast("string"), key) if self.rule.windows else (key, F.lit(None).cast("timestamp"))
        lineage = child_label(F.xxhash64(F.lit(job), scope, key), self.stream.segment, [F.col(k) for k in self.keys])
        tracker = F.struct(scope.alias("scope"), name.alias("name"), end.alias("end"), lineage.alias("label"))
        return self.results(merged.withColumn(TRACKER, tracker), keep=(TRACKER,))

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
        ends: what receipts are to be left of.
        results: rows that were written, by substream and revision, if that is asked for.
    """

    whole: dict[Substream, list[str]] = field(default_factory=dict)
    split: list[tuple[Substream, list[str]]] = field(default_factory=list)
    late: dict[Substream, tuple[list[str], Account]] = field(default_factory=dict)
    gone: set[Substream] = field(default_factory=set)
    revised: list[Revision] = field(default_factory=list)
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

    Attributes:
        xors: whether the XOR of its rows' labels is asked for.
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
    ) -> None:
        self._released = released
        self._segment = released.stream.segment
        self._output = output
        self._checkpoint = checkpoint
        self._path = checkpoint / "tracker"
        self._held = held
        self._receipts = receipts
        self._segments = [self._segment] if receipts is None else [self._segment, *upstream]
        self.xors = receipts is not None and released.stream.input.named
        self._state = PartialState(self._path / "state", compact_from)
        self._quarantine = Quarantine(checkpoint, late, released.described() if released.revisions else None)
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
                write = partial(self._write_ended, ending, epoch, run, spark)
                writing = self._beside.submit(inheritable_thread_target(spark)(write))
                try:
                    groups = self._take_in(intake, ending, epoch, run)
                finally:
                    wait([writing])
                sent = writing.result()
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
        if released.revisions and (taken := [name for _, name, _ in rows if numbered(name)[1]]):
            raise TrackingError(f"a substream is called {taken[0]!r}: with revisions=True such names are of revisions")
        over = rows.keys() & (ending.gone | self._over.keys())
        late = self._quarantine.decide(epoch, over, again=epoch == run.resume_epoch) & rows.keys()
        if late:
            partials = released.of(released.parts(intake.rows.sparkSession, [str(part)]), late)
            self._set_rows_aside(intake.rows, partials, {substream: rows[substream] for substream in late}, epoch)
        state.add(part, epoch, rows, late, None if self._receipts is None else planned(self._checkpoint, epoch))
        return groups

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
        ending = self._ending(run, epoch)
        self._write_ended(ending, epoch, run, spark)
        if self._receipts is not None:
            self._receipts.write(ending.ends, ending.results, state, run, epoch, spark)
        state.drop(ending.gone)
        state.publish(last)

    def _finish_drain(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """A driver that died in its drain, after what it wrote and before its state, would have it written again."""
        begun = read_json(self._events(-epoch))
        if begun is not None and begun["up_to"] > self._state.position:
            self.drain(run, spark)

    # ---------------------------------------------------------------- ends

    def _take_events(self, run: Run, epoch: int) -> list[Event]:
        """The events that this epoch acts on: fixed by its first attempt, before it acts."""
        state = self._state
        note = self._events(epoch)
        chosen = read_json(note)
        if chosen is None:
            new = state.log_id == ""
            chosen = {"after": run.first_seq if new else state.position, "log_id": state.log_id or run.log_id}
            events, up_to = run.events(chosen["after"], 0, self._segments, chosen["log_id"])
            mine = {**chosen, "up_to": up_to}
            chosen = write_first(note, mine)
            if chosen != mine:  # another driver of this query was here meanwhile
                events, up_to = run.events(chosen["after"], chosen["up_to"], self._segments, chosen["log_id"])
            for old in note.parent.glob("*.json"):
                if abs(int(old.stem)) < abs(epoch) - 2:
                    old.unlink(missing_ok=True)
        else:
            events, up_to = run.events(chosen["after"], chosen["up_to"], self._segments, chosen["log_id"])
        state.position, state.log_id = up_to, chosen["log_id"]
        return events

    def _events(self, epoch: int) -> Path:
        """The note of what an epoch acts on."""
        return self._path / "events" / f"{epoch}.json"

    def _ending(self, run: Run, epoch: int) -> Ending:
        """What this epoch's events end, and which parts of the state that is about."""
        state = self._state
        ending = Ending()
        overdue: list[Late] = []
        for event in self._take_events(run, epoch):
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
                self._end(ending, event, kind)
        named = {(substream.scope, substream.name): substream for substream in state.substreams - ending.gone}
        for lateness in overdue:
            tardy = named.get((lateness.scope, lateness.name))
            if tardy is not None and tardy not in ending.gone:
                self._set_aside(ending, tardy, [name for _, _, name in state.of(tardy)])
        return ending

    def _end(self, ending: Ending, event: Event, ended: Ended) -> None:
        """A substream is released; what its state has from after the end is set aside."""
        substream = _substream(ended)
        own, after = _split(self._state.of(substream), ended)
        if not after and own:
            ending.whole[substream] = own
        elif own:
            ending.split.append((substream, own))
        late = self._set_aside(ending, substream, after)
        ending.ends.append(End(event, substream, 0, self._state.account(substream, own), late))

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
        ended = [merged({substream}, own) for substream, own in ending.split]
        if ending.whole:
            ended.append(merged(set(ending.whole), chain.from_iterable(ending.whole.values())))
        if released.revisions:
            ended = [rows.withColumn("_revision", F.lit(0)) for rows in ended] + self._revised(ending, spark)
        if ended:
            rows = reduce(DataFrame.unionByName, ended)
            revision = [F.col("_revision").alias(_REVISION)] if released.revisions else []
            results = released.results(rows, revision) if self._held is None else released.tracked(rows, run.job)
            sent = self._output.write(results, run, epoch)
            if self._receipts is not None:
                ending.results = released.results_by_substream(rows)
        if ending.late:
            late = [merged({substream}, parts) for substream, (parts, _) in ending.late.items()]
            accounts = {substream: account for substream, (_, account) in ending.late.items()}
            self._set_aggregates_aside(reduce(DataFrame.unionByName, late), accounts, epoch)
        return sent

    def _revised(self, ending: Ending, spark: SparkSession) -> list[DataFrame]:
        """The merged partial rows of revisions: of each those parts of the quarantine that it is made of."""
        alike: dict[tuple[int, tuple[tuple[int, str], ...]], set[Substream]] = {}
        for revision in ending.revised:
            alike.setdefault((revision.number, revision.parts), set()).add(revision.substream)
        revised = []
        for (number, parts), substreams in alike.items():
            paths = [self._quarantine.partials(epoch, kind) for epoch, kind in parts]
            merged = self._released.merged(self._released.parts(spark, paths), substreams)
            revised.append(merged.withColumn("_revision", F.lit(number)))
        return revised

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
        self, rows: DataFrame, partials: DataFrame, late: Mapping[Substream, Account], epoch: int
    ) -> None:
        """Rows whose substream is known to be over."""
        own = [name for name in rows.columns if name != TRACKER]
        scope, key = F.col(f"{TRACKER}.scope"), F.col(f"{TRACKER}.{'end' if self._released.rule.windows else 'name'}")
        flat = rows.select(scope.alias("_scope"), key.alias("_key"), *own)
        self._quarantine.put(epoch, "row", self._table(self._released.of(flat, set(late)), own), partials, late)

    def _set_aggregates_aside(self, merged: DataFrame, late: Mapping[Substream, Account], epoch: int) -> None:
        """Partial rows that came to be known as late only after their rows had been aggregated."""
        own = [name for name in self._released.columns if name != _REVISION or not self._released.revisions]
        keyed = self._released.results(merged, keep=("_scope", "_key"))
        self._quarantine.put(epoch, "aggregate", self._table(keyed, own), merged, late)

    def _table(self, flat: DataFrame, own: Sequence[str]) -> DataFrame:
        """The columns of `LATE_SCHEMA` that are in the files."""
        windows = self._released.rule.windows
        key = F.col("_key")
        return flat.select(
            F.col("_scope").alias("scope"),
            (F.lit(None).cast("string") if windows else key).alias("name"),
            (key if windows else F.lit(None).cast("timestamp")).alias("end_time"),
            F.to_json(F.struct(*own)).alias("data"),
        )


def _substream(kind: Ended) -> Substream:
    return Substream(kind.scope, kind.name, kind.end_time)


def _split(parts: Sequence[tuple[int, int, str]], ended: Ended) -> tuple[list[str], list[str]]:
    """Which parts belong to a substream that has ended, and which came after its end.

    The tracker says how many elements there were; epochs took effect in order, so those of the first epochs that add
    up to as many are the substream's.
    """
    names = [name for _, _, name in parts]
    if ended.reason is not Reason.COMPLETE:
        return names, []
    total = 0
    for place, (_, rows, _) in enumerate(parts):
        if total == ended.elements:
            return names[:place], names[place:]
        total += rows
    return names, []
