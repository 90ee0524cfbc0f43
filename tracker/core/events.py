"""What the tracker announces: the entries of a job's event log."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias


class Reason(IntEnum):
    """Why a substream has ended."""

    COMPLETE = 1
    EXPIRED = 2
    ABANDONED = 3


class Ended(NamedTuple):
    """A substream has ended on a segment: nothing of it is, or will be, in flight there or upstream."""

    segment: str
    scope: str
    name: str
    end_time: int | None
    elements: int  #: sent on this segment in all
    reason: Reason
    in_flight: int  #: 0 if COMPLETE
    by_drain: bool = False  #: only a front's finish in a drain closed it: more of it may follow in a later deployment
    expected: int | None = None  #: how many elements its fronts had promised on this segment; None: no number


class EndColumns(NamedTuple):
    """Many `Ended` with reason COMPLETE on one segment: a column for each of their other fields."""

    scopes: Sequence[str]
    names: Sequence[str]
    end_times: Sequence[int | None]
    elements: Sequence[int]
    by_drain: Sequence[bool]
    expected: Sequence[int | None]


class Late(NamedTuple):
    """Entries for a substream that had ended on the segment, or was closed before anybody knew it; not folded in."""

    segment: str
    scope: str
    name: str
    producer: str
    sent: int
    received: int


class Stalled(NamedTuple):
    """A substream that is closed and does not balance, or of which more is expected, has not changed for long."""

    scope: str
    name: str
    segments: tuple[str, ...]
    in_flight: int
    expected: int = 0  #: on those of the segments where fewer were sent than expected
    sent: int = 0  #: on the same


class Excess(NamedTuple):
    """More elements of a substream were sent on a segment than its fronts had promised."""

    segment: str
    scope: str
    name: str
    expected: int
    sent: int


class FrontIdle(NamedTuple):
    """A front has turned idle, or back."""

    front: str
    idle: bool


class DrainRequested(NamedTuple):
    drain_id: str


class Drained(NamedTuple):
    drain_id: str


class DrainTimedOut(NamedTuple):
    drain_id: str


class DrainCancelled(NamedTuple):
    drain_id: str


class Advanced(NamedTuple):
    """Every substream of an end time up to `time`, seen or not, has ended on the segment."""

    segment: str
    time: int


Body: TypeAlias = (
    Ended | Late | Stalled | Excess | FrontIdle | DrainRequested | Drained | DrainTimedOut | DrainCancelled | Advanced
)


class Event(NamedTuple):
    """One entry of a job's event log."""

    seq: int  #: 1, 2, 3, … without gaps
    at: int  #: ns since the Unix epoch: when the command that caused it was taken
    deployment: str
    body: Body
