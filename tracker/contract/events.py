"""Events that the tracker announces: the entries of a job's log."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias

from .values import DrainMode, Reason, Shown, moment, table


@dataclass(frozen=True, slots=True)
class Ended:
    """A substream has ended on a segment: nothing of it is, or will be, in flight there or upstream."""

    segment: str
    scope: str
    name: str
    end_time: int | None
    elements: int  #: sent on this segment in all
    reason: Reason
    in_flight: int  #: lost sight of; 0 if COMPLETE
    by_drain: bool = False  #: only a front's finish in a drain closed it: more may follow in a later deployment
    expected: int | None = None  #: how many elements its fronts expected on this segment; None: no number was given

    @property
    def incompleteness(self) -> str:
        """Return the name of how it ended too early, as callers accept such ends; empty: it is complete.

        >>> Ended("raw", "", "monday", None, 5, Reason.COMPLETE, 0, by_drain=True).incompleteness
        'drained'
        """
        return str(self.reason) if self.reason is not Reason.COMPLETE else "drained" if self.by_drain else ""

    @property
    def account(self) -> str:
        """Return how the substream ended and with how many elements, in words.

        >>> Ended("raw", "", "monday", None, 5, Reason.EXPIRED, 2, expected=7).account
        'EXPIRED, 5 of 7 elements, 2 not received'
        """
        of = "" if self.expected is None else f" of {self.expected}"
        lost = f", {self.in_flight} not received" if self.in_flight else ""
        drain = ", closed by a drain: more may follow" if self.by_drain else ""
        return f"{self.reason}, {self.elements}{of} elements{lost}{drain}"

    @property
    def holds(self) -> str:
        """Return how many elements an end that is not complete rests on, in words."""
        if self.in_flight:
            return f"{self.in_flight} elements in flight"
        if self.expected is not None and self.expected > self.elements:
            return f"{self.elements} of {self.expected} elements"
        return f"{self.elements} elements, which no source has promised to be all"


@dataclass(frozen=True, slots=True)
class Late:
    """Something was reported of a substream that had ended on the segment, or was over before anybody had named it.

    It is not counted.
    """

    segment: str
    scope: str
    name: str
    producer: str
    sent: int
    received: int

    @property
    def account(self) -> str:
        """Return what was reported, in words."""
        return f"{self.sent} sent, {self.received} received by {self.producer}"


@dataclass(frozen=True, slots=True)
class Stalled:
    """A substream has not changed for long: it is closed and not all that was sent has been received, or more is
    expected than was sent."""

    scope: str
    name: str
    segments: tuple[str, ...]  #: those that do not balance, or on which elements are missing
    in_flight: int  #: sent - received over those; negative: received more often than sent
    expected: int = 0  #: on those of the segments where fewer were sent than expected
    sent: int = 0  #: on the same

    @property
    def account(self) -> str:
        """Return what is missing, in words."""
        return f"{self.in_flight} in flight{f', {self.sent} of {self.expected} sent' if self.expected else ''}"


@dataclass(frozen=True, slots=True)
class Excess:
    """More elements of a substream were sent on a segment than its fronts expect."""

    segment: str
    scope: str
    name: str
    expected: int
    sent: int

    @property
    def account(self) -> str:
        """Return how many there are too many, in words."""
        return f"{self.sent} sent, only {self.expected} expected"


@dataclass(frozen=True, slots=True)
class FrontIdle:
    """A front has fallen silent and is not waited for, or has come back."""

    front: str
    idle: bool


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The deployment is to stop: sources stop reading and, unless it hands over, finish their fronts."""

    drain_id: str
    mode: DrainMode = DrainMode.FINISH


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything has ended, or is handed over; the deployment may stop."""

    drain_id: str
    mode: DrainMode = DrainMode.FINISH


@dataclass(frozen=True, slots=True)
class DrainTimedOut:
    """The drain was not over in time. It goes on."""

    drain_id: str


@dataclass(frozen=True, slots=True)
class DrainCancelled:
    """The drain was taken back; the deployment goes on."""

    drain_id: str


@dataclass(frozen=True, slots=True)
class Advanced:
    """Every substream of an end time up to `time`, seen or not, has ended on the segment."""

    segment: str
    time: int


Body: TypeAlias = (
    Ended | Late | Stalled | Excess | FrontIdle | DrainRequested | Drained | DrainTimedOut | DrainCancelled | Advanced
)


class Event(NamedTuple):
    """One entry of a job's event log.

    >>> event = Event(7, 1_767_225_600_000_000_000, "d1", Advanced("raw", 100))
    >>> match event.kind:
    ...     case Advanced(segment, time):
    ...         print(segment, time, event.at)
    raw 100 2026-01-01 00:00:00+00:00
    """

    seq: int  #: within the job: 1, 2, 3, … without gaps
    at_ns: int
    deployment: str
    kind: Body

    @property
    def at(self) -> datetime:
        """Return when the tracker took the command that caused it."""
        return moment(self.at_ns)

    def __repr__(self) -> str:
        return f"Event(seq={self.seq}, at={self.at!r}, deployment={self.deployment!r}, kind={self.kind!r})"

    def _repr_html_(self) -> str:
        return table({"seq": self.seq, "at": self.at, "deployment": self.deployment, "kind": self.kind})


@dataclass(frozen=True, slots=True)
class EventPage(Shown):
    """A range of a job's events."""

    events: tuple[Event, ...]
    last_seq: int  #: the last one looked at, whether or not the filters let it through: where to go on
    log_id: str  #: names the log; `seq` has a meaning only within one
    first_seq: int = 0  #: from this event on the filters miss none; 0: an older server does not give it
