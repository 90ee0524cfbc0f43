"""A job in numbers, for those who watch many jobs from far: nothing in here grows with the job's substreams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .values import DrainState


class Tally(NamedTuple):
    """Totals of a job's announcements; each number only grows while the process runs."""

    complete: int = 0  #: ends of substreams on segments, by their reason
    expired: int = 0
    abandoned: int = 0
    late: int = 0  #: entries that came after the end


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
