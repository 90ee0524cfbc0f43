"""A job in numbers, and the waits of its open substreams: counted over all of them, or looked for among them.

Nothing in `JobFigures` grows with the job's substreams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .values import DrainState, Reason


class Tally(NamedTuple):
    """Totals of a job's announcements; each number only grows while the process runs."""

    late: int = 0  #: entries that came after the end
    ends: tuple[int, ...] = (0,) * len(Reason)  #: of substreams on segments, by their reason, in its order


class FrontAge(NamedTuple):
    """A front that has not finished."""

    front: str
    since: int  #: its last promise, or if it made none yet, when it was added or the server started (ns)


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Figures of a job that need no look at its substreams."""

    open_substreams: int
    incomplete_substreams: int  #: open ones of which more is expected than was sent
    staged_substreams: int
    staged_epochs: int
    cells: int
    tombstones: int
    events: int  #: kept, those for subscriptions alone too
    retained_events: int  #: kept for subscriptions alone
    last_seq: int
    segments: Sequence[str]
    drain: DrainState
    producers: int
    idle_fronts: int
    fronts: tuple[FrontAge, ...]  #: unfinished, those that promised longest ago first; at most as many as asked for
    other_fronts: int  #: unfinished ones that are not among `fronts`


SOLE_OWNER = ""  #: in the place of a front: the producer that closes the substream by name, in a job without fronts


@dataclass(frozen=True, slots=True)
class Unbalanced:
    """Imbalance of a substream on a segment on which it has not ended."""

    segment: str
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class OpenSubstream:
    """An open substream, and what it waits for; the first few of each kind."""

    scope: str
    name: str
    end_time: int | None
    created: int  #: ns since the Unix epoch
    changed: int  #: the same
    fronts: tuple[str, ...]  #: that have not closed it
    more_fronts: int  #: beyond those
    unbalanced: tuple[Unbalanced, ...]
    more_unbalanced: int  #: segments beyond those
    in_flight: int  #: elements sent and not received, over all segments
    staged: bool  #: an epoch that is not committed has something of it, or was revoked and must be committed again
    ordered: bool  #: it waits for nothing else than substreams of earlier end times
    stalled: bool  #: it was announced as stalled


@dataclass(frozen=True, slots=True)
class Wanted:
    """Search for open substreams. All that is given must hold.

    >>> Wanted(text="jfk 2013", segment="clean").front is None
    True
    """

    text: str = ""  #: words, each of which the scope and name together must contain, in capitals or not
    front: str | None = None  #: that has not closed it
    segment: str | None = None  #: on which it does not balance
    staged: bool = False
    ordered: bool = False
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Some of the substreams that were looked for, by creation."""

    substreams: tuple[OpenSubstream, ...]
    looked: int  #: how many open substreams were looked at for this
    following: int | None  #: where to go on; None: there are no more


@dataclass(frozen=True, slots=True)
class Survey:
    """Counts of a job's open substreams by what they wait for. One that waits for several things counts for each."""

    looked: int  #: how many open substreams were counted
    fronts: Mapping[str, int]  #: by front that has not closed them; of very many fronts, the slowest
    all_fronts: int  #: those that any front has not closed
    segments: Mapping[str, int]  #: by segment on which they do not balance
    all_segments: int  #: those that do not balance on some segment
    in_flight: Mapping[str, int]  #: elements sent and not received, by segment
    staged: int
    ordered: int
    stalled: int
    oldest: tuple[OpenSubstream, ...]  #: of those that are closed and do not balance, unchanged for longest
