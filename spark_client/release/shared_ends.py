"""What has ended where each row is an element of several substreams at the tracker: of stretches, or levels of windows.

Rows are kept under what all of their substreams have in common: a step of sessions, a piece of windows within windows.
The state notes which substreams have ended, while something of them is kept. What is late for one of them is late for
all: else one of two results would lack it. All rows of a batch that are kept alike are late together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame, SparkSession

from spark_client.release.epoch_ends import EpochEnds, missed_ends, substream_of
from spark_client.release.parts import NONE
from spark_client.release.receipts import End
from spark_client.release.state import PartialState
from spark_client.windows.substreams import Substream, Substreams
from tracker.client import Ended, Event


class SharedEnds(ABC):
    """What the events of a release's batches end.

    Args:
        rule: how rows fall into substreams.
        state: the release's.
        segment: whose ends release.
    """

    def __init__(self, rule: Substreams, state: PartialState, segment: str) -> None:
        self._rule = rule
        self._state = state
        self._segment = segment
        self._tracked: dict[Substream, tuple[Substream, ...]] = {}  # of what is kept: as the tracker knows it

    def read(self, events: Iterable[Event], query: str) -> EpochEnds:
        """Return what the events of a batch end.

        Args:
            events: that it acts on.
            query: the release's.
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
        self._choose(ends, own, before)
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

    @abstractmethod
    def _choose(
        self, ends: EpochEnds, own: Mapping[Substream, list[str]], before: Mapping[Substream, tuple[bool, bool]]
    ) -> None:
        """Find out what results are made of.

        Args:
            ends: of the batch, `gone` being what has ended; gets the rest.
            own: what is kept of these scopes and was not late, with its parts.
            before: what had ended before this batch.
        """

    @abstractmethod
    def results(self, ends: EpochEnds, epoch: int, spark: SparkSession) -> AbstractContextManager[DataFrame | None]:
        """Return the merged rows of what is over, to be written inside; None: nothing is.

        Args:
            ends: of the batch.
            epoch: the batch's.
            spark: its session.
        """

    @abstractmethod
    def _keep(self, ends: EpochEnds) -> None:
        """Keep on what results were not made of, if there is any: what has ended has left the state."""

    def settle(self, ends: EpochEnds) -> None:
        """The batch's results are written: what has ended leaves the state.

        Args:
            ends: of the batch; it gets of how many rows the results are made.
        """
        state = self._state
        ends.released_steps = sum(state.tally(each, own).rows for each, own in ends.steps.items())
        for each, (after, _) in ends.late.items():
            state.take_out(each, after)
        state.drop(ends.gone)
        self._keep(ends)
        needed = {name for each in state.substreams for name in self._tracked.get(each) or self._rule.tracked_as(each)}
        state.ended = {each: flags for each, flags in state.ended.items() if each in needed}
