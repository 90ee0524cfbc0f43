"""Status of jobs, drains and subscriptions, of the server that answers, and of what open substreams wait for.

The core makes these values, the codec carries them, and callers read them. Times and durations are kept in nanoseconds,
in fields ``…_ns``; for each of them a property gives the `datetime` (UTC) or `timedelta` that a program works with.

The values of a job's shards become those of one job by rules: each field of a value that shards have carries its own,
`field(metadata=SUM)`, so a field that is added has its rule at once. `merged` refuses a value with a field
that has none.

A survey counts the waits of a job's open substreams over all of them, or looks for some among them. Nothing in
`JobFigures` grows with the job's substreams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from .events import Event
from .spec import JobSpec
from .values import DrainMode, DrainState, Mode, Reason, Shown, length, moment, moment_if_any

_T = TypeVar("_T")

Rule: TypeAlias = Mapping[str, Callable[[Sequence[Any]], Any]]

#: The whole job is as far as its slowest shard; the first of these states is the slowest.
_FAR: Final = (
    DrainState.NOT_DRAINING,
    DrainState.CANCELLED,
    DrainState.PENDING,
    DrainState.TIMED_OUT,
    DrainState.DRAINING,
    DrainState.DRAINED,
)


def merged(shards: Sequence[_T]) -> _T:
    """Merge the shards' values field by field.

    Args:
        shards: at least one, of one dataclass.

    Raises:
        KeyError: a field has no rule.
    """
    whole: Any = type(shards[0])
    return whole(  # type: ignore[no-any-return]
        **{each.name: each.metadata["merge"]([getattr(shard, each.name) for shard in shards]) for each in fields(whole)}
    )


def _by_name(lists: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    found: dict[str, list[Any]] = {}
    for each in chain.from_iterable(lists):
        found.setdefault(getattr(each, fields(each)[0].name), []).append(each)
    return tuple(map(merged, found.values()))


def _least(shards: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: min(shard[name] for shard in shards) for name in shards[0] if all(name in shard for shard in shards)}


def _rule(rule: Callable[[Sequence[Any]], Any]) -> Rule:
    return {"merge": rule}


FIRST: Final = _rule(lambda values: values[0])  #: all shards agree, or the first one's value counts
FIRST_NAMED: Final = _rule(lambda names: next(filter(None, names), ""))
SUM: Final = _rule(sum)
MAX: Final = _rule(max)
ALL: Final = _rule(all)
LATEST: Final = _rule(lambda times: max((each for each in times if each is not None), default=None))
LEAST_OF_ALL: Final = _rule(lambda numbers: None if None in numbers else min(numbers))  #: None if a shard has none
LEAST_BY_KEY: Final = _rule(_least)  #: of the keys that every shard has
UNION: Final = _rule(lambda lists: tuple(sorted({each for some in lists for each in some})))
COMMON: Final = _rule(lambda lists: tuple(each for each in lists[0] if all(each in some for some in lists)))
SLOWEST: Final = _rule(lambda states: min(states, key=_FAR.index))
JOINED: Final = _rule("+".join)
WHOLE: Final = _rule(merged)  #: a value with rules of its own
BY_NAME: Final = _rule(_by_name)  #: values with rules of their own, one for each name, which is their first field


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
        """Return when the producer's last report or promise came."""
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
        """Return when the front last promised something; None: not yet."""
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
    differs: bool = False  #: the identities of what was sent are not those that a front has promised

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
        """Return when the substream was first reported."""
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
    expected_by: tuple[str, ...] = ()  #: the fronts for which it gives a number of elements or identities, sorted


@dataclass(frozen=True, slots=True)
class Explained(Shown):
    """One substream, and what is reported of it and not committed."""

    substream: SubstreamStatus | None  #: None: no committed report has named it, or it is forgotten
    staged: tuple[StagedStatus, ...]  #: by producer and epoch
    earlier: tuple[
        SubstreamStatus, ...
    ] = ()  #: the first open ones for which its end waits by the ordering, by end time
    earlier_count: int = 0  #: how many of them there are


@dataclass(frozen=True, slots=True)
class Through:
    """Progress of a report's substreams, by their places in the question."""

    pending: tuple[int, ...] = ()  #: something is in flight, or the report has not taken effect
    lost: tuple[int, ...] = ()  #: nothing is followed any more, and not all was followed to its end
    forgotten: tuple[int, ...] = ()  #: it has ended, and retention has dropped how
    waits_for_epoch: bool = False  #: the report has not taken effect


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
        """Return when the subscription was made."""
        return moment(self.created_ns)

    @property
    def last_ack(self) -> datetime | None:
        """Return when the reader last acknowledged something."""
        return moment_if_any(self.last_ack_ns)

    @property
    def expired(self) -> datetime | None:
        """Return when the subscription expired; None: it stands."""
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


@dataclass(frozen=True, slots=True)
class EventTail:
    """The newest events of a job."""

    first_seq: int  #: every event from this one on is kept
    last_seq: int
    events: Sequence[Event]  #: the newest, in order


@dataclass(frozen=True, slots=True)
class Surveyed:
    """Survey of a job's open substreams, at a moment."""

    survey: Survey
    at: int  #: ms since the Unix epoch
