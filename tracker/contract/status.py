"""What the tracker can be asked: plain values that describe a job as it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .commands import Spec
from .notebooks import Shown
from .values import DrainMode, DrainState, Mode


@dataclass(frozen=True, slots=True)
class DrainStatus(Shown):
    """A drain, and what it still waits for."""

    state: DrainState
    drain_id: str
    deployment: str
    unfinished_fronts: tuple[str, ...] = ()
    open_substreams: int = 0
    in_flight: int = 0
    uncommitted_producers: tuple[
        str, ...
    ] = ()  #: with staged epochs; in a hand-over, also with revoked ones that are to come again
    open_producers: tuple[str, ...] = ()  #: whose runs have not closed
    mode: DrainMode | None = None  #: what becomes of what is open; None: nobody has asked for a drain
    #: in a hand-over under way: those, but for state, on which an open substream does not balance
    unbalanced_segments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    producer: str
    run: str
    mode: Mode
    committed_epoch: int | None
    staged_epochs: tuple[int, ...]
    closed: bool
    last_heard: int  #: ns since the Unix epoch


@dataclass(frozen=True, slots=True)
class FrontStatus:
    front: str
    finished: bool
    idle: bool
    frontiers: dict[str, int]  #: by scope; ``"*"`` is the frontier for every scope
    producer: str  #: its owner; empty: nobody has promised for it yet
    last_promise: int | None
    segments: tuple[str, ...] = ()  #: that it feeds; empty: all
    more_frontiers: int = 0  #: left out of `frontiers`, since a message has no room for them


@dataclass(frozen=True, slots=True)
class JobStatus:
    spec: Spec
    first_seq: int
    last_seq: int
    open_substreams: int
    ended_substreams: int
    in_flight: int
    late_reports: int
    producers: tuple[ProducerStatus, ...]
    fronts: tuple[FrontStatus, ...]
    drain: DrainStatus
    log_id: str
    incarnation: int
    incomplete_substreams: int = 0  #: open ones of which more is expected than was sent
    expected: int = 0  #: of those, on the segments on which elements are missing
    expected_sent: int = 0  #: on the same
    staged_substreams: int = 0  #: named by accepted reports and not known
    staged_units: int = 0  #: of staged epochs, each of which counts as one beside
    staged_entries: int = 0  #: and promises
    tombstones: int = 0
    cells: int = 0  #: (substream, segment) pairs that take up memory
    unread_segments: tuple[str, ...] = ()  #: on which nobody has ever received anything that was committed
    advanced: Mapping[str, int] = field(default_factory=dict)  #: by segment, up to which end time it is over


class Counts(NamedTuple):
    """How much a job takes up; each number is at hand, however much that is."""

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
class StagedStatus:
    """What an epoch that is not committed holds of one substream."""

    producer: str
    epoch: int
    mode: Mode
    sealed: bool
    segments: tuple[tuple[str, int, int], ...]  #: (segment, sent, received), in the order of the graph
    closed_by: tuple[str, ...]  #: the fronts that it closes the substream for, sorted; ``""``: the sole owner
    expected_by: tuple[str, ...]  #: the fronts that it gives a number of elements for, sorted


@dataclass(frozen=True, slots=True)
class Explained:
    """Everything that is known of one substream."""

    substream: SubstreamStatus | None  #: None: it is not known
    staged: tuple[StagedStatus, ...]  #: by producer and epoch
    earlier: tuple[
        SubstreamStatus, ...
    ] = ()  #: the first open ones for which its end waits by the ordering, by end time
    earlier_count: int = 0  #: how many of them there are


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    name: str
    segments: tuple[str, ...]
    scopes: tuple[str, ...]
    acknowledged: int
    max_age: int
    max_events: int
    retained: int  #: how many events are kept for it beyond retention
    oldest_retained: int | None  #: when the oldest of them happened
    created: int
    last_ack: int | None
    expired: int | None
    expired_because: str


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    segment: str
    ended: bool
    xor: int
    sent: int
    received: int
    last_sender: str
    last_receiver: str
    expected: dict[str, int] | None = None  #: by front (``""``: fronts that were removed); None: no number
    closed: bool = False  #: nothing more comes from the fronts that reach it
    by_drain: bool = False  #: it has ended, and only a front's finish in a drain had closed it


@dataclass(frozen=True, slots=True)
class SubstreamStatus:
    scope: str
    name: str
    end_time: int | None
    closed: bool
    waiting_for: tuple[str, ...]
    segments: tuple[SegmentStatus, ...]
    late_reports: int
    created: int
    changed: int
    held_by: tuple[str, ...]
    by_drain: bool = False  #: on a segment
