"""What programs that call the tracker give and get, in the form that suits a program.

These values stand beside those that the core has of the same things, on purpose. A caller has moments as `datetime`,
lengths of time as `timedelta`, a graph as a mapping, and words for an ordering or a mode. The core counts nanoseconds
since the epoch, exactly, with the wire's numbers and with pairs, which a journal and a snapshot keep (`commands`,
`answers`, `status`, `events.Event`). A report in the making is a table of what was combined (`Contents`); a command
has what came over the wire, with ids and scopes by number. What has one form for both is declared once, elsewhere:
promises, the kinds of events, enumerations of words, a drain's status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from .bounds import DURATIONS
from .events import Body
from .notebooks import Shown
from .promises import Promise
from .status import DrainStatus
from .values import I8, U4, U8, Outcome

Ordering: TypeAlias = Literal["none", "scope", "global"]
Mode: TypeAlias = Literal["staged", "immediate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec(Shown):
    """A job: its graph of segments, its fronts, its rules.

    Args:
        job: its name, of ``[A-Za-z0-9._-]``, 1 to 128 characters.
        deployment: which deployment of the job this is, 1 to 128 characters.
        segments: for each segment those that its elements travel on next; cycles are allowed.
        fronts: the sources that promise what they will not send any more. Without any, substreams are closed one by
            one by whoever is their only source. As a mapping: for each source the segments that it feeds; none: all,
            as for those that are only named. A segment waits for the sources that feed it or a segment upstream.
        ordering: which ends wait for those of smaller end times: none, those in the same scope, or all.
        progress: announce `Advanced`, how far each segment has come.
        stall_after: a closed substream that has not balanced nor changed for so long is announced as `Stalled`;
            None: never.
        expire_after: and is given up after so long; None: never.
        idle_after: a front that was silent for so long is not waited for; None: never.
        retention: how long ended substreams and events are kept; None: as long as the server likes.
        remember: how long the name of an ended substream is remembered, from its end on, so that what comes of it later
            is late and begins no second life; None: as long as there is the job.
        state_segments: the segments that stand for state which emits later, such as the buffer of a window: a hand-over
            leaves what they hold to the next deployment.
        committed_ends: ends come only of what is committed, so nothing that follows can contradict one: producers with
            the mode ``"immediate"`` are refused. False: each producer chooses.

    >>> JobSpec(job="flights", deployment="d1", segments={"raw": ["clean"], "clean": []}, fronts=["schedule"]).ordering
    'none'
    """

    job: str
    deployment: str
    segments: Mapping[str, Sequence[str]]
    fronts: Sequence[str] | Mapping[str, Sequence[str]] = ()
    ordering: Ordering = "none"
    progress: bool = False
    stall_after: timedelta | None = None
    expire_after: timedelta | None = None
    idle_after: timedelta | None = None
    retention: timedelta | None = None
    remember: timedelta | None = None
    state_segments: Sequence[str] = ()
    committed_ends: bool = False

    def __post_init__(self) -> None:
        check_graph(self.segments, self.fronts)
        for name in DURATIONS:
            if not isinstance(value := getattr(self, name), timedelta | None):
                raise TypeError(f"{name}={value!r} is no length of time; give timedelta(seconds={value!r}), or None")


def check_graph(segments: object, fronts: object) -> None:
    """Refuse a graph of another shape than a job's.

    Raises:
        TypeError: with the form that is right.
    """
    if not isinstance(segments, Mapping) or any(map(_is_no_list, segments.values())):
        raise TypeError(
            f"segments={segments!r}: give a mapping from each segment to the list of those that it feeds, such as "
            "{'raw': ['clean'], 'clean': []}"
        )
    if any(map(_is_no_list, fronts.values())) if isinstance(fronts, Mapping) else _is_no_list(fronts):
        raise TypeError(
            f"fronts={fronts!r}: give a list of fronts, such as ['orders'], or a mapping from each front to the list "
            "of segments that it feeds, such as {'orders': ['raw']}"
        )


def _is_no_list(value: object) -> bool:
    """Return whether a value is no collection of texts; one text is none, though Python iterates over its letters."""
    return isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(each, str) for each in value)


@dataclass(frozen=True, slots=True)
class JobDefined(Shown):
    """The answer to `define_job`."""

    created: bool  #: the job is new; also False when a first answer was lost and the call was repeated
    last_seq: int
    log_id: str
    incarnation: int  #: how often the job has started afresh; records carry it from one query to the next
    drain: DrainStatus
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class ProducerStatus(Shown):
    producer: str
    run: str
    mode: Mode
    committed_epoch: int | None
    staged_epochs: tuple[int, ...]
    closed: bool
    last_heard: datetime


@dataclass(frozen=True, slots=True)
class FrontStatus(Shown):
    front: str
    finished: bool
    idle: bool
    frontiers: Mapping[str, int]  #: by scope; ``"*"`` is the frontier for every scope
    producer: str  #: its owner; empty: nobody has promised for it yet
    last_promise: datetime | None
    segments: tuple[str, ...] = ()  #: that it feeds; empty: all of them
    more_frontiers: int = 0  #: scopes that an answer had no room for; they are at least as far as those in `frontiers`


@dataclass(frozen=True, slots=True)
class JobStatus(Shown):
    """A job as it stands."""

    spec: JobSpec
    first_seq: int  #: every event from this one on is kept
    last_seq: int
    open_substreams: int
    ended_substreams: int
    in_flight: int  #: elements sent and not yet received, over all segments
    late_reports: int
    producers: tuple[ProducerStatus, ...]
    fronts: tuple[FrontStatus, ...]
    drain: DrainStatus
    log_id: str
    incarnation: int
    staged_substreams: int = 0  #: named by accepted reports and not known: their epochs are staged, or they were late
    staged_units: int = 0  #: of staged epochs, each of which counts as one beside
    staged_entries: int = 0  #: of staged epochs, with their promises
    tombstones: int = 0  #: names of ended and forgotten substreams that are remembered
    cells: int = 0  #: (substream, segment) pairs that take up memory
    incomplete_substreams: int = 0  #: open ones of which more is expected than was sent
    expected: int = 0  #: elements of those, on the segments on which any are missing
    expected_sent: int = 0  #: how many were sent on the same
    unread_segments: tuple[str, ...] = ()  #: on which nobody has ever received anything that was committed
    #: In a job with progress, by segment: every substream of an end time up to this one has ended there.
    advanced: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        lines = "".join(f"    {each.name}={getattr(self, each.name)!r},\n" for each in fields(self))
        return f"JobStatus(\n{lines})"


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
        """How many of the expected elements were not sent yet."""
        return max(0, (self.expected or 0) - self.sent)


@dataclass(frozen=True, slots=True)
class SubstreamStatus(Shown):
    """A substream as it stands."""

    scope: str
    name: str
    end_time: int | None
    closed: bool
    waiting_for: tuple[str, ...]  #: the fronts that have not closed it
    segments: tuple[SegmentStatus, ...]
    late_reports: int
    created: datetime
    changed: datetime
    held_by: tuple[str, ...]  #: producers that owe a commit for a revoked immediate epoch
    by_drain: bool = False  #: only a drain had closed it on a segment where it has ended: more may follow later

    @property
    def in_flight(self) -> int:
        """Elements sent and not yet received, over the segments where more were sent than received."""
        return sum(max(0, segment.sent - segment.received) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class StagedCount(Shown):
    """What an epoch that is not committed has reported on a segment."""

    segment: str
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class StagedStatus(Shown):
    """What an epoch that is not committed holds of one substream."""

    producer: str
    epoch: int
    mode: Mode  #: ``"staged"``: it does not count yet; ``"immediate"``: it counts, and can be revoked
    sealed: bool
    segments: tuple[StagedCount, ...]
    closed_by: tuple[str, ...]  #: the fronts for which it closes the substream; ``""``: the sole owner
    expected_by: tuple[str, ...] = ()  #: the fronts for which it gives a number of elements


@dataclass(frozen=True, slots=True)
class Explained(Shown):
    """One substream, and what is reported of it and not committed."""

    substream: SubstreamStatus | None  #: None: no committed report has named it, or it is forgotten
    staged: tuple[StagedStatus, ...]
    earlier: tuple[
        SubstreamStatus, ...
    ] = ()  #: the first open ones for which its end waits by the ordering, by end time
    earlier_count: int = 0  #: how many of them there are


@dataclass(frozen=True, slots=True)
class SubscriptionStatus(Shown):
    """A durable reader as it stands."""

    name: str
    segments: tuple[str, ...]  #: its filter; empty: all
    scopes: tuple[str, ...]
    acknowledged: int  #: its events come after this one
    max_age: timedelta
    max_events: int
    retained: int  #: events that are kept for it beyond the job's retention
    oldest_retained: datetime | None  #: when the oldest of them happened
    created: datetime
    last_ack: datetime | None
    expired: datetime | None  #: None: it stands
    expired_because: str


@dataclass(frozen=True, slots=True)
class ServerInfo(Shown):
    """Which server answers."""

    version: str
    journal: str  #: ``"memory"``, ``"sqlite"``, …
    leader: bool  #: False: a standby, which serves nothing else
    limits: Mapping[str, int]
    instance: str = ""  #: names this start of the server; empty: it is older than this field
    features: tuple[str, ...] = ()  #: what it can do that earlier releases would get wrong instead of refusing it


@dataclass(frozen=True, slots=True)
class Reported(Shown):
    """The tracker's answer to a report."""

    outcome: Outcome
    duplicate_units: tuple[str, ...]  #: with PARTIAL_DUPLICATE: what to leave out of the next attempt
    last_seq: int  #: the job's newest event

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do: false for PARTIAL_DUPLICATE only."""
        return self.outcome is not Outcome.PARTIAL_DUPLICATE


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The contents of a report: substreams, and one entry for each (substream, segment) that it changes.

    `substreams` and `segments` are tables; `substream_index` and `segment_index` point into them, one row an entry,
    in line with `xor`, `sent` and `received`.
    """

    substreams: Sequence[tuple[str, str]]  #: (scope, name)
    end_times: I8  #: one for each substream; NO_END_TIME: it has none
    segments: Sequence[str]
    substream_index: U4
    segment_index: U4
    xor: U8
    sent: U4
    received: U4
    promises: Sequence[Promise]


@dataclass(frozen=True, slots=True)
class Event(Shown):
    """One entry of a job's event log.

    >>> from datetime import timezone
    >>> from tracker.contract.events import Advanced
    >>> event = Event(7, datetime(2026, 1, 1, tzinfo=timezone.utc), "d1", Advanced("raw", 100))
    >>> match event.kind:
    ...     case Advanced(segment, time):
    ...         print(segment, time)
    raw 100
    """

    seq: int  #: within the job: 1, 2, 3, … without gaps
    at: datetime  #: when the tracker took the command that caused it; UTC
    deployment: str
    kind: Body


@dataclass(frozen=True, slots=True)
class EventPage(Shown):
    """A range of a job's events."""

    events: tuple[Event, ...]
    last_seq: int  #: the last one looked at, whether or not the filters let it through: where to go on
    log_id: str  #: names the log; `seq` has a meaning only within one
    first_seq: int = 0  #: from this event on the filters miss none; 0: an older server does not give it
