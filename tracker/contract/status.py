"""Status of jobs, drains and subscriptions, and of the server that answers.

The core makes these values, the codec carries them, and callers read them. Times and durations are kept in nanoseconds,
in fields ``…_ns``; for each of them a property gives the `datetime` (UTC) or `timedelta` that a program works with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from .merging import (
    ALL,
    BY_NAME,
    COMMON,
    FIRST,
    FIRST_NAMED,
    JOINED,
    LATEST,
    LEAST_BY_KEY,
    LEAST_OF_ALL,
    MAX,
    SLOWEST,
    SUM,
    UNION,
    WHOLE,
)
from .notebooks import Shown
from .spec import JobSpec
from .values import DrainMode, DrainState, Mode, length, moment, moment_if_any


@dataclass(frozen=True, slots=True)
class DrainStatus(Shown):
    """A drain, and what it still waits for."""

    state: DrainState = field(metadata=SLOWEST)
    drain_id: str = field(metadata=FIRST)
    deployment: str = field(metadata=FIRST)
    unfinished_fronts: tuple[str, ...] = field(default=(), metadata=UNION)
    open_substreams: int = field(default=0, metadata=SUM)
    in_flight: int = field(default=0, metadata=SUM)
    #: with staged epochs; in a hand-over, also with revoked ones that are to come again
    uncommitted_producers: tuple[str, ...] = field(default=(), metadata=UNION)
    open_producers: tuple[str, ...] = field(default=(), metadata=UNION)  #: whose runs have not closed
    #: what becomes of what is open; None: nobody has asked for a drain
    mode: DrainMode | None = field(default=None, metadata=FIRST)
    #: in a hand-over under way: those, but for state, on which an open substream does not balance
    unbalanced_segments: tuple[str, ...] = field(default=(), metadata=UNION)


@dataclass(frozen=True, slots=True, repr=False)
class ProducerStatus(Shown):
    """A producer of a job."""

    producer: str = field(metadata=FIRST)
    run: str = field(metadata=FIRST)
    mode: Mode = field(metadata=FIRST)
    committed_epoch: int | None = field(metadata=LEAST_OF_ALL)
    staged_epochs: tuple[int, ...] = field(metadata=UNION)
    closed: bool = field(metadata=ALL)
    last_heard_ns: int = field(metadata=MAX)

    @property
    def last_heard(self) -> datetime:
        """Return when its last report or promise came."""
        return moment(self.last_heard_ns)


@dataclass(frozen=True, slots=True, repr=False)
class FrontStatus(Shown):
    """A front of a job."""

    front: str = field(metadata=FIRST)
    finished: bool = field(metadata=ALL)
    idle: bool = field(metadata=ALL)
    frontiers: Mapping[str, int] = field(metadata=LEAST_BY_KEY)  #: by scope; ``"*"`` is the frontier for every scope
    producer: str = field(metadata=FIRST_NAMED)  #: its owner; empty: nobody has promised for it yet
    last_promise_ns: int | None = field(metadata=LATEST)
    segments: tuple[str, ...] = field(default=(), metadata=FIRST)  #: that it feeds; empty: all of them
    #: scopes that an answer had no room for; they are at least as far as those in `frontiers`
    more_frontiers: int = field(default=0, metadata=MAX)

    @property
    def last_promise(self) -> datetime | None:
        """Return when it last promised something; None: not yet."""
        return moment_if_any(self.last_promise_ns)


@dataclass(frozen=True, slots=True, repr=False)
class JobStatus(Shown):
    """A job as it stands."""

    spec: JobSpec = field(metadata=FIRST)
    first_seq: int = field(metadata=SUM)  #: every event from this one on is kept
    last_seq: int = field(metadata=SUM)
    open_substreams: int = field(metadata=SUM)
    ended_substreams: int = field(metadata=SUM)
    in_flight: int = field(metadata=SUM)  #: elements sent and not yet received, over all segments
    late_reports: int = field(metadata=SUM)
    producers: tuple[ProducerStatus, ...] = field(metadata=BY_NAME)
    fronts: tuple[FrontStatus, ...] = field(metadata=BY_NAME)
    drain: DrainStatus = field(metadata=WHOLE)
    log_id: str = field(metadata=JOINED)
    incarnation: int = field(metadata=MAX)
    #: named by accepted reports and not known: their epochs are staged, or they were late
    staged_substreams: int = field(default=0, metadata=SUM)
    staged_units: int = field(default=0, metadata=SUM)  #: of staged epochs, each of which counts as one beside
    staged_entries: int = field(default=0, metadata=SUM)  #: of staged epochs, with their promises
    tombstones: int = field(default=0, metadata=SUM)  #: names of ended and forgotten substreams that are remembered
    cells: int = field(default=0, metadata=SUM)  #: (substream, segment) pairs that take up memory
    incomplete_substreams: int = field(default=0, metadata=SUM)  #: open ones of which more is expected than was sent
    expected: int = field(default=0, metadata=SUM)  #: elements of those, on the segments on which any are missing
    expected_sent: int = field(default=0, metadata=SUM)  #: how many were sent on the same
    #: on which nobody has ever received anything that was committed
    unread_segments: tuple[str, ...] = field(default=(), metadata=COMMON)
    #: In a job with progress, by segment: every substream of an end time up to this one has ended there.
    advanced: Mapping[str, int] = field(default_factory=dict, metadata=LEAST_BY_KEY)

    def __repr__(self) -> str:
        lines = "".join(f"    {name}={value!r},\n" for name, value in self.shown().items())
        return f"JobStatus(\n{lines})"


class Counts(NamedTuple):
    """Size of a job; each number is at hand, however large the job is."""

    segments: int
    open_substreams: int
    staged_substreams: int
    staged_units: int
    staged_entries: int
    cells: int
    tombstones: int
    events: int  #: kept
    fronts: int
    expected: int  #: numbers that fronts have given
    scopes: int  #: that have frontiers of their own; each front may have one for each


@dataclass(frozen=True, slots=True)
class SegmentStatus(Shown):
    """A substream's account on one segment."""

    segment: str
    ended: bool
    xor: int
    sent: int
    received: int
    last_sender: str
    last_receiver: str
    expected: int | None = None  #: how many elements the fronts expect to be sent in all; None: no number was given
    expected_by: Mapping[str, int] = field(default_factory=dict)  #: by front; ``""``: fronts that were removed
    closed: bool = False  #: nothing more comes from the fronts that reach it
    by_drain: bool = False  #: it has ended, and only a drain had closed it: more may follow in a later deployment

    @property
    def missing(self) -> int:
        """Return how many of the expected elements were not sent yet."""
        return max(0, (self.expected or 0) - self.sent)


