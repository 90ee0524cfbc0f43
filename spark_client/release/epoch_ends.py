"""What the events of one batch end, as a release acts on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

from spark_client.plan.substreams import Substream
from spark_client.release.receipts import End
from spark_client.release.revisions import Revision
from spark_client.release.state import RowTally


@dataclass
class EpochEnds:
    """What a batch's events end, with the parts of the state that each is kept in.

    Attributes:
        whole: substreams that are released as they are.
        split: those of which the state also has rows that came after the end: the parts from before it.
        late: what came after the end.
        gone: all of them, and those that had no rows here.
        revised: revisions that have ended.
        completeness: of what is released, whether it is all of its substream: as results say it.
        receipts: the ends that receipts are left of.
        results: rows that were written, by substream and revision, if that is asked for.
    """

    whole: dict[Substream, list[str]] = field(default_factory=dict)
    split: list[tuple[Substream, list[str]]] = field(default_factory=list)
    late: dict[Substream, tuple[list[str], RowTally]] = field(default_factory=dict)
    gone: set[Substream] = field(default_factory=set)
    revised: list[Revision] = field(default_factory=list)
    completeness: dict[Substream, str] = field(default_factory=dict)
    receipts: list[End] = field(default_factory=list)
    results: dict[tuple[Substream, int], int] = field(default_factory=dict)

    @property
    def parts(self) -> set[str]:
        """All parts of the state that have to be read."""
        late = (parts for parts, _ in self.late.values())
        return set(chain.from_iterable(chain(self.whole.values(), (parts for _, parts in self.split), late)))
