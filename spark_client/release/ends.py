"""Ends of substreams, as a release acts on them: those of one batch, read from the tracker's events.

Rows are mostly kept under the one substream that the tracker knows them by (`PlainEnds`). Where each row is an element
of several, of stretches or of levels of windows, rows are kept under what all of these have in common: a step of
sessions, a piece of windows within windows (`SharedEnds`). The state notes which substreams have ended, while something
of them is kept. A row that is late for one of them is late for all: else one of two results would lack it. All rows of
a batch that are kept alike are late together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import chain

from spark_client.plan.releases import ReleasePlan
from spark_client.release.parts import NONE, RowTally
from spark_client.release.receipts import End
from spark_client.release.revisions import Revision, Revisions
from spark_client.release.state import PartialState
from spark_client.windows.substreams import COMPLETENESS, Kept, RowGroup, Substream, completeness_of
from tracker.client import Ended, Event, Late, Reason


@dataclass
class EpochEnds:
    """Substreams ended by a batch's events, with the state's parts that keep each.

    Attributes:
        groups: whose rows results are made of, with the parts from before their end.
        late: what came after the end, with its parts.
        gone: what leaves the state, whether it has rows or not.
        ended: what has ended at the tracker, where that is not what rows are kept by.
        receipts: the ends that receipts are left of.
        results: rows that were written, by substream and revision, if that is asked for.
        released_rows: of how many rows the results are made.
        carried: a part with rows that are kept on, though what they were kept under has ended; None: there are none.
    """

    groups: Mapping[RowGroup, Mapping[Substream, list[str]]] = field(default_factory=dict)
    late: dict[Substream, tuple[list[str], RowTally]] = field(default_factory=dict)
    gone: set[Substream] = field(default_factory=set)
    ended: set[Substream] = field(default_factory=set)
    revised: list[Revision] = field(default_factory=list)
    receipts: list[End] = field(default_factory=list)
    results: dict[tuple[Substream, int], int] = field(default_factory=dict)
    released_rows: int = 0
    carried: tuple[str, dict[Substream, RowTally]] | None = None

    @property
    def over(self) -> set[Substream]:
        """Return what has ended at the tracker, as it knows it."""
        return self.ended or self.gone

    @property
    def for_good(self) -> set[Substream]:
        """Return what stays over even where the tracker forgets names: none of it opens again."""
        return self.ended | self.gone if self.ended else set()

    @property
    def late_rows(self) -> int:
        """Return how many rows came after the end."""
        return sum(tally.rows for _, tally in self.late.values())

    @property
    def completed(self) -> tuple[Substream, ...]:
        """Return what has all of its results with this batch, since nothing was lost and nothing more can come."""
        ended = ((end, end.event.kind) for end in self.receipts if not end.revision)
        return tuple(
            end.substream
            for end, kind in ended
            if isinstance(kind, Ended) and kind.reason is Reason.COMPLETE and not kind.by_drain
        )

    @property
    def released(self) -> set[tuple[Substream, int]]:
        """Return what has results: substreams, with the numbers of their revisions."""
        plain = {(each, 0) for each in chain.from_iterable(self.groups.values())}
        return plain | {(revision.substream, revision.number) for revision in self.revised}

    @property
    def parts(self) -> set[str]:
        """All parts of the state that have to be read."""
        released = chain.from_iterable(kept.values() for kept in self.groups.values())
        return set(chain.from_iterable(chain(released, (parts for parts, _ in self.late.values()))))


class Ends(ABC):
    """Reader of the ends that one release acts on.

    Args:
        plan: the release, as it was declared.
        state: what it keeps, in which ends are noted.
    """

    def __init__(self, plan: ReleasePlan, state: PartialState) -> None:
        self._plan = plan
        self._rule = plan.rule
        self._segment = plan.stream.segment
        self._state = state

    @abstractmethod
    def read(self, events: Iterable[Event], query: str) -> EpochEnds:
        """Return what a batch's events end, and which parts of the state that is about: no later ones than of the last
        batch that is settled.

        Args:
            query: by whose name the tracker announces what was late.
        """

    def settle(self, ends: EpochEnds) -> None:
        """Take what has ended out of the state: the batch's results are written.

        Args:
            ends: of the batch; what is kept on is no longer among the rows that are released.
        """
        state = self._state
        for each, (parts, _) in ends.late.items():
            state.take_out(each, parts)
        # Rows of the batch in hand that were not set aside may be of substreams that are open again.
        state.drop(ends.gone, up_to=state.settled)
        if ends.carried is not None:
            part, rows = ends.carried
            state.carry(part, rows)
            ends.released_rows -= sum(tally.rows for tally in rows.values())

    def _before(self, substream: Substream, ended: Ended) -> int:
        """Return how many elements of a substream were released before, by drains or rules, and note what this end
        adds."""
        before = self._state.released_before(substream)
        if not ended.incompleteness:
            self._state.forget_cut(substream)
        elif ended.elements:
            self._state.note_cut(substream, ended.elements, ended.by_drain)
        return before

    def _missed(self, events: Iterable[Event], query: str) -> set[tuple[str, str]]:
        """Return what ended before the last reported batch took effect: scope and name.

        Late rows are announced batch by batch. Earlier batches were committed before earlier events were read, so it is
        the last one that is meant. Nothing is counted: steps may have dropped rows on the way.
        """
        kinds = (event.kind for event in events)
        late = (kind for kind in kinds if isinstance(kind, Late) and kind.segment == self._segment)
        return {(kind.scope, kind.name) for kind in late if kind.producer == query}


class PlainEnds(Ends):
    """Ends of what rows are kept by, each once; and of revisions."""

    def __init__(self, plan: ReleasePlan, state: PartialState, revisions: Revisions) -> None:
        super().__init__(plan, state)
        self._revisions = revisions

    def read(self, events: Iterable[Event], query: str) -> EpochEnds:
        state, ends, events = self._state, EpochEnds(), list(events)
        overdue: list[Late] = []
        own: dict[Substream, tuple[RowGroup, list[str]]] = {}
        missed = self._missed(events, query)
        for event in events:
            kind = event.kind
            if not isinstance(kind, Ended | Late):
                continue
            if kind.segment != self._segment:
                if isinstance(kind, Ended):
                    state.note_upstream(_substream_of(kind), kind.segment, kind.elements, kind.in_flight)
                continue
            revision = self._revisions.find(kind.scope, kind.name)
            if revision is not None:
                ends.revised.append(revision)
                ends.receipts.append(End(event, revision.substream, revision.number, revision.tally, 0))
                ends.released_rows += revision.tally.rows
            elif isinstance(kind, Late):
                overdue.append(kind)
            else:
                own |= self._end(ends, event, kind, missed)
        named = {(substream.scope, substream.name): substream for substream in state.substreams - ends.gone}
        for lateness in overdue:
            tardy = named.get((lateness.scope, lateness.name))
            if tardy is not None and tardy not in ends.gone:
                self._set_aside(ends, tardy, [name for epoch, name in state.of(tardy) if epoch <= state.settled])
        groups: dict[RowGroup, dict[Substream, list[str]]] = {}
        for substream, (group, parts) in own.items():
            groups.setdefault(group, {})[substream] = parts
        ends.groups = groups
        return ends

    def _end(
        self, ends: EpochEnds, event: Event, ended: Ended, missed: Set[tuple[str, str]]
    ) -> Mapping[Substream, tuple[RowGroup, list[str]]]:
        """Return what results are made of; what the state has from after the end is set aside."""
        substream = _substream_of(ended)
        settled = self._state.settled
        parts = [part for part in self._state.of(substream) if part[0] <= settled]
        last = settled if (ended.scope, ended.name) in missed else None
        own, after = [name for epoch, name in parts if epoch != last], [name for epoch, name in parts if epoch == last]
        late = self._set_aside(ends, substream, after)
        before = self._before(substream, ended)
        tally = self._state.tally(substream, own)
        ends.receipts.append(End(event, substream, 0, tally, late, before))
        ends.released_rows += tally.rows
        completeness = completeness_of(before > 0, _cut(ended))
        group = RowGroup(((f"_{COMPLETENESS}", completeness),) if self._plan.completeness else ())
        return {substream: (group, own)} if self._state.has_rows(substream, own) else {}

    def _set_aside(self, ends: EpochEnds, substream: Substream, parts: list[str]) -> int:
        """Set parts of the state aside that came too late, and return how many rows they have."""
        tally = self._state.tally(substream, parts)
        if parts:
            ends.late[substream] = (parts, tally)
        ends.gone.add(substream)
        return tally.rows


def _cut(ended: Ended) -> str:
    """Return how a substream ended before its sources had closed it; empty: it did not."""
    return "drained" if ended.by_drain else "" if ended.reason is Reason.COMPLETE else ended.reason.lower()


class SharedEnds(Ends):
    """Ends of what several rows have in common; which results they bring is the rule's to choose."""

    def __init__(self, plan: ReleasePlan, state: PartialState) -> None:
        super().__init__(plan, state)
        self._tracked: dict[Substream, tuple[Substream, ...]] = {}  # of what is kept: as the tracker knows it

    def read(self, events: Iterable[Event], query: str) -> EpochEnds:
        state, ends, events = self._state, EpochEnds(), list(events)
        before = dict(state.ended)
        for event in events:
            if isinstance(event.kind, Ended) and event.kind.segment == self._segment:
                tracked = _substream_of(event.kind)
                drained = self._before(tracked, event.kind)
                state.ended[tracked] = _cut(event.kind), drained > 0
                ends.ended.add(tracked)
                ends.receipts.append(End(event, tracked, 0, NONE, 0, drained))
        missed = self._missed(events, query)
        if not ends.ended and not missed:
            return ends
        kept = state.live
        self._tracked = {each: self._tracked.get(each) or self._rule.tracked_as(each) for each in kept}
        touched = {each.scope for each in ends.ended}
        own: dict[Substream, list[str]] = {}
        for each, parts in kept.items():
            names = [name for epoch, name in parts if epoch <= state.settled]
            if any(tracked[:2] in missed for tracked in self._tracked[each]):
                after = [name for epoch, name in parts if epoch == state.settled]
                names = [name for epoch, name in parts if epoch < state.settled]
                if after:
                    ends.late[each] = after, state.tally(each, after)
            if each.scope in touched:
                if state.ended.keys() >= {*self._tracked[each]}:
                    ends.gone.add(each)
                if state.has_rows(each, names):
                    own[each] = names
        completeness = self._plan.completeness
        chosen = self._rule.chosen(Kept(own, self._tracked, state.ended, before, ends.gone, completeness))
        ends.groups = chosen.groups
        ends.gone -= chosen.waiting
        ends.released_rows = sum(state.tally(each, parts).rows for each, parts in chosen.counted.items())
        return ends

    def settle(self, ends: EpochEnds) -> None:
        super().settle(ends)
        state = self._state
        needed = {name for each in state.substreams for name in self._tracked.get(each) or self._rule.tracked_as(each)}
        state.ended = {each: flags for each, flags in state.ended.items() if each in needed}


def ends_of(plan: ReleasePlan, state: PartialState, revisions: Revisions) -> Ends:
    """Return the reader of a release's ends."""
    return SharedEnds(plan, state) if plan.rule.shared else PlainEnds(plan, state, revisions)


def _substream_of(kind: Ended) -> Substream:
    return Substream(kind.scope, kind.name, kind.end_time)
