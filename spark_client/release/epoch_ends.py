"""Ends by one batch's events, as a release acts on them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from spark_client.counting.batch import BatchResult
from spark_client.fronts.front import Group
from spark_client.plan.batches import Counted
from spark_client.release.parts import RowTally
from spark_client.release.receipts import End
from spark_client.release.revisions import Revision
from spark_client.windows.substreams import Chosen, Substream
from tracker.client import Ended, Event, Late, label

_REMEMBERED: Final = 100_000  #: ended substreams whose late rows are caught row by row


class Taken(NamedTuple):
    """A batch's rows, which are a part of the state now."""

    groups: list[Group]
    late: int  #: rows that were set aside instead


class RecentlyEnded(OrderedDict[Substream, None]):
    """The newest of the substreams that have ended: late rows of them are caught row by row."""

    def add(self, substream: Substream) -> None:
        """Remember one, and forget the oldest if there are too many."""
        self[substream] = None
        if len(self) > _REMEMBERED:
            self.popitem(last=False)


@dataclass
class EpochEnds:
    """Substreams ended by a batch's events, with the state's parts that keep each.

    Attributes:
        whole: substreams that are released as they are.
        split: those of which the state also has rows that came after the end: the parts from before it.
        late: what came after the end.
        gone: all of them, and those that had no rows here.
        ended: what has ended at the tracker, where that is not what rows are kept by: see `shared_ends`.
        chosen: of which rows results are made, there: see `shared_ends`.
        released_shared: how many rows these are.
        revised: revisions that have ended.
        completeness: of what is released, whether it is all of its substream: as results say it.
        receipts: the ends that receipts are left of.
        results: rows that were written, by substream and revision, if that is asked for.
    """

    whole: dict[Substream, list[str]] = field(default_factory=dict)
    split: list[tuple[Substream, list[str]]] = field(default_factory=list)
    late: dict[Substream, tuple[list[str], RowTally]] = field(default_factory=dict)
    gone: set[Substream] = field(default_factory=set)
    ended: set[Substream] = field(default_factory=set)
    chosen: Chosen = field(default_factory=Chosen)
    released_shared: int = 0
    revised: list[Revision] = field(default_factory=list)
    completeness: dict[Substream, str] = field(default_factory=dict)
    receipts: list[End] = field(default_factory=list)
    results: dict[tuple[Substream, int], int] = field(default_factory=dict)

    @property
    def over(self) -> set[Substream]:
        """Return what has ended at the tracker, as it knows it."""
        return self.ended or self.gone

    @property
    def late_rows(self) -> int:
        """Return how many rows came after the end."""
        return sum(tally.rows for _, tally in self.late.values())

    @property
    def released(self) -> set[tuple[Substream, int]]:
        """Return what has results: substreams, with the numbers of their revisions."""
        plain = {(each, 0) for each in chain(self.whole, (each for each, _ in self.split))}
        return plain | {(revision.substream, revision.number) for revision in self.revised}

    @property
    def released_rows(self) -> int:
        """Of how many rows the results are made."""
        return sum(end.tally.rows for end in self.receipts) + self.released_shared

    @property
    def parts(self) -> set[str]:
        """All parts of the state that have to be read."""
        late = (parts for parts, _ in self.late.values())
        shared = chain.from_iterable(some.values() for some in self.chosen.groups.values())
        return set(chain.from_iterable(chain(self.whole.values(), (parts for _, parts in self.split), late, shared)))


def result_of(sent: Counted, ends: EpochEnds, taken: Taken | None = None, bad: int = 0) -> BatchResult:
    """Return what a batch of a release has done.

    Args:
        sent: what it has sent on.
        ends: that it has acted on.
        taken: its rows; None: it had none.
        bad: rows that were set aside since they belong to no substream.
    """
    late = ends.late_rows + (0 if taken is None else taken.late)
    return BatchResult(
        sent,
        groups=None if taken is None else taken.groups,
        set_aside={"late": late, "quarantined": bad},
        released=ends.released_rows,
        ended=[end.event for end in ends.receipts],
    )


def elements_of(job: str, segment: str, substreams: Iterable[Substream]) -> list[Group]:
    """Return the one element that stands for each substream's state.

    Args:
        segment: that stands for the state.
        substreams: whose state is meant.
    """
    return [(each, {"_rows": 1, "_xor": label(job, segment, each.scope, each.name)}) for each in substreams]


def missed_ends(events: Iterable[Event], segment: str, query: str) -> set[tuple[str, str]]:
    """Substreams that ended before the query's last committed batch took effect: scope and name.

    What of a batch came too late is announced batch by batch. Earlier batches were committed before earlier events were
    read, so it is the last one that is meant. Nothing is counted: steps may have dropped rows on the way.
    """
    return {
        (kind.scope, kind.name)
        for event in events
        for kind in [event.kind]
        if isinstance(kind, Late) and kind.segment == segment and kind.producer == query
    }


def substream_of(kind: Ended) -> Substream:
    """Return the substream that has ended."""
    return Substream(kind.scope, kind.name, kind.end_time)