@dataclass(frozen=True, slots=True, repr=False)
class SubstreamStatus(Shown):
    """A substream as it stands."""

    scope: str
    name: str
    end_time: int | None
    closed: bool
    waiting_for: tuple[str, ...]  #: the fronts that have not closed it
    segments: tuple[SegmentStatus, ...]
    late_reports: int
    created_ns: int
    changed_ns: int
    held_by: tuple[str, ...]  #: producers that owe a commit for a revoked immediate epoch
    by_drain: bool = False  #: only a drain had closed it on a segment where it has ended: more may follow later

    @property
    def created(self) -> datetime:
        """Return when it was first reported."""
        return moment(self.created_ns)

    @property
    def changed(self) -> datetime:
        """Return when something of it last changed."""
        return moment(self.changed_ns)

    @property
    def in_flight(self) -> int:
        """Elements sent and not yet received, over the segments where more were sent than received."""
        return sum(max(0, segment.sent - segment.received) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class StagedCount(Shown):
    """Numbers that an uncommitted epoch has reported on a segment."""

    segment: str
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class StagedStatus(Shown):
    """State of one substream in an epoch that is not committed."""

    producer: str
    epoch: int
    mode: Mode  #: STAGED: it does not count yet; IMMEDIATE: it counts, and can be revoked
    sealed: bool
    segments: tuple[StagedCount, ...]  #: in the order of the graph
    closed_by: tuple[str, ...]  #: the fronts for which it closes the substream, sorted; ``""``: the sole owner
    expected_by: tuple[str, ...] = ()  #: the fronts for which it gives a number of elements, sorted


@dataclass(frozen=True, slots=True)
class Explained(Shown):
    """One substream, and what is reported of it and not committed."""

    substream: SubstreamStatus | None  #: None: no committed report has named it, or it is forgotten
    staged: tuple[StagedStatus, ...]  #: by producer and epoch
    earlier: tuple[
        SubstreamStatus, ...
    ] = ()  #: the first open ones for which its end waits by the ordering, by end time
    earlier_count: int = 0  #: how many of them there are


@dataclass(frozen=True, slots=True, repr=False)
class SubscriptionStatus(Shown):
    """A durable reader as it stands."""

    name: str
    segments: tuple[str, ...]  #: its filter; empty: all
    scopes: tuple[str, ...]
    acknowledged: int  #: its events come after this one
    max_age_ns: int
    max_events: int
    retained: int  #: events that are kept for it beyond the job's retention
    oldest_retained_ns: int | None
    created_ns: int
    last_ack_ns: int | None
    expired_ns: int | None
    expired_because: str

    @property
    def max_age(self) -> timedelta:
        """Return how old the events that are kept for it may become."""
        return length(self.max_age_ns)

    @property
    def oldest_retained(self) -> datetime | None:
        """Return when the oldest of the events kept beyond retention happened."""
        return moment_if_any(self.oldest_retained_ns)

    @property
    def created(self) -> datetime:
        """Return when it was made."""
        return moment(self.created_ns)

    @property
    def last_ack(self) -> datetime | None:
        """Return when it last acknowledged something."""
        return moment_if_any(self.last_ack_ns)

    @property
    def expired(self) -> datetime | None:
        """Return when it expired; None: it stands."""
        return moment_if_any(self.expired_ns)


@dataclass(frozen=True, slots=True)
class ServerInfo(Shown):
    """Server that answers."""

    version: str
    journal: str  #: ``"memory"``, ``"sqlite"``, …
    leader: bool  #: False: a standby, which serves nothing else
    limits: Mapping[str, int]
    instance: str = ""  #: names this start of the server; empty: it is older than this field
    features: tuple[str, ...] = ()  #: what it can do that earlier releases would get wrong instead of refusing it
