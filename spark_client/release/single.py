"""One release of a query: its state, and what becomes of it when substreams end.

A query has one release, or several of the same stream. They share the query's rows, its events, and what was decided of
both; each has its own state, and its own results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER, named
from spark_client.counting.runs import Run
from spark_client.destinations.destination import EarlyOutput, Output
from spark_client.fronts.front import Group
from spark_client.plan.batches import Counted, computed_once
from spark_client.plan.releases import AS_OF, FINAL, REVISION, ReleasePlan
from spark_client.release.aggregation import Aggregation, aggregation_of
from spark_client.release.early import EarlyResults
from spark_client.release.ends import EpochEnds, ends_of
from spark_client.release.inbox import Act
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Quarantine
from spark_client.release.receipts import Receipts
from spark_client.release.results import Results, added
from spark_client.release.revisions import Revisions
from spark_client.release.state import PartialState
from spark_client.spark_internals.checkpoints import Batch
from spark_client.storage.folder import Folder
from spark_client.windows.substreams import COMPLETENESS, WHOLE, RowGroup, Substream

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
        """Set rows aside whose substream is known to be over; None: no step has left any."""
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
        """Set partial rows aside that came to be known as late only after their rows had been aggregated, or kept."""
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
            self._quarantine.put_rows(epoch, f"{kind}-{self._name}", table)

    def _table(self, flat: DataFrame) -> DataFrame:
        """Return the columns of `LATE_SCHEMA` that are in the files."""
        name, end = self._aggregation.rule.name_and_end(F.col("_key"))
        return flat.select(F.col("_scope").alias("scope"), name.alias("name"), end.alias("end_time"), "data")


def _json(columns: Sequence[str]) -> Column:
    return F.to_json(F.struct(*map(named, columns))).alias("data")


def kept_at(checkpoint: Folder, name: str) -> Folder:
    """Return where a release keeps what is its own.

    Args:
        name: of the release, among several; empty: it is the query's only one.
    """
    own = checkpoint / "tracker"
    return own / _OUTPUTS / name if name else own


def substreams_kept(kept: Folder, epoch: int) -> int:
    """Return how many substreams the state of a release holds before an epoch.

    Args:
        kept: where it keeps what is its own.
    """
    state = PartialState(kept / "state")
    state.load(epoch)
    return len(state.substreams)


@dataclass(frozen=True)
class Outputs:
    """Places of what a release makes.

    Attributes:
        sent_on: whether that is a channel.
        receipts: of receipts; None: none are written.
        early: of early results; None: there are none.
    """

    output: Output
    sent_on: bool
    receipts: Receipts | None
    early: EarlyOutput | None


class SingleRelease:
    """One release, from a batch's rows to results.

    Args:
        name: among several releases of the query; empty: it is the only one.
        compact_from: how many parts of state there may be before they are made one.
        counts: whether the rows that it sets aside are counted, and shown as they came: one release of a query does so.
    """

    def __init__(
        self,
        plan: ReleasePlan,
        name: str,
        to: Outputs,
        checkpoint: Folder,
        quarantine: Quarantine,
        compact_from: int,
        counts: bool,
    ) -> None:
        path = kept_at(checkpoint, name)
        self.plan = plan
        self.name = name
        self.to = to
        self.aggregation = aggregation_of(plan)
        self.state = PartialState(path / "state", compact_from)
        self._revisions = Revisions(checkpoint)
        self.ends = ends_of(plan, self.state, self._revisions)
        self._results = Results(self.aggregation, to.output, path / "made", sent_on=to.sent_on)
        self._quarantine = quarantine
        self._late = LateRows(self.aggregation, quarantine, name, counts)
        self._early = None
        if to.early is not None and plan.early is not None:
            self._early = EarlyResults(self.state, to.early, plan.early, self._early_rows)

    # ---------------------------------------------------------------- a batch's rows

    def write_part(
        self, rows: DataFrame, epoch: int, measures: Mapping[str, Column], labels: bool
    ) -> tuple[str, list[Group], int]:
        """Write a batch's partial rows.

        Args:
            measures: the front's, by substream, which ride in the same aggregation.
            labels: whether the XOR of the labels does.

        Returns:
            Where they are; what they tell of the batch's substreams; and how many they are.
        """
        part = self.state.write_part(epoch, self.aggregation.partial(rows, measures, labels))
        return part, *self.aggregation.rollup(self.state.files(part), list(measures), labels)

    def take(
        self,
        part: str,
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
            partials = self.aggregation.of(self.aggregation.parts(came.sparkSession, [part]), late)
            tallies = {substream: rows[substream] for substream in late}
            self._late.rows(None if late <= bare else came, partials, tallies, epoch)
        self.state.add(part, epoch, rows, late, batch, bare)
        if self._early is not None:
            self._early.touched(rows.keys() - late)

    # ---------------------------------------------------------------- ends

    def write_ended(self, ends: EpochEnds, act: Act, run: Run, spark: SparkSession) -> Counted:
        """Write the results of what has ended, set aside what came too late, and return what was sent."""
        sent: Counted = {}
        epoch, as_of = act.epoch, self.state.epoch + 1
        rows = [
            self._marked(self.aggregation.grouped(spark, self.state.selections(kept), group), as_of)
            for group, kept in sorted(ends.groups.items())
        ]
        # Windows that overlap have no stretch of time that is complete, and some of them no end of their own.
        rule = self.plan.rule
        completed = () if rule.shared or rule.several or rule.zoned else ends.completed
        between = act.batch is None and self.to.sent_on
        rest = any(end.before and not end.revision for end in ends.receipts)
        batch = run.between.batch(act.number) if between else run.batch(epoch, completed, rest)
        with self._finished(rows + self._revised(ends, as_of, spark), ends, epoch) as finished:
            if finished is not None:
                counts = self.to.receipts is not None
                sent, ends.results = self._results.write(finished, ends.released, run.job, batch, epoch, counts)
            elif completed and self.to.output.completes:
                none = self._marked(spark.createDataFrame([], self.plan.part_schema), as_of)
                self._results.write_none(none, batch)
        if ends.late:
            late = {substream: parts for substream, (parts, _) in ends.late.items()}
            tallies = {substream: tally for substream, (_, tally) in ends.late.items()}
            has_rows = any(self.state.has_rows(substream, parts) for substream, parts in late.items())
            self._late.aggregates(self._merged(spark, late), tallies, epoch, has_rows)
        return sent

    @contextmanager
    def _finished(self, rows: Sequence[DataFrame], ends: EpochEnds, epoch: int) -> Iterator[DataFrame | None]:
        """Yield the merged rows that are results, if there are any. Others, to be kept on, are written before."""
        if not rows:
            yield None
            return
        plan, released = self.plan, self.aggregation
        made = plan.rule.made(reduce(DataFrame.unionByName, rows), plan.keys, released.merging)
        if WHOLE not in made.columns:
            yield made
            return
        with computed_once(made) as shared:
            columns = map(named, plan.part_schema.fieldNames())
            part = self.state.write_carried(epoch, shared.where(~F.col(WHOLE)).select(*columns))
            groups, _ = released.rollup(self.state.files(part), [], labels=False)
            ends.carried = part, {each: RowTally(int(values["_rows"])) for each, values in groups}
            whole = shared.where(WHOLE)
            yield None if whole.isEmpty() else whole

    def _merged(self, spark: SparkSession, wanted: Mapping[Substream, Sequence[str]]) -> DataFrame:
        """Return the merged partial rows of some substreams, each of its own parts: others may have what has ended of
        it."""
        return self.aggregation.grouped(spark, self.state.selections(wanted), RowGroup())

    def _revised(self, ends: EpochEnds, as_of: int, spark: SparkSession) -> list[DataFrame]:
        """Return the merged partial rows of revisions: of each those parts of the quarantine that it is made of."""
        alike: dict[tuple[int, tuple[tuple[int, str], ...]], set[Substream]] = {}
        for revision in ends.revised if self.plan.revisions else ():
            alike.setdefault((revision.number, revision.parts), set()).add(revision.substream)
        revised = []
        for (number, parts), substreams in alike.items():
            paths = [url for epoch, kind in parts for url in self._quarantine.partials(epoch, kind)]
            merged = self.aggregation.merge(self.aggregation.of(self.aggregation.parts(spark, paths), substreams))
            revised.append(self._marked(merged, as_of, {f"_{COMPLETENESS}": "late", f"_{REVISION}": number}))
        return revised

    def _marked(self, merged: DataFrame, as_of: int, marks: Mapping[str, object] | None = None) -> DataFrame:
        """Return merged partial rows with what is added to results."""
        every = {f"_{REVISION}": 0, f"_{FINAL}": True, f"_{AS_OF}": F.lit(as_of).cast("bigint"), **(marks or {})}
        unasked = {f"_{name}" for name in (REVISION, COMPLETENESS, FINAL, AS_OF) if name not in self.plan.added}
        columns = {name: F.lit(value) for name, value in every.items() if name not in unasked}
        return merged.withColumns(columns) if columns else merged

    def _early_rows(self, spark: SparkSession, wanted: Mapping[Substream, Sequence[str]], as_of: int) -> DataFrame:
        """Return what some substreams would be released as, of some parts each, beside ``_scope`` and ``_key``."""
        released = self.aggregation
        merged = self._merged(spark, wanted) if wanted else spark.createDataFrame([], self.plan.part_schema)
        marked = self._marked(merged, as_of, {f"_{COMPLETENESS}": "open", f"_{FINAL}": False})
        return released.results(marked, [*added(self.plan), "_scope", "_key"], checked=False)

    # ---------------------------------------------------------------- after the batch

    def write_receipts(self, ends: EpochEnds, act: Act, run: Run, spark: SparkSession) -> None:
        """Leave the receipts of what has ended, which is in the state yet."""
        if self.to.receipts is not None:
            self.to.receipts.write(ends.receipts, ends.results, self.state, run, act, spark)

    def reported(self, epoch: int, spark: SparkSession) -> None:
        """Let a batch's state appear once the tracker has taken its report."""
        state, released = self.state, self.aggregation
        state.compact(epoch, lambda found: released.merge(released.selected(spark, found)))
        self.publish(epoch, epoch)

    def publish(self, batch: int, epoch: int) -> None:
        """Let the state after an act appear, with the newest of what goes with it.

        Args:
            batch: the last one whose rows are in it.
            epoch: the number of the act.
        """
        beside = {
            "quarantine": self._quarantine.newest,
            "revisions": self._revisions.newest if self.plan.revisions else "",
        }
        self.state.beside |= {directory: newest for directory, newest in beside.items() if newest}
        self.state.publish(batch)
        self._results.published(epoch)

    def show_early(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """Show early results, once the batch's state is published."""
        if self._early is not None:
            self._early.write(run.query, epoch, spark)

    def sweep(self, query: str) -> None:
        """Remove what drivers of this query that were killed have left half written."""
        self.to.output.sweep(query)
        if self.to.receipts is not None:
            self.to.receipts.sweep(query)
