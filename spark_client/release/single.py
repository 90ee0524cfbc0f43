"""One release of a query: its state, and what becomes of it when substreams end.

A query has one release, or several of the same stream. They share the query's rows, its events, and what was decided of
both; each has its own state, and its own results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER, named
from spark_client.counting.runs import Run
from spark_client.destinations.destination import EarlyOutput, Output
from spark_client.fronts.front import Group
from spark_client.plan.batches import Counted
from spark_client.plan.releases import AS_OF, FINAL, REVISION, ReleasePlan
from spark_client.release.aggregation import Aggregation
from spark_client.release.early import EarlyResults
from spark_client.release.epoch_ends import EpochEnds, missed_ends, substream_of
from spark_client.release.keptrows import aggregation_of
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Quarantine
from spark_client.release.receipts import End, Receipts
from spark_client.release.results import Results, added
from spark_client.release.revisions import Revisions
from spark_client.release.shared_ends import SharedEnds
from spark_client.release.state import PartialState
from spark_client.spark_internals.checkpoints import Batch
from spark_client.windows.substreams import COMPLETENESS, Substream, completeness_of
from tracker.client import Ended, Event, Late

_OUTPUTS: Final = "outputs"  #: beneath ``tracker`` in a checkpoint: what each of several releases keeps


class LateRows:
    """Late rows of one release, set aside.

    Args:
        name: of the release, among several of its query.
        counts: whether it is the release that counts the query's rows: late ones are counted once, and shown once as
            they came.
    """

    def __init__(self, aggregation: Aggregation, quarantine: Quarantine, name: str = "", counts: bool = True) -> None:
        self._aggregation = aggregation
        self._quarantine = quarantine
        self._name = name
        self._counts = counts

    def rows(self, rows: DataFrame | None, partials: DataFrame, late: Mapping[Substream, RowTally], epoch: int) -> None:
        """Rows whose substream is known to be over; None: no step has left any."""
        if not self._counts:
            return
        table = None
        if rows is not None:
            own = [name for name in rows.columns if name != TRACKER]
            scope, key = F.col(f"{TRACKER}.scope"), self._aggregation.rule.key
            flat = rows.select(scope.alias("_scope"), key.alias("_key"), _json(own))
            table = self._table(self._aggregation.of(flat, set(late)))
        self._quarantine.put(epoch, "row", table, partials, late)

    def aggregates(self, merged: DataFrame, late: Mapping[Substream, RowTally], epoch: int, has_rows: bool) -> None:
        """Partial rows that came to be known as late only after their rows had been aggregated, or kept."""
        table = None
        if has_rows:
            plan = self._aggregation.plan
            own = [*plan.own, *plan.keys, *plan.values]
            keyed = self._aggregation.results(merged, keep=("_scope", "_key"), checked=False)
            table = self._table(keyed.select("_scope", "_key", _json(own)))
        kind = "kept" if self._aggregation.plan.kept else "aggregate"
        if self._counts:
            self._quarantine.put(epoch, kind, table, merged, late)
        elif table is not None:
            self._quarantine.put_beside(epoch, f"{kind}-{self._name}", table)

    def _table(self, flat: DataFrame) -> DataFrame:
        """Return the columns of `LATE_SCHEMA` that are in the files."""
        name, end = self._aggregation.rule.name_and_end(F.col("_key"))
        return flat.select(F.col("_scope").alias("scope"), name.alias("name"), end.alias("end_time"), "data")


def _json(columns: Sequence[str]) -> Column:
    return F.to_json(F.struct(*map(named, columns))).alias("data")


def kept_at(checkpoint: Path, name: str) -> Path:
    """Return where a release keeps what is its own.

    Args:
        name: of the release, among several; empty: it is the query's only one.
    """
    return checkpoint / "tracker" / _OUTPUTS / name if name else checkpoint / "tracker"


def substreams_kept(path: Path, epoch: int) -> int:
    """Return how many substreams the state of a release holds before an epoch.

    Args:
        path: where it keeps what is its own.
    """
    state = PartialState(path / "state")
    state.load(epoch)
    return len(state.substreams)


class SingleRelease:
    """One release, from a batch's rows to results.

    Args:
        plan: as it was declared.
        name: among several releases of the query; empty: it is the only one.
        sent_on: whether results go into a channel.
        compact_from: how many parts of state there may be before they are made one.
        receipts: where receipts go; None: none are written.
        counts: whether the rows that it sets aside are counted, and shown as they came: one release of a query does so.
        early: where early results are shown; None: there are none.

    Attributes:
        state: what has not ended.
        aggregation: its plans.
    """

    def __init__(
        self,
        plan: ReleasePlan,
        name: str,
        output: Output,
        checkpoint: Path,
        quarantine: Quarantine,
        *,
        sent_on: bool,
        compact_from: int,
        receipts: Receipts | None = None,
        counts: bool = True,
        early: EarlyOutput | None = None,
    ) -> None:
        path = kept_at(checkpoint, name)
        self.plan = plan
        self.name = name
        self.output = output
        self.receipts = receipts
        self.aggregation = aggregation_of(plan)
        self.state = PartialState(path / "state", compact_from)
        self._segment = plan.stream.segment
        self._shared = SharedEnds(self.aggregation, self.state, self._segment) if plan.rule.shared else None
        self._results = Results(self.aggregation, output, path / "made", sent_on=sent_on)
        self._quarantine = quarantine
        self._late = LateRows(self.aggregation, quarantine, name, counts)
        self._revisions = Revisions(checkpoint)
        self._early = None
        if early is not None and plan.early is not None:
            self._early = EarlyResults(self.state, early, plan.early, self._early_rows)

    # ---------------------------------------------------------------- a batch's rows

    def write_part(
        self, rows: DataFrame, epoch: int, measures: Mapping[str, Column], labels: bool
    ) -> tuple[Path, list[Group], int]:
        """Write a batch's partial rows.

        Args:
            measures: the front's, by substream, which ride in the same aggregation.
            labels: whether the XOR of the labels does.

        Returns:
            Where they are; what they tell of the batch's substreams; and how many they are.
        """
        part = self.state.write_part(epoch, self.aggregation.partial(rows, measures, labels))
        return part, *self.aggregation.rollup(part, list(measures), labels)

    def take(
        self,
        part: Path,
        epoch: int,
        rows: dict[Substream, RowTally],
        late: set[Substream],
        batch: Batch | None,
        bare: Set[Substream],
        came: DataFrame,
    ) -> None:
        """Make a written part of the state, all but what is late: that is set aside.

        Args:
            part, epoch, rows, late, batch, bare: as `PartialState.add` takes them.
        """
        if late:
            partials = self.aggregation.of(self.aggregation.parts(came.sparkSession, [str(part)]), late)
            tallies = {substream: rows[substream] for substream in late}
            self._late.rows(None if late <= bare else came, partials, tallies, epoch)
        self.state.add(part, epoch, rows, late, batch, bare)
        if self._early is not None:
            self._early.touched(rows.keys() - late)

    # ---------------------------------------------------------------- ends

    def ends_of(self, events: Sequence[Event], query: str) -> EpochEnds:
        """Return what a batch's events end, and which parts of the state that is about.

        Args:
            events: that the batch acts on.
        """
        if self._shared is not None:
            return self._shared.read(events, query)
        state = self.state
        ends = EpochEnds()
        overdue: list[Late] = []
        missed = missed_ends(events, self._segment, query)
        for event in events:
            kind = event.kind
            if not isinstance(kind, Ended | Late):
                continue
            if kind.segment != self._segment:
                if isinstance(kind, Ended):
                    state.note_upstream(substream_of(kind), kind.segment, kind.elements, kind.in_flight)
                continue
            revision = self._revisions.find(kind.scope, kind.name)
            if revision is not None:
                ends.revised.append(revision)
                ends.receipts.append(End(event, revision.substream, revision.number, revision.tally, 0))
            elif isinstance(kind, Late):
                overdue.append(kind)
            else:
                self._end(ends, event, kind, missed)
        named = {(substream.scope, substream.name): substream for substream in state.substreams - ends.gone}
        for lateness in overdue:
            tardy = named.get((lateness.scope, lateness.name))
            if tardy is not None and tardy not in ends.gone:
                self._set_aside(ends, tardy, [name for _, name in state.of(tardy)])
        return ends

    def _end(self, ends: EpochEnds, event: Event, ended: Ended, missed: Set[tuple[str, str]]) -> None:
        """A substream is released; what its state has from after the end is set aside."""
        substream = substream_of(ended)
        parts = self.state.of(substream)
        last = self.state.epoch if (ended.scope, ended.name) in missed else None
        own, after = [name for epoch, name in parts if epoch != last], [name for epoch, name in parts if epoch == last]
        has_results = self.state.has_rows(substream, own)
        if not after and has_results:
            ends.whole[substream] = own
        elif has_results:
            ends.split.append((substream, own))
        late = self._set_aside(ends, substream, after)
        before = self.state.drained.get(substream, 0)
        ends.receipts.append(End(event, substream, 0, self.state.tally(substream, own), late, before))
        if ended.by_drain and ended.elements:
            self.state.note_drained(substream, ended.elements)
        elif not ended.by_drain:
            self.state.drained.pop(substream, None)
        if own:
            ends.completeness[substream] = completeness_of(before > 0, ended.by_drain)

    def _set_aside(self, ends: EpochEnds, substream: Substream, parts: list[str]) -> int:
        """Its state is over: these parts of it came too late. Says how many rows are in them."""
        tally = self.state.tally(substream, parts)
        if parts:
            ends.late[substream] = (parts, tally)
        ends.gone.add(substream)
        return tally.rows

    def write_ended(self, ends: EpochEnds, epoch: int, run: Run, spark: SparkSession) -> Counted:
        """Write the results of what has ended, set aside what came too late, and return what was sent."""

        def merged(wanted: Mapping[Substream, Sequence[str]]) -> DataFrame:
            return self._merged(spark, wanted)

        as_of = abs(epoch)  # a drain's is after the last batch
        sent: Counted = {}
        ended = [self._marked(merged({each: own}), ends.completeness[each], as_of) for each, own in ends.split]
        alike: dict[str, set[Substream]] = {}  # one plan, unless results have to be told apart
        for substream in ends.whole:
            alike.setdefault(ends.completeness[substream] if self.plan.completeness else "", set()).add(substream)
        for completeness, substreams in alike.items():
            ended.append(self._marked(merged({each: ends.whole[each] for each in substreams}), completeness, as_of))
        if self.plan.revisions:
            ended += self._revised(ends, as_of, spark)
        if self._shared is not None:
            with self._shared.results(ends, epoch, spark) as over:
                if over is not None:
                    self._results.write(over, ends.released, run, epoch, False)
        if ended:
            rows = reduce(DataFrame.unionByName, ended)
            counts = self.receipts is not None
            sent, ends.results = self._results.write(rows, ends.released, run, epoch, counts)
        if ends.late:
            late = [merged({substream: parts}) for substream, (parts, _) in ends.late.items()]
            tallies = {substream: tally for substream, (_, tally) in ends.late.items()}
            has_rows = any(self.state.has_rows(substream, parts) for substream, (parts, _) in ends.late.items())
            self._late.aggregates(reduce(DataFrame.unionByName, late), tallies, epoch, has_rows)
        return sent

    def _merged(self, spark: SparkSession, wanted: Mapping[Substream, Sequence[str]]) -> DataFrame:
        """Return the merged partial rows of some substreams, each of its own parts: others may have what has ended of
        it."""
        return self.aggregation.merge(self.aggregation.selected(spark, self.state.selections(wanted)))

    def _revised(self, ends: EpochEnds, as_of: int, spark: SparkSession) -> list[DataFrame]:
        """Return the merged partial rows of revisions: of each those parts of the quarantine that it is made of."""
        alike: dict[tuple[int, tuple[tuple[int, str], ...]], set[Substream]] = {}
        for revision in ends.revised:
            alike.setdefault((revision.number, revision.parts), set()).add(revision.substream)
        revised = []
        for (number, parts), substreams in alike.items():
            paths = [self._quarantine.partials(epoch, kind) for epoch, kind in parts]
            merged = self.aggregation.merged(self.aggregation.parts(spark, paths), substreams)
            revised.append(self._marked(merged, "late", as_of, number))
        return revised

    def _marked(
        self, merged: DataFrame, completeness: str, as_of: int, revision: int = 0, final: bool = True
    ) -> DataFrame:
        """Merged partial rows with what is added to results."""
        values = {
            REVISION: F.lit(revision),
            COMPLETENESS: F.lit(completeness),
            FINAL: F.lit(final),
            AS_OF: F.lit(as_of).cast("bigint"),
        }
        added = {f"_{name}": values[name] for name in self.plan.added}
        return merged.withColumns(added) if added else merged

    def _early_rows(self, spark: SparkSession, wanted: Mapping[Substream, Sequence[str]], as_of: int) -> DataFrame:
        """Return what some substreams would be released as, of some parts each, beside ``_scope`` and ``_key``."""
        released = self.aggregation
        merged = self._merged(spark, wanted) if wanted else spark.createDataFrame([], self.plan.part_schema)
        marked = self._marked(merged, "open", as_of, final=False)
        return released.results(marked, [*added(self.plan), "_scope", "_key"], checked=False)

    # ---------------------------------------------------------------- after the batch

    def settle(self, ends: EpochEnds) -> None:
        """The results are written: what they are made of leaves the state."""
        if self._shared is not None:
            self._shared.settle(ends)
            return
        # Rows of the batch in hand that were not set aside may be of substreams that are open again.
        self.state.drop(ends.gone, up_to=self.state.epoch)

    def write_receipts(self, ends: EpochEnds, run: Run, epoch: int, spark: SparkSession) -> None:
        """Leave the receipts of what has ended, which is in the state yet."""
        if self.receipts is not None:
            self.receipts.write(ends.receipts, ends.results, self.state, run, epoch, spark)

    def reported(self, epoch: int, spark: SparkSession) -> None:
        """The tracker has taken a batch's report: its state may appear."""
        state, released = self.state, self.aggregation
        state.compact(epoch, epoch - 1, lambda found: released.merge(released.selected(spark, found)))
        self.publish(epoch)
        self._results.published(epoch)

    def publish(self, epoch: int) -> None:
        """Let the state after a batch appear, with the newest of what goes with it."""
        beside = {"quarantine": self._quarantine.newest, "revisions": self._revisions.newest}
        self.state.beside |= {directory: newest for directory, newest in beside.items() if newest}
        self.state.publish(epoch)

    def show_early(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """The batch's state is published: early results may be shown."""
        if self._early is not None:
            self._early.write(run.query, epoch, spark)

    def sweep(self, query: str) -> None:
        """Remove what drivers of this query that were killed have left half written."""
        self.output.sweep(query)
        self._results.sweep()
        self.state.sweep()
        if self.receipts is not None:
            self.receipts.sweep(query)
