"""Ends where each row is an element of several substreams at the tracker: of stretches, or levels of windows.

Rows are kept under what all of their substreams have in common: a step of sessions, a piece of windows within windows.
The state notes which substreams have ended, while something of them is kept. What is late for one of them is late for
all: else one of two results would lack it. All rows of a batch that are kept alike are late together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import named
from spark_client.plan.batches import computed_once
from spark_client.release.aggregation import Aggregation
from spark_client.release.epoch_ends import EpochEnds, missed_ends, substream_of
from spark_client.release.parts import NONE, RowTally
from spark_client.release.receipts import End
from spark_client.release.state import PartialState
from spark_client.windows.substreams import WHOLE, Kept, Substream
from tracker.client import Ended, Event


class SharedEnds:
    """Ends of a release's batches; which results they bring is the rule's to choose."""

    def __init__(self, released: Aggregation, state: PartialState, segment: str) -> None:
        self._released = released
        self._rule = released.rule
        self._state = state
        self._segment = segment
        self._tracked: dict[Substream, tuple[Substream, ...]] = {}  # of what is kept: as the tracker knows it
        self._carried: tuple[Path, dict[Substream, RowTally]] | None = None

    def read(self, events: Iterable[Event], query: str) -> EpochEnds:
        """Return what the events of a batch end.

        Args:
            events: that it acts on.
        """
        state, ends, events = self._state, EpochEnds(), list(events)
        before = dict(state.ended)
        for event in events:
            if isinstance(event.kind, Ended) and event.kind.segment == self._segment:
                self._note(ends, event, event.kind)
        missed = missed_ends(events, self._segment, query)
        if not ends.ended and not missed:
            return ends
        kept = state.live
        self._tracked = {each: self._tracked.get(each) or self._rule.tracked_as(each) for each in kept}
        touched = {each.scope for each in ends.ended}
        own: dict[Substream, list[str]] = {}
        for each, parts in kept.items():
            names = [name for _, name in parts]
            if any(tracked[:2] in missed for tracked in self._tracked[each]):
                after = [name for epoch, name in parts if epoch == state.epoch]
                names = [name for epoch, name in parts if epoch != state.epoch]
                if after:
                    ends.late[each] = after, state.tally(each, after)
            if each.scope in touched:
                if state.ended.keys() >= {*self._tracked[each]}:
                    ends.gone.add(each)
                if state.has_rows(each, names):
                    own[each] = names
        completeness = self._released.plan.completeness
        ends.chosen = self._rule.chosen(Kept(own, self._tracked, state.ended, before, ends.gone, completeness))
        ends.gone -= ends.chosen.waiting
        return ends

    def _note(self, ends: EpochEnds, event: Event, ended: Ended) -> None:
        state, tracked = self._state, substream_of(ended)
        before = state.drained.get(tracked, 0)
        state.ended[tracked] = ended.by_drain, before > 0
        ends.ended.add(tracked)
        ends.receipts.append(End(event, tracked, 0, NONE, 0, before))
        if ended.by_drain and ended.elements:
            state.note_drained(tracked, ended.elements)
        elif not ended.by_drain:
            state.drained.pop(tracked, None)

    @contextmanager
    def results(self, ends: EpochEnds, epoch: int, spark: SparkSession) -> Iterator[DataFrame | None]:
        """Yield the merged rows of what is over; None: nothing is. What of the others is kept on is written before."""
        self._carried = None  # of a drain that failed
        released, rule = self._released, self._rule
        rows = []
        for group, kept in sorted(ends.chosen.groups.items()):
            partials = released.selected(spark, self._state.selections(kept))
            merged = released.merge(rule.regrouped(partials, group))
            rows.append(merged.withColumns({name: F.lit(value) for name, value in group.marks}))
        made = rule.made(reduce(DataFrame.unionByName, rows), released.plan.keys, released.merging) if rows else None
        if made is None or WHOLE not in made.columns:
            yield made
            return
        with computed_once(made) as shared:
            columns = map(named, released.plan.part_schema.fieldNames())
            part = self._state.write_carried(epoch, shared.where(~F.col(WHOLE)).select(*columns))
            groups, _ = released.rollup(part, [], labels=False)
            self._carried = part, {each: RowTally(int(values["_rows"])) for each, values in groups}
            whole = shared.where(WHOLE)
            yield None if whole.isEmpty() else whole

    def settle(self, ends: EpochEnds) -> None:
        """The batch's results are written: what has ended leaves the state.

        Args:
            ends: of the batch; it gets of how many rows the results are made.
        """
        state = self._state
        ends.released_shared = sum(state.tally(each, own).rows for each, own in ends.chosen.counted.items())
        for each, (after, _) in ends.late.items():
            state.take_out(each, after)
        state.drop(ends.gone)
        if self._carried is not None:
            part, rows = self._carried
            self._carried = None
            state.carry(part, rows)
            ends.released_shared -= sum(tally.rows for tally in rows.values())
        needed = {name for each in state.substreams for name in self._tracked.get(each) or self._rule.tracked_as(each)}
        state.ended = {each: flags for each, flags in state.ended.items() if each in needed}
