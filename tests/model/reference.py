"""The contract as plain code: a model that is slow and, as far as its author can see, obviously right.

It reads like the contract, section by section, and keeps what the contract speaks of and nothing more: no index, no
cache, no flag that could be computed. A look at everything, each time, finds out if a substream is closed, balanced,
open or held. The tracker's core is compared with it, so it must never import the core's logic (only its plain values),
and must never be made faster at the price of a sentence of the contract being harder to find in it.

Where the contract is silent, a comment says `reading:` and what is taken for granted here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from tracker.contract.commands import (
    Abandon,
    AboutSubstream,
    Ack,
    Acknowledged,
    Answer,
    CancelDrain,
    Close,
    CloseProducer,
    Command,
    Commit,
    Committed,
    DefineJob,
    DeleteJob,
    Drain,
    Expect,
    Finish,
    FinishFront,
    ForgetProducer,
    Frontier,
    Identities,
    JobDefined,
    Opened,
    OpenProducer,
    Promise,
    Recovered,
    Report,
    Reported,
    Subscribe,
    Subscribed,
    Tick,
    Unsubscribe,
)
from tracker.contract.events import (
    Advanced,
    Body,
    DrainCancelled,
    Drained,
    DrainRequested,
    DrainTimedOut,
    Ended,
    Event,
    Excess,
    FrontIdle,
    Late,
    Stalled,
)
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import JobSpec, Spec
from tracker.contract.status import (
    DrainStatus,
    Explained,
    FrontStatus,
    JobStatus,
    ProducerStatus,
    SegmentStatus,
    StagedCount,
    StagedStatus,
    SubscriptionStatus,
    SubstreamStatus,
    Through,
)
from tracker.contract.values import NO_END_TIME, DrainMode, DrainState, Mode, Ordering, Outcome, Reason

DAY = 24 * 3600 * 10**9
INT64_MAX = 2**63 - 1

Sid: TypeAlias = int  # a substream's id
FrontierPromise: TypeAlias = tuple[Literal["frontier"], str, str | None, int]
ClosePromise: TypeAlias = tuple[Literal["close"], str, Sid]
FinishPromise: TypeAlias = tuple[Literal["finish"], str]
Number: TypeAlias = tuple[int, int | None]  # elements, and the XOR of their identities
ExpectPromise: TypeAlias = tuple[Literal["expect"], str, Sid, str, Number, bool]  # …, segment, number, revise
IdentitiesPromise: TypeAlias = tuple[Literal["identities"], str, Sid, str, int]  # …, segment, xor
Promised: TypeAlias = FrontierPromise | ClosePromise | FinishPromise | ExpectPromise | IdentitiesPromise
Supporter: TypeAlias = tuple[str, int] | None  # the IMMEDIATE epoch that can still be revoked; None: firm
Entry: TypeAlias = tuple[Sid, str, int, int, int]  # substream, segment, xor, sent, received


# ---------------------------------------------------------------- what is kept


@dataclass
class Account:
    """The accumulator of one (substream, segment)."""

    xor: int = 0
    sent: int = 0
    received: int = 0
    last_sender: str = ""
    last_receiver: str = ""

    @property
    def balanced(self) -> bool:
        return self.xor == 0 and self.sent == self.received

    @property
    def in_flight(self) -> int:
        return max(0, self.sent - self.received)


@dataclass
class Substream:
    id: Sid
    scope: str
    name: str
    end_time: int | None
    created: int
    changed: int
    known: bool = False
    accounts: dict[str, Account] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    over_since: int | None = None  # when it had ended on every segment
    was_closed: frozenset[str] = frozenset()  # on which segments
    stalled: bool = False
    # By segment and front ("": those removed): the numbers it has promised, the last of which stands.
    expectations: dict[str, dict[str, list[tuple[Supporter, Number]]]] = field(default_factory=dict)
    identities: dict[str, list[tuple[str, Supporter, int]]] = field(default_factory=dict)  # by segment, in turn
    excess: dict[str, int] = field(default_factory=dict)  # by segment: the number expected when more was announced
    late_reports: int = 0
    given_up: Reason | None = None  # why no front is asked any more

    @property
    def open(self) -> bool:
        return self.known and self.over_since is None

    def ended_on(self, segment: str) -> bool:
        return self.over_since is not None or segment in self.ended

    def account(self, segment: str) -> Account:
        return self.accounts.get(segment, Account())

    def expected(self, segment: str) -> dict[str, int]:
        """Return the number of elements that each front has promised on a segment."""
        return {front: number[0] for front, number in self.numbers(segment).items()}

    def numbers(self, segment: str) -> dict[str, Number]:
        """Return the same, each with the XOR that was promised."""
        return {front: numbers[-1][1] for front, numbers in self.expectations.get(segment, {}).items()}

    def differs(self, segment: str) -> bool:
        """Return whether other elements were sent than promised, by their identities."""
        sent: dict[str, int] = {}
        for front, _, xor in self.identities.get(segment, []):
            sent[front] = sent.get(front, 0) ^ xor
        return any(xor is not None and sent.get(front, 0) != xor for front, (_, xor) in self.numbers(segment).items())

    def short(self, segment: str) -> bool:
        """Return whether more is expected than was sent."""
        return not self.ended_on(segment) and self.unmet(segment)

    def unmet(self, segment: str) -> bool:
        """Return whether fewer elements were sent than promised, or others, also after the end."""
        return self.account(segment).sent < sum(self.expected(segment).values()) or self.differs(segment)

    @property
    def rank(self) -> tuple[bool, int, Sid]:
        """Evaluation order: by end time (those without one last), then by creation."""
        return (self.end_time is None, self.end_time or 0, self.id)


@dataclass
class PromiseSet:
    """Promises of fronts, from all producers."""

    finished: set[str] = field(default_factory=set)
    frontiers: dict[tuple[str, str | None], int] = field(default_factory=dict)  # by (front, scope; None: every scope)
    closed: set[tuple[str, Sid]] = field(default_factory=set)  # the front "" is the sole owner

    def add(self, promise: Promised) -> None:
        if promise[0] == "finish":
            self.finished.add(promise[1])
        elif promise[0] == "close":
            self.closed.add((promise[1], promise[2]))
        elif promise[0] == "frontier":
            key = (promise[1], promise[2])
            self.frontiers[key] = max(promise[3], self.frontiers.get(key, promise[3]))

    def frontier(self, front: str, scope: str | None) -> int | None:
        """Return the front's frontier for a scope, or for every scope, whichever is greater."""
        values = [self.frontiers[key] for key in {(front, scope), (front, None)} if key in self.frontiers]
        return max(values, default=None)

    def forget(self, front: str) -> None:
        self.finished.discard(front)
        self.frontiers = {key: time for key, time in self.frontiers.items() if key[0] != front}
        self.closed = {key for key in self.closed if key[0] != front}


@dataclass
class Front:
    name: str
    since: int  # from when its silence counts
    owner: str = ""
    owner_deployment: str = ""
    idle: bool = False
    last_promise: int | None = None
    silent: bool = False  # others have promised for long since it did
    quiet_since: int = 0  # from when that counts


@dataclass
class StagedReport:
    units: tuple[str, ...]
    entries: list[Entry]
    promises: list[Promised]


@dataclass
class StagedEpoch:
    """An epoch from its first report or seal until it is committed or revoked, in either mode."""

    of_sealing_run: bool
    reports: list[StagedReport] = field(default_factory=list)
    sealed: bool = False
    folded: list[Entry] = field(default_factory=list)  # IMMEDIATE: what took effect, and can be revoked
    withdrawable: list[Promised] = field(default_factory=list)  # IMMEDIATE: likewise

    @property
    def units(self) -> set[str]:
        return {unit for report in self.reports for unit in report.units}

    @property
    def promises(self) -> list[Promised]:
        return [promise for report in self.reports for promise in report.promises]


@dataclass
class Producer:
    name: str
    mode: Mode
    run: str = ""
    closed: bool = True  # no run is open
    seals: bool = False
    settled: bool = False  # the run has said where it starts
    fenced: list[str] = field(default_factory=list)  # the last thousand
    committed: int = -1
    staged: dict[int, StagedEpoch] = field(default_factory=dict)
    holds: dict[Sid, int] = field(default_factory=dict)  # the epoch whose commit is owed
    last_heard: int = 0

    @property
    def committed_epoch(self) -> int | None:
        return self.committed if self.committed >= 0 else None


@dataclass
class JobDrain:
    id: str
    deployment: str
    state: DrainState
    deadline: int | None
    mode: DrainMode
    finished_before: set[str] = field(default_factory=set)

    @property
    def under_way(self) -> bool:
        return self.state in (DrainState.DRAINING, DrainState.TIMED_OUT)


@dataclass(frozen=True)
class Wanted:
    """A reader's filter of events: of these segments and scopes; empty: of all."""

    segments: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()

    def passes(self, event: Event) -> bool:
        match event.kind:
            case (
                Ended(segment=segment, scope=scope)
                | Late(segment=segment, scope=scope)
                | Excess(segment=segment, scope=scope)
            ):
                in_scope = not self.scopes or scope in self.scopes
                return in_scope and (not self.segments or segment in self.segments)
            case Advanced(segment=segment):
                return not self.segments or segment in self.segments
        return True


@dataclass
class Subscription:
    """A durable reader."""

    name: str
    wanted: Wanted
    acknowledged: int
    created: int
    max_age: int = 30 * DAY
    max_events: int = 1_000_000
    last_ack: int | None = None
    expired: int | None = None

    def waits_for(self, event: Event) -> bool:
        return self.expired is None and event.seq > self.acknowledged and self.wanted.passes(event)


@dataclass
class Job:
    spec: Spec
    log_id: str
    incarnation: int = 0
    read_segments: set[str] = field(default_factory=set)  # somebody has received something there
    left: list[str] = field(default_factory=list)  # deployments, the last thousand
    substreams: dict[Sid, Substream] = field(default_factory=dict)
    next_id: Sid = 0
    fronts: dict[str, Front] = field(default_factory=dict)
    firm: PromiseSet = field(default_factory=PromiseSet)  # what cannot be withdrawn any more
    scopes: set[str] = field(default_factory=set)  # named by frontiers; only these have floors of their own
    floors: dict[tuple[str, str | None], int] = field(default_factory=dict)  # by (segment, scope; None: all scopes)
    producers: dict[str, Producer] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)  # those kept
    dropped: list[Event] = field(default_factory=list)  # those that are not
    past_retention: int = -1  # what happened up to then is kept for subscriptions only
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    last_seq: int = 0
    advanced: dict[str, int] = field(default_factory=dict)
    drain: JobDrain | None = None
    late_reports: int = 0
    event_time: int | None = None  # the greatest end time of which something was folded in
    folded_at: int | None = None  # when an element was folded in last
    looked_at: int | None = None  # when a tick last looked for what has been quiet
    promised_at: int = 0  # when promises last took effect with an epoch or a commit
    tombstones: dict[tuple[str, str], int] = field(default_factory=dict)  # (scope, name): the second of its end

    # -- names

    def find(self, scope: str, name: str) -> Substream | None:
        return next((s for s in self.substreams.values() if (s.scope, s.name) == (scope, name)), None)

    # -- events

    def last_dropped(self, wanted: Wanted) -> int:
        return max((event.seq for event in self.dropped if wanted.passes(event)), default=0)

    def retained_for(self, subscription: Subscription) -> list[Event]:
        return [event for event in self.events if event.at_ns <= self.past_retention and subscription.waits_for(event)]

    def drop_unwanted(self) -> None:
        """Drop events past retention, unless a subscription waits for them."""
        kept: list[Event] = []
        for event in self.events:
            wanted = any(subscription.waits_for(event) for subscription in self.subscriptions.values())
            (self.dropped if event.at_ns <= self.past_retention and not wanted else kept).append(event)
        self.events = kept

    # -- the graph

    @property
    def feeds(self) -> dict[str, frozenset[str]]:
        return {name: frozenset(feeds) for name, feeds in self.spec.segments}

    def upstream(self, segment: str) -> set[str]:
        found = {segment}
        while more := {name for name, feeds in self.spec.segments if name not in found and not found.isdisjoint(feeds)}:
            found |= more
        return found

    def segments_in_order(self) -> list[str]:
        return sorted(self.feeds, key=lambda name: (len(self.upstream(name)), name))

    # -- fronts and closing

    def promised(self) -> PromiseSet:
        """Return the promises that hold now: firm ones, and those that IMMEDIATE epochs may still withdraw."""
        now = copy.deepcopy(self.firm)
        for producer in self.producers.values():
            for epoch in producer.staged.values():
                for promise in epoch.withdrawable:
                    now.add(promise)
        return now

    def fed(self, front: str) -> frozenset[str]:
        """Return the segments that a front feeds: all of them, unless it names some."""
        return _fed(self.spec, front)

    def reaching(self, segment: str) -> list[str]:
        """Return the fronts that a segment waits for: those that feed it or a segment upstream."""
        upstream = self.upstream(segment)
        return [front for front in self.fronts if not upstream.isdisjoint(self.fed(front))]

    def waited_for(self, segment: str, promised: PromiseSet) -> list[str]:
        """Return the fronts that must have closed a substream: no idle ones, while an unfinished one is not idle."""
        reaching = self.reaching(segment)
        if any(name not in promised.finished and not self.fronts[name].idle for name in reaching):
            return [name for name in reaching if name in promised.finished or not self.fronts[name].idle]
        return reaching

    def complete(self, s: Substream, segment: str, promised: PromiseSet) -> bool:
        """Return whether each front that feeds the segment has promised a number, or has finished."""
        expected = s.expected(segment)
        return all(
            front in expected or front in promised.finished
            for front in self.waited_for(segment, promised)
            if segment in self.fed(front)
        )

    def met(self, s: Substream, segment: str, promised: PromiseSet) -> bool:
        """Return whether all that its fronts have promised on a segment was sent."""
        return self.complete(s, segment, promised) and not s.short(segment)

    def closes_without_finish(self, front: str, s: Substream, promised: PromiseSet) -> bool:
        """Return whether a front closes a substream without finishing; one that expects it does not also close it."""
        if segments := [g for g in s.expectations if front in s.expectations[g]]:
            return all(s.ended_on(g) or self.met(s, g, promised) for g in segments)
        frontier = promised.frontier(front, s.scope)
        passed = s.end_time is not None and frontier is not None and s.end_time <= frontier
        return passed or (front, s.id) in promised.closed

    def open_fronts(self, s: Substream, segment: str, promised: PromiseSet) -> list[str]:
        """Return the fronts that have not closed a substream for a segment.

        One that expects some of it is waited for even if idle.
        """
        waited = self.waited_for(segment, promised)
        return [
            front
            for front in self.reaching(segment)
            if (front in waited or any(front in s.expectations[g] for g in s.expectations))
            and front not in promised.finished
            and not self.closes_without_finish(front, s, promised)
        ]

    def closed_by_drain(self, s: Substream, segment: str, promised: PromiseSet) -> bool:
        """Return whether only fronts that finished in the drain under way have closed it: more might have come."""
        return not s.given_up and ("", s.id) not in promised.closed and self.cut_short(s, segment, promised)

    def cut_short(self, s: Substream, segment: str, promised: PromiseSet) -> bool:
        """Return whether a front that finished in the drain under way had not closed it before, or owes it elements."""
        if self.drain is None or not self.drain.under_way:
            return False
        return any(
            not self.closes_without_finish(front, s, promised)
            or any(s.unmet(g) for g in s.expectations if front in s.expectations[g])
            for front in self.reaching(segment)
            if front in promised.finished - self.drain.finished_before
        )

    def closed_by_fronts(self, s: Substream, segment: str, promised: PromiseSet) -> bool:
        return bool(self.fronts) and not self.open_fronts(s, segment, promised)

    def closed(self, s: Substream, segment: str, promised: PromiseSet) -> bool:
        return bool(s.given_up) or ("", s.id) in promised.closed or self.closed_by_fronts(s, segment, promised)

    def closed_on(self, s: Substream, promised: PromiseSet) -> frozenset[str]:
        return frozenset(g for g in self.feeds if self.closed(s, g, promised))

    def over(self, s: Substream, segment: str, promised: PromiseSet) -> bool:
        """Return whether an entry for this segment cannot make an unknown substream known."""
        return self.closed_by_fronts(s, segment, promised) or self.below_floor(s, segment)

    def floor(self, segment: str, scope: str | None) -> int | None:
        keys = {(segment, scope), (segment, None)}
        return max((self.floors[key] for key in keys if key in self.floors), default=None)

    def below_floor(self, s: Substream, segment: str) -> bool:
        floor = self.floor(segment, s.scope)
        return s.end_time is not None and floor is not None and s.end_time <= floor

    def raise_floors(self) -> None:
        for segment in self.feeds:
            unfinished = [name for name in self.reaching(segment) if name not in self.firm.finished]
            if not unfinished:
                continue
            for scope in {None} | self.scopes:
                frontiers = [self.firm.frontier(front, scope) for front in unfinished]
                times = [time for time in frontiers if time is not None]
                if len(times) == len(unfinished):
                    key = (segment, scope)
                    self.floors[key] = max(min(times), self.floors.get(key, min(times)))

    def make_firm(self, promises: Iterable[Promised]) -> None:
        for promise in promises:
            if promise[0] == "close" or promise[1] in self.fronts:
                self.firm.add(promise)
                self.note_scope(promise)
                self.raise_floors()

    def expect(self, promise: ExpectPromise, supporter: Supporter) -> Substream | None:
        """Let a number take effect. Return the substream, if the number is another one than before."""
        _, front, sid, segment, number, revise = promise
        s = self.substreams[sid]
        if front not in self.fronts or not s.known or s.ended_on(segment):
            return None
        before = s.numbers(segment).get(front)
        if before is not None and before != number and not revise:
            return None  # revised before this took effect
        numbers = s.expectations.setdefault(segment, {}).setdefault(front, [])
        if supporter is None:
            numbers.clear()
        numbers.append((supporter, number))
        return s if before != number else None

    def identify(self, promise: IdentitiesPromise, supporter: Supporter) -> None:
        """Let the identities of sent elements take effect."""
        _, front, sid, segment, xor = promise
        s = self.substreams[sid]
        if front in self.fronts and s.known and not s.ended_on(segment):
            s.identities.setdefault(segment, []).append((front, supporter, xor))

    def forget_expectations(self, wanted: Callable[[Supporter], bool]) -> list[Substream]:
        """Take back numbers of some epochs, but where the substream has ended since. Return those changed by it."""
        changed = []
        for s in self.substreams.values():
            for segment, sent in s.identities.items():
                if not s.ended_on(segment):
                    s.identities[segment] = [each for each in sent if not wanted(each[1])]
            before = {g: s.numbers(g) for g in s.expectations}
            for segment in list(s.expectations):
                if s.ended_on(segment):
                    continue
                fronts = s.expectations[segment]
                for front in list(fronts):
                    fronts[front] = [said for said in fronts[front] if not wanted(said[0])]
                    if not fronts[front]:
                        del fronts[front]
                if not fronts:
                    del s.expectations[segment]
            if before != {g: s.numbers(g) for g in s.expectations}:
                changed.append(s)
        return changed

    def make_expectations_firm(self, supporter: Supporter) -> None:
        """Commit what this epoch has promised, so that what came before never counts again."""
        for s in self.substreams.values():
            for segment, sent in s.identities.items():
                s.identities[segment] = [(f, None if by == supporter else by, xor) for f, by, xor in sent]
            for fronts in s.expectations.values():
                for front, numbers in fronts.items():
                    made = [(None if said[0] == supporter else said[0], said[1]) for said in numbers]
                    firm = max((at for at, said in enumerate(made) if said[0] is None), default=0)
                    fronts[front] = made[firm:]

    def remove_front_from_expectations(self, name: str, segments: Iterable[str]) -> None:
        """Keep a front's numbers on segments that it feeds no more: its elements are among those sent."""
        for s in self.substreams.values():
            for segment, fronts in s.expectations.items():
                if segment in segments and name in fronts:
                    number, xor = fronts.pop(name)[-1][1]
                    others, other = fronts[""][-1][1] if "" in fronts else (0, 0)
                    both = None if xor is None or other is None else xor ^ other
                    fronts[""] = [(None, (number + others, both))]
            for segment, sent in s.identities.items():
                if segment in segments:
                    s.identities[segment] = [("" if f == name else f, by, xor) for f, by, xor in sent]

    def note_scope(self, promise: Promised) -> None:
        if promise[0] == "frontier" and promise[2] is not None:
            self.scopes.add(promise[2])

    # -- what is open

    def in_order(self) -> list[Substream]:
        """Return the known substreams in evaluation order."""
        return sorted((s for s in self.substreams.values() if s.known), key=lambda s: s.rank)

    def open_substreams(self) -> list[Substream]:
        return [s for s in self.in_order() if s.open]

    def held_by(self, s: Substream) -> list[str]:
        return [producer.name for producer in self.producers.values() if s.id in producer.holds]

    def unbalanced(self, s: Substream) -> list[str]:
        return [g for g in self.segments_in_order() if not s.ended_on(g) and not s.account(g).balanced]

    def has_lost(self, s: Substream) -> bool:
        """Return whether some of what was sent is not followed, and nothing that is followed is in flight."""
        if s.open and (self.unbalanced(s) or self.held_by(s)):
            return False
        given_up = any(end.reason in (Reason.EXPIRED, Reason.ABANDONED) for end in s.ended.values())
        return given_up or s.late_reports > 0

    def short(self, s: Substream) -> list[str]:
        return [g for g in self.segments_in_order() if s.short(g)]

    @property
    def staging(self) -> list[str]:
        return [producer.name for producer in self.producers.values() if producer.staged]

    @property
    def draining(self) -> bool:
        return self.drain is not None and self.drain.under_way

    @property
    def drained(self) -> bool:
        return self.drain is not None and self.drain.state == DrainState.DRAINED

    @property
    def hands_over(self) -> bool:
        return self.drain is not None and self.drain.mode == DrainMode.HAND_OVER and (self.draining or self.drained)

    @property
    def handed_over(self) -> bool:
        return self.hands_over and self.drained

    def unbalanced_segments(self) -> list[str]:
        """Return those on which an open substream does not balance, state or not."""
        found = {g for s in self.open_substreams() for g in self.unbalanced(s)}
        return [g for g in self.segments_in_order() if g in found]


# ---------------------------------------------------------------- the tracker


class ModelView:
    """The model's answers about one job, by the names of the core's view."""

    def __init__(self, tracker: ReferenceTracker, name: str) -> None:
        self.status = partial(tracker.job_status, name)
        self.drain_status = partial(tracker.drain_status, name)
        self.events = partial(tracker.events, name)
        self.first_seq = partial(tracker.first_seq, name)
        self.explained = partial(tracker.explained, name)
        self.through = partial(tracker.through, name)
        self.subscriptions = partial(tracker.subscriptions, name)
        self.substreams = partial(tracker.substreams, name)


class ReferenceTracker:
    """The model, with the interface of `tracker.core.Tracker` as far as comparing needs it.

    Args:
        log_prefix: what the names of logs begin with.
        retention: of jobs that name none, in nanoseconds.
    """

    def __init__(self, log_prefix: str, retention: int = DAY) -> None:
        self._prefix = log_prefix
        self._logs = 0
        self._retention = retention
        self._jobs: dict[str, Job] = {}
        self._pending: dict[tuple[str, str], JobDrain] = {}  # by (job, deployment)
        self._now = 0

    # ------------------------------------------------------------ commands

    def apply(self, command: Command, now: int) -> Answer:
        """Carry out one command at a time in nanoseconds since the Unix epoch.

        Raises:
            Refused: nothing has changed, except by settling.
        """
        self._now = now
        _check_bounds(command)
        carry_out: dict[type[Command], Callable[[Any], Answer]] = {
            DefineJob: self._define,
            DeleteJob: self._delete,
            OpenProducer: self._open,
            CloseProducer: self._close,
            ForgetProducer: self._forget,
            FinishFront: self._finish_front,
            Report: self._report,
            Commit: self._commit,
            Drain: self._drain,
            CancelDrain: self._cancel_drain,
            Abandon: self._abandon,
            Subscribe: self._subscribe,
            Ack: self._acknowledge,
            Unsubscribe: self._unsubscribe,
            Tick: self._tick,
            Recovered: self._recovered,
        }
        try:
            return carry_out[type(command)](command)
        finally:
            for job in self._jobs.values():
                self._evaluate(job)
                self._finish_drain(job)

    def _emit(self, job: Job, body: Body) -> None:
        job.last_seq += 1
        job.events.append(Event(job.last_seq, self._now, job.spec.deployment, body))

    def _job(self, name: str) -> Job:
        if name not in self._jobs:
            raise Refused(Refusal.UNKNOWN_JOB, name)
        return self._jobs[name]

    def _producer(self, job: Job, name: str) -> Producer:
        if name not in job.producers:
            raise Refused(Refusal.UNKNOWN_PRODUCER, name)
        return job.producers[name]

    def _current_run(self, job: Job, name: str, run: str) -> Producer:
        producer = self._producer(job, name)
        if producer.closed or producer.run != run:
            raise Refused(Refusal.FENCED, run)
        return producer

    # ------------------------------------------------------------ Jobs

    def _new_log(self) -> str:
        self._logs += 1
        return f"{self._prefix}-{self._logs}"

    def _define(self, c: DefineJob) -> JobDefined:
        spec = c.spec
        names = [name for name, _ in spec.segments]
        if len(set(names)) < len(names) or len(set(spec.fronts)) < len(spec.fronts):
            raise Refused(Refusal.MALFORMED, "a segment or a front is named twice")
        if any(feed not in names for _, feeds in spec.segments for feed in feeds):
            raise Refused(Refusal.UNKNOWN_SEGMENT, "a feed is no segment")
        telling = [front for front, _ in spec.front_segments]
        if len(set(telling)) < len(telling) or not set(telling) <= set(spec.fronts):
            raise Refused(Refusal.MALFORMED, "a front says twice what it feeds, or is none")
        if any(feed not in names for _, feeds in spec.front_segments for feed in feeds):
            raise Refused(Refusal.UNKNOWN_SEGMENT, "a front feeds what is no segment")
        if any(not feeds for _, feeds in spec.front_segments) or (
            spec.fronts and set(names) - {g for front in spec.fronts for g in _reached(spec, front)}
        ):
            raise Refused(Refusal.MALFORMED, "a front feeds nothing, or no front reaches a segment")
        if len(set(spec.state_segments)) < len(spec.state_segments):
            raise Refused(Refusal.MALFORMED, "a segment of state is named twice")
        if not set(spec.state_segments) <= set(names):
            raise Refused(Refusal.UNKNOWN_SEGMENT, "a segment of state is none")
        if not 0 <= spec.threshold_ppm <= 10**6 or (spec.threshold_ppm == 0) != (spec.threshold_after is None):
            raise Refused(Refusal.MALFORMED, "a threshold without its time, or the reverse")

        job = self._jobs.get(spec.job)
        created = job is None
        if job is None:
            job = Job(spec, self._new_log())
            job.fronts = {name: self._new_front(name) for name in spec.fronts}
            self._jobs[spec.job] = job
        elif spec.deployment == job.spec.deployment:
            if not _same_but_durations(spec, job.spec):
                raise Refused(Refusal.SPEC_CONFLICT, spec.deployment)
            self._check_committed_ends(job, spec)
            job.spec = replace(
                job.spec,
                stall_after=spec.stall_after,
                expire_after=spec.expire_after,
                expire_expected=spec.expire_expected,
                idle_after=spec.idle_after,
                deadline=spec.deadline,
                deadline_by_event_time=spec.deadline_by_event_time,
                threshold_ppm=spec.threshold_ppm,
                threshold_after=spec.threshold_after,
                scope_idle_after=spec.scope_idle_after,
                front_idle_after=spec.front_idle_after,
                retention=spec.retention,
                remember=spec.remember,
                state_segments=spec.state_segments,
                committed_ends=spec.committed_ends,
            )
            self._forget_stalls(job)
            self._wake_silent(job)
            return self._defined(job, created)
        elif spec.deployment in job.left:
            raise Refused(Refusal.DEPLOYMENT_MISMATCH, spec.deployment)
        elif job.drained and not job.handed_over:
            self._start_afresh(job, spec)
        else:
            handed_over = job.handed_over
            if not c.force:
                self._check_takeover(job, spec)
            else:
                self._clear_by_force(job)
            self._take_over(job, spec)
            self._wake_silent(job)
            if handed_over:
                self._go_on(job)
        self._forget_stalls(job)
        self._evaluate(job)
        if pending := self._pending.pop((spec.job, spec.deployment), None):
            self._start_drain(job, pending.id, pending.deadline, pending.mode)
            self._finish_drain(job)
        return self._defined(job, created)

    def _defined(self, job: Job, created: bool) -> JobDefined:
        drain = self.drain_status(job.spec.job)
        return JobDefined(created, job.last_seq, job.log_id, job.incarnation, drain, JobSpec.of(job.spec))

    def _start_afresh(self, job: Job, spec: Spec) -> None:
        job.left = [*job.left, job.spec.deployment][-1000:]
        job.spec = spec
        job.read_segments &= set(job.feeds)
        job.incarnation += 1
        job.substreams = {}
        job.tombstones = {}
        job.fronts = {name: self._new_front(name) for name in spec.fronts}
        job.firm = PromiseSet()
        job.scopes = set()
        job.floors = {}
        job.advanced = {}
        job.event_time = job.looked_at = job.folded_at = None
        job.promised_at = 0
        job.drain = None
        for producer in job.producers.values():
            self._fence(producer)
            producer.holds = {}
            producer.staged = {}  # reading: only units can have been staged since; a new incarnation has none

    def _check_takeover(self, job: Job, spec: Spec) -> None:
        if job.draining:
            raise Refused(Refusal.DRAIN_IN_PROGRESS, job.spec.deployment)
        if job.handed_over:
            if set(job.unbalanced_segments()) - {name for name, _ in spec.segments}:
                raise Refused(Refusal.INCOMPATIBLE_GRAPH, "state would go that holds something")
        elif _graph(spec) != _graph(job.spec) and (job.open_substreams() or job.staging):
            raise Refused(Refusal.INCOMPATIBLE_GRAPH, "something is open")
        if job.fronts and not spec.fronts:
            raise Refused(Refusal.INCOMPATIBLE_GRAPH, "the last front would go")
        kept = {name for name, _ in spec.segments}
        loses = [f for f in job.fronts if f not in spec.fronts or (job.fed(f) & kept) - _fed(spec, f)]
        # reading: what was staged since a hand-over is empty, and nobody commits it any more
        if not job.handed_over and any(job.fronts[name].owner in job.staging for name in loses):
            raise Refused(Refusal.EPOCH_STAGED, "the owner of a front that feeds less has an epoch staged")
        self._check_committed_ends(job, spec)

    def _check_committed_ends(self, job: Job, spec: Spec) -> None:
        for p in job.producers.values():
            if spec.committed_ends and p.mode == Mode.IMMEDIATE and (not p.closed or p.staged or p.holds):
                raise Refused(Refusal.MODE_CONFLICT, p.name)

    def _clear_by_force(self, job: Job) -> None:
        if job.draining:
            assert job.drain is not None
            for front in self._finished_in_drain(job, job.drain):
                job.firm.finished.discard(front)
            job.raise_floors()
            self._cancel(job, job.drain)
        for producer in job.producers.values():
            for epoch in sorted(producer.staged):
                self._revoke(job, producer, epoch)
        for s in job.open_substreams():
            self._end_everywhere(job, s, Reason.ABANDONED)
        for producer in job.producers.values():
            self._fence(producer)

    def _take_over(self, job: Job, spec: Spec) -> None:
        old = set(job.feeds)
        kept = {name for name, _ in spec.segments}
        least = _least_floors(job, old)
        added = set(spec.fronts) - set(job.fronts)
        reached = {name: _reached(spec, name) for name in added}
        floors = {name: _least_floors(job, reached[name] & old or old) for name in added}  # as they stood
        # reading: what can still be withdrawn counts, as the contract excepts it for the floor alone
        promised = job.promised()

        def unfinished(fronts: Iterable[str]) -> set[str]:
            return {name for name in fronts if name not in promised.finished}

        waited = {g: unfinished(job.reaching(g)) for g in old}
        feeding = {g: unfinished(f for f in job.fronts if g in job.fed(f)) for g in old}
        closed_by_all = {  # for the added fronts: on every segment that they reach
            name: {
                sid
                for front, sid in promised.closed
                if front
                and all(
                    waited[g] and {(f, sid) for f in waited[g]} <= promised.closed for g in reached[name] & old or old
                )
            }
            for name in added
        }
        counted_by_all = [
            (s, segment)
            for s in job.open_substreams()
            for segment in s.expectations
            if feeding[segment]
            and not s.ended_on(segment)
            and feeding[segment] <= set(s.expectations[segment])
            and job.met(s, segment, promised)
        ]
        for name in job.fronts:
            job.remove_front_from_expectations(name, job.fed(name) - _fed(spec, name))
        for name in set(job.fronts) - set(spec.fronts):
            job.firm.forget(name)
            for producer in job.producers.values():
                for epoch in producer.staged.values():
                    epoch.withdrawable = [p for p in epoch.withdrawable if p[1] != name]
                    for report in epoch.reports:
                        report.promises = [p for p in report.promises if p[1] != name]
        for name in added:
            for scope, time in floors[name].items():
                job.firm.add(("frontier", name, scope, time))
            for sid in closed_by_all[name]:
                job.firm.add(("close", name, sid))
            for s, segment in counted_by_all:
                if segment in _fed(spec, name) and segment in kept:
                    s.expectations[segment][name] = [(None, (0, 0))]
        job.fronts = {name: job.fronts.get(name) or self._new_front(name) for name in spec.fronts}
        job.left = [*job.left, job.spec.deployment][-1000:]
        job.spec = spec
        job.read_segments &= set(job.feeds)
        job.drain = None
        for s in job.substreams.values():
            s.accounts = {g: account for g, account in s.accounts.items() if g in job.feeds}
            s.ended = {g: end for g, end in s.ended.items() if g in job.feeds}
            s.expectations = {g: numbers for g, numbers in s.expectations.items() if g in job.feeds}
            s.identities = {g: sent for g, sent in s.identities.items() if g in job.feeds}
            s.excess = {g: number for g, number in s.excess.items() if g in job.feeds}
            if s.open and all(g in s.ended for g in job.feeds):  # the others are no more
                self._is_over(job, s)
        job.floors = {key: time for key, time in job.floors.items() if key[0] in job.feeds}
        for segment in set(job.feeds) - old:
            job.floors |= {(segment, scope): time for scope, time in least.items()}
        job.raise_floors()

    def _go_on(self, job: Job) -> None:
        """Start a new deployment of a job that was handed over."""
        for producer in job.producers.values():
            self._fence(producer)
            producer.staged = {}
        self._resume(job)

    def _resume(self, job: Job) -> None:
        """Start all waiting again after a hand-over, in which what was owed could not come."""
        for front in job.fronts.values():
            front.since = front.quiet_since = self._now
        for s in job.open_substreams():
            s.changed, s.stalled = self._now, False

    def _new_front(self, name: str) -> Front:
        return Front(name, self._now, quiet_since=self._now)

    def _wake_silent(self, job: Job) -> None:
        """Wait for silent fronts again in a job without a rule for them."""
        if job.spec.front_idle_after is None:
            for front in job.fronts.values():
                self._break_silence(job, front)

    def _break_silence(self, job: Job, front: Front) -> None:
        if front.silent and not front.idle:
            self._emit(job, FrontIdle(front.name, False))
        front.silent = False

    def _forget_stalls(self, job: Job) -> None:
        """reading: in a job that wants to hear of no stalls, nothing is stalled."""
        if job.spec.stall_after is None:
            for s in job.substreams.values():
                s.stalled = False

    def _delete(self, c: DeleteJob) -> None:
        job = self._job(c.job)
        if not c.force and any(not producer.closed for producer in job.producers.values()):
            raise Refused(Refusal.JOB_ACTIVE, c.job)
        del self._jobs[c.job]
        self._pending = {key: drain for key, drain in self._pending.items() if key[0] != c.job}

    # ------------------------------------------------------------ Producers, epochs, units

    def _fence(self, producer: Producer) -> None:
        if not producer.closed:
            producer.fenced = [*producer.fenced, producer.run][-1000:]
            producer.closed = True

    def _open(self, c: OpenProducer) -> Opened:
        job = self._job(c.job)
        producer = job.producers.get(c.producer, Producer(c.producer, c.mode))
        if c.run in producer.fenced:
            raise Refused(Refusal.FENCED, c.run)
        if c.mode != producer.mode:
            raise Refused(Refusal.MODE_CONFLICT, c.producer)
        if c.mode == Mode.IMMEDIATE and job.spec.committed_ends:
            raise Refused(Refusal.MODE_CONFLICT, "ends come only of what is committed")
        if not producer.closed and producer.run == c.run:
            return Opened(producer.committed_epoch)
        self._check_not_rewound(producer, c.resume_epoch)
        job.producers[c.producer] = producer
        self._fence(producer)
        producer.run, producer.seals, producer.settled, producer.closed = c.run, c.seals, False, False
        producer.last_heard = self._now
        if c.resume_epoch is not None:
            self._settle(job, producer, c.resume_epoch)
        return Opened(producer.committed_epoch)

    def _check_not_rewound(self, producer: Producer, resume_epoch: int | None) -> None:
        if resume_epoch is not None and resume_epoch <= producer.committed:
            raise Refused(Refusal.EPOCH_REWOUND, producer.name)

    def _close(self, c: CloseProducer) -> None:
        job = self._job(c.job)
        producer = self._current_run(job, c.producer, c.run)
        self._check_not_rewound(producer, c.resume_epoch)
        producer.last_heard = self._now
        if c.resume_epoch is not None:
            self._settle(job, producer, c.resume_epoch)
        self._fence(producer)

    def _forget(self, c: ForgetProducer) -> None:
        job = self._job(c.job)
        producer = self._producer(job, c.producer)
        for epoch in sorted(producer.staged):
            self._revoke(job, producer, epoch)
        for front in job.fronts.values():
            if front.owner == c.producer:
                front.owner = front.owner_deployment = ""
        del job.producers[c.producer]
        self._evaluate(job)

    def _settle(self, job: Job, producer: Producer, start: int) -> None:
        """Resolve what earlier runs left behind, once a run has stated where it starts."""
        for number in sorted(producer.staged):
            epoch = producer.staged[number]
            if number < start and not (epoch.of_sealing_run and not epoch.sealed):
                self._commit_epoch(job, producer, number)
            else:
                self._revoke(job, producer, number)
                if number < start:
                    self._count_as_committed(job, producer, number)
        self._count_as_committed(job, producer, start - 1)
        producer.settled = True

    def _count_as_committed(self, job: Job, producer: Producer, epoch: int) -> None:
        producer.committed = max(producer.committed, epoch)
        released = [sid for sid, owed in producer.holds.items() if owed <= producer.committed]
        for sid in released:
            del producer.holds[sid]
        if released:
            self._evaluate(job)

    def _commit_epoch(self, job: Job, producer: Producer, number: int) -> None:
        epoch = producer.staged.pop(number)
        if producer.mode == Mode.STAGED:
            entries = [entry for report in epoch.reports for entry in report.entries]
            _, promises = self._name_fold_and_close(job, producer, entries, epoch.promises)
            self._make_firm(job, promises)
            self._evaluate(job)
        else:
            job.make_firm(promise for promise in epoch.withdrawable if promise[0] not in ("expect", "identities"))
            job.make_expectations_firm((producer.name, number))
        self._count_as_committed(job, producer, number)

    def _commit_up_to(self, job: Job, producer: Producer, number: int) -> None:
        for staged in sorted(producer.staged):
            if staged <= number:
                self._commit_epoch(job, producer, staged)
        self._count_as_committed(job, producer, number)

    def _revoke(self, job: Job, producer: Producer, number: int) -> None:
        epoch = producer.staged.pop(number)
        for sid, segment, xor, sent, received in epoch.folded:
            s = job.substreams.get(sid)
            if s is None or not s.open:
                continue
            producer.holds[sid] = max(number, producer.holds.get(sid, number))
            s.changed, s.stalled = self._now, False
            if not s.ended_on(segment):
                account = s.accounts[segment]
                account.xor ^= xor
                account.sent -= sent
                account.received -= received
        for s in job.forget_expectations(lambda by: by == (producer.name, number)):
            if s.open:
                s.changed, s.stalled = self._now, False
        if job.drain is not None:
            job.drain.finished_before &= job.promised().finished
        self._note_closing(job)

    def _report(self, c: Report) -> Reported:
        job = self._job(c.job)
        producer = self._current_run(job, c.producer, c.run)
        named = self._check_report(job, producer, c)
        if not producer.settled:
            self._hear(job, producer)
            self._settle(job, producer, c.epoch)

        if c.epoch <= producer.committed:
            self._hear(job, producer)
            return Reported(Outcome.ALREADY_COMMITTED, (), job.last_seq, log_id=job.log_id)
        if job.drained and (c.entry_count or c.promises):
            raise Refused(Refusal.DRAINED, c.job)
        epoch = producer.staged.get(c.epoch)
        known_units = epoch.units if epoch else set()
        duplicates = tuple(unit for unit in c.units if unit in known_units)
        if duplicates and len(duplicates) < len(c.units):
            self._hear(job, producer)
            return Reported(Outcome.PARTIAL_DUPLICATE, duplicates, job.last_seq, log_id=job.log_id)
        if duplicates:
            self._hear(job, producer)
            if c.commit:
                self._commit_up_to(job, producer, c.epoch)
            return Reported(Outcome.DUPLICATE, (), job.last_seq, log_id=job.log_id)
        if epoch and epoch.sealed:
            raise Refused(Refusal.SEALED, str(c.epoch))

        self._check_expectations(job, producer, c.promises, named, [])
        self._hear(job, producer)
        sids = self._name(job, named)
        entries = [
            (sids[i], c.segments[g], xor, sent, received)
            for i, g, xor, sent, received in zip(
                c.substream_index.tolist(),
                c.segment_index.tolist(),
                c.xor.tolist(),
                c.sent.tolist(),
                c.received.tolist(),
                strict=True,
            )
        ]
        promises = [_resolved(promise, sids) for promise in c.promises]
        self._claim(job, producer, promises)
        epoch = producer.staged.setdefault(c.epoch, StagedEpoch(producer.seals))
        epoch.reports.append(StagedReport(tuple(c.units), entries, promises))
        if producer.mode == Mode.IMMEDIATE:
            folded, kept = self._name_fold_and_close(job, producer, entries, promises)
            epoch.folded += folded
            epoch.withdrawable += kept
            for promise in kept:
                job.note_scope(promise)
                if promise[0] == "expect":
                    self._expect(job, promise, (producer.name, c.epoch))
                elif promise[0] == "identities":
                    job.identify(promise, (producer.name, c.epoch))
            self._evaluate(job)
        if c.commit:
            self._commit_up_to(job, producer, c.epoch)
        ids = np.array(sids[: len(c.names)], np.uint64) if c.want_ids else None
        return Reported(Outcome.APPLIED, (), job.last_seq, substream_ids=ids, log_id=job.log_id)

    def _check_report(self, job: Job, producer: Producer, c: Report) -> list[Substream | tuple[str, str, int | None]]:
        """Check shape and units, ids, segments, the entries' end times, then promise by promise."""
        if not c.units and not c.commit:
            raise Refused(Refusal.MALFORMED, "neither units nor commit")
        if len(set(c.units)) < len(c.units):
            raise Refused(Refusal.MALFORMED, "a unit is named twice")
        if any(not _is_name(name) for name in (*c.units, *c.names)) or any(not _is_scope(scope) for scope in c.scopes):
            raise Refused(Refusal.MALFORMED, "a name is empty or too long")
        columns = (c.substream_index, c.segment_index, c.xor, c.sent, c.received)
        if any(len(column) != c.entry_count for column in columns):
            raise Refused(Refusal.MALFORMED, "columns of unequal length")
        if len(c.scope_index) != len(c.names) or len(c.end_times) not in (0, len(c.names)):
            raise Refused(Refusal.MALFORMED, "columns of unequal length")
        substreams = len(c.names) + len(c.substream_ids)
        closes = [promise.substream_index for promise in c.promises if isinstance(promise, AboutSubstream)]
        if (
            any(i >= len(c.scopes) for i in c.scope_index.tolist())
            or any(i >= substreams for i in (*c.substream_index.tolist(), *closes))
            or any(i >= len(c.segments) for i in c.segment_index.tolist())
        ):
            raise Refused(Refusal.MALFORMED, "an index past its table")
        if any(isinstance(p, Frontier) and p.scope is not None and not _is_scope(p.scope) for p in c.promises):
            raise Refused(Refusal.MALFORMED, "no scope")

        if len(c.substream_ids):
            if c.log_id != job.log_id:
                raise Refused(Refusal.LOG_CHANGED, c.log_id)
            if any(sid not in job.substreams for sid in c.substream_ids.tolist()):
                raise Refused(Refusal.UNKNOWN_ID, c.log_id)

        if any(segment not in job.feeds for segment in c.segments):
            raise Refused(Refusal.UNKNOWN_SEGMENT, ", ".join(c.segments))

        ends = c.end_times.tolist() or [NO_END_TIME] * len(c.names)
        named: list[Substream | tuple[str, str, int | None]] = [
            (c.scopes[scope], name, None if end == NO_END_TIME else end)
            for scope, name, end in zip(c.scope_index.tolist(), c.names, ends, strict=True)
        ]
        named += [job.substreams[sid] for sid in c.substream_ids.tolist()]
        bound = {(s.scope, s.name): s.end_time for s in job.substreams.values()}

        def check_end_time(index: int) -> None:
            said = named[index]
            if isinstance(said, Substream):
                return
            if bound.setdefault(said[:2], said[2]) != said[2]:
                raise Refused(Refusal.END_TIME_CONFLICT, str(said))

        for index in c.substream_index.tolist():
            check_end_time(index)
        for promise in c.promises:
            if not isinstance(promise, Close) or promise.front:
                self._check_front(job, producer, promise.front)
            elif promise.only_without_fronts and job.fronts:
                raise Refused(Refusal.UNKNOWN_FRONT, "a close without a front")
            if isinstance(promise, Expect | Identities) and promise.segment not in job.feeds:
                raise Refused(Refusal.UNKNOWN_SEGMENT, promise.segment)
            if isinstance(promise, Expect | Identities) and promise.segment not in job.fed(promise.front):
                raise Refused(Refusal.MALFORMED, "a front expects on a segment that it does not feed")
            if isinstance(promise, AboutSubstream):
                check_end_time(promise.substream_index)
        return named

    def _check_expectations(
        self,
        job: Job,
        producer: Producer,
        promises: Sequence[Promise],
        named: Sequence[Substream | tuple[str, str, int | None]],
        dropped: Sequence[StagedReport],
    ) -> None:
        """Refuse another number than the last that was accepted, unless it revises one that may still change."""
        said: dict[tuple[str, str, str, str], Number] = {}  # by (scope, name, segment, front): what is staged
        for number in sorted(producer.staged) if producer.mode == Mode.STAGED else []:
            for report in producer.staged[number].reports:
                for p in report.promises if report not in dropped else []:
                    if p[0] == "expect":
                        staged = job.substreams[p[2]]
                        said[staged.scope, staged.name, p[3], p[1]] = p[4]
        for promise in promises:
            if not isinstance(promise, Expect):
                continue
            one = named[promise.substream_index]
            scope, name = (one.scope, one.name) if isinstance(one, Substream) else one[:2]
            s = job.find(scope, name)
            key = (scope, name, promise.segment, promise.front)
            standing = s.numbers(promise.segment).get(promise.front) if s else None
            last = said.get(key, standing)
            over = s is not None and s.ended_on(promise.segment)
            promised = (promise.elements, promise.xor if promise.elements else 0)
            if last is not None and last != promised and (over or not promise.revise):
                raise Refused(Refusal.EXPECT_CONFLICT, str(key))
            said[key] = promised

    def _check_front(self, job: Job, producer: Producer, name: str) -> None:
        if name not in job.fronts:
            raise Refused(Refusal.UNKNOWN_FRONT, name)  # reading: in a commit's promises, too
        front = job.fronts[name]
        if front.owner in ("", producer.name):
            return
        if front.owner_deployment == job.spec.deployment:
            raise Refused(Refusal.FRONT_OWNED, name)
        if job.producers[front.owner].staged:
            raise Refused(Refusal.EPOCH_STAGED, name)

    def _claim(self, job: Job, producer: Producer, promises: Sequence[Promised]) -> None:
        fronts = [job.fronts[promise[1]] for promise in promises if promise[1]]
        self._wake(job, fronts)
        for front in fronts:
            front.owner, front.owner_deployment = producer.name, job.spec.deployment
            front.last_promise = front.quiet_since = self._now
            self._break_silence(job, front)

    def _name(self, job: Job, named: Sequence[Substream | tuple[str, str, int | None]]) -> list[Sid]:
        """Bind the ids and end times of what an accepted report names."""
        sids = []
        for said in named:
            if isinstance(said, Substream):
                sids.append(said.id)
                continue
            scope, name, end_time = said
            s = job.find(scope, name)
            if s is None:
                s = Substream(job.next_id, scope, name, end_time, self._now, self._now)
                job.substreams[s.id] = s
                job.next_id += 1
            sids.append(s.id)
        return sids

    def _commit(self, c: Commit) -> Committed:
        job = self._job(c.job)
        producer = self._current_run(job, c.producer, c.run)
        if (c.seal and c.promises) or (c.epoch is None and (c.seal or c.units is not None)):
            raise Refused(Refusal.MALFORMED, "a seal that promises, or a seal or manifest without an epoch")
        if any(isinstance(promise, Close) for promise in c.promises):
            raise Refused(Refusal.MALFORMED, "a commit closes nothing by name")
        scopes = [scope for scope, _, _ in c.substreams]
        named = self._check_report(
            job,
            producer,
            Report(
                c.job,
                c.producer,
                c.run,
                0,
                scopes=scopes,
                names=[name for _, name, _ in c.substreams],
                scope_index=np.arange(len(scopes), dtype=np.uint32),
                end_times=np.array([NO_END_TIME if end is None else end for _, _, end in c.substreams], np.int64),
                promises=c.promises,
                commit=True,
            ),
        )

        if c.promises and job.handed_over:
            raise Refused(Refusal.DRAINED, c.job)
        if c.epoch is not None and not producer.settled:
            if c.promises:
                self._hear(job, producer)
            self._settle(job, producer, c.epoch if c.seal else c.epoch + 1)

        dropped: list[StagedReport] = []
        if c.epoch is not None and c.epoch > producer.committed and c.units is not None:
            dropped = self._check_manifest(producer, c.epoch, set(c.units))
        later = [number for number in producer.staged if c.epoch is None or number > c.epoch]
        with_it = [
            promise
            for number, epoch in producer.staged.items()
            if number not in later
            for report in epoch.reports
            if report not in dropped
            for promise in report.promises
        ]
        moves = [_resolved(promise, []) for promise in c.promises if not isinstance(promise, Expect)]
        if later and any(self._says_more(job, promise, with_it) for promise in moves):
            raise Refused(Refusal.EPOCH_STAGED, str(later))
        self._check_expectations(job, producer, c.promises, named, dropped)

        producer.last_heard = self._now
        if c.promises:
            self._hear(job, producer)
        if c.epoch is not None and c.epoch > producer.committed:
            if c.seal:
                producer.staged.setdefault(c.epoch, StagedEpoch(producer.seals))
            if c.epoch in producer.staged:
                epoch = producer.staged[c.epoch]
                epoch.reports = [report for report in epoch.reports if report not in dropped]
                epoch.sealed = epoch.sealed or c.seal
            if not c.seal:
                self._commit_up_to(job, producer, c.epoch)
        if c.promises:
            sids = self._name(job, named)
            promises = [_resolved(promise, sids) for promise in c.promises]
            self._claim(job, producer, promises)
            _, kept = self._name_fold_and_close(job, producer, [], promises)
            self._make_firm(job, kept)
            self._evaluate(job)
        return Committed(job.last_seq)

    def _make_firm(self, job: Job, promises: Iterable[Promised]) -> None:
        for promise in promises:
            if promise[0] == "expect":
                self._expect(job, promise, None)
            elif promise[0] == "identities":
                job.identify(promise, None)
            else:
                job.make_firm([promise])

    def _expect(self, job: Job, promise: ExpectPromise, supporter: Supporter) -> None:
        if (s := job.expect(promise, supporter)) is not None:
            s.changed, s.stalled = self._now, False

    def _check_manifest(self, producer: Producer, number: int, kept: set[str]) -> list[StagedReport]:
        """Return the reports that the manifest drops."""
        epoch = producer.staged.get(number, StagedEpoch(False))
        if missing := kept - epoch.units:
            raise Refused(Refusal.MISSING_UNITS, ", ".join(sorted(missing)))
        if epoch.sealed:
            return []
        dropped = [report for report in epoch.reports if kept.isdisjoint(report.units)]
        split = [report for report in epoch.reports if report not in dropped and not kept.issuperset(report.units)]
        if split or (dropped and producer.mode == Mode.IMMEDIATE):
            raise Refused(Refusal.SPLIT_UNITS, str(number))
        return dropped

    def _says_more(self, job: Job, promise: Promised, committed_with_it: Sequence[Promised]) -> bool:
        """Return whether a promise would raise a frontier or finish a front, after the commit."""
        promised = job.promised()
        for other in committed_with_it:
            promised.add(other)
        if promise[0] == "finish":
            return promise[1] not in promised.finished
        assert promise[0] == "frontier"
        time = promised.frontiers.get((promise[1], promise[2]))
        return time is None or promise[3] > time

    # ------------------------------------------------------------ Applying an epoch

    def _name_fold_and_close(
        self, job: Job, producer: Producer, entries: Sequence[Entry], promises: Sequence[Promised]
    ) -> tuple[list[Entry], list[Promised]]:
        """Fold in entries, once all that they name is known. Return those that were, and the promises that count."""
        before = job.promised()
        job.promised_at = self._now if promises else job.promised_at
        job.read_segments |= {segment for _, segment, _, _, received in entries if received}
        fresh = {sid for sid in [entry[0] for entry in entries] + _named(promises) if not job.substreams[sid].known}
        mentions: dict[Sid, set[str]] = {sid: set() for sid in fresh}
        for entry in entries:
            mentions.setdefault(entry[0], set()).add(entry[1])
        for promise in promises:
            if promise[0] == "close" and promise[2] in fresh:
                mentions[promise[2]] |= {g for g in job.feeds if not promise[1] or promise[1] in job.reaching(g)}
            elif promise[0] in ("expect", "identities") and promise[2] in fresh:
                mentions[promise[2]].add(promise[3])
        for sid in fresh:
            s = job.substreams[sid]
            if (s.scope, s.name) not in job.tombstones and any(not job.over(s, g, before) for g in mentions[sid]):
                s.known = True
        folded: list[Entry] = []
        late: dict[tuple[Sid, str], list[int]] = {}
        for entry in entries:
            sid, segment, xor, sent, received = entry
            s = job.substreams[sid]
            if not s.known or s.ended_on(segment) or (sid in fresh and job.over(s, segment, before)):
                counts = late.setdefault((sid, segment), [0, 0])
                counts[0] += sent
                counts[1] += received
                continue
            account = s.accounts.setdefault(segment, Account())
            account.xor ^= xor
            account.sent += sent
            account.received += received
            account.last_sender = producer.name if sent else account.last_sender
            account.last_receiver = producer.name if received else account.last_receiver
            s.changed, s.stalled = self._now, False
            job.folded_at = self._now
            near = s.end_time is not None and s.end_time * 1000 <= self._now + 31 * 86_400 * 10**9
            if job.spec.deadline_by_event_time and s.end_time is not None and near:
                job.event_time = s.end_time if job.event_time is None else max(job.event_time, s.end_time)
            folded.append(entry)
        for (sid, segment), (sent, received) in late.items():
            s = job.substreams[sid]
            s.late_reports += 1
            job.late_reports += 1
            self._emit(job, Late(segment, s.scope, s.name, producer.name, sent, received))
        return folded, [p for p in promises if not _named([p]) or job.substreams[_named([p])[0]].known]

    # ------------------------------------------------------------ Ends

    def _note_closing(self, job: Job) -> None:
        """reading: to be closed, or open again, is a change, so that nothing stalls at that moment."""
        promised = job.promised()
        for s in job.open_substreams():
            closed = job.closed_on(s, promised)
            if closed != s.was_closed:
                s.changed, s.stalled = self._now, False
            s.was_closed = closed

    def _evaluate(self, job: Job) -> None:
        self._note_closing(job)
        promised = job.promised()
        for s in job.open_substreams():
            for segment in job.segments_in_order():
                self._note_excess(job, s, segment, promised)
        for segment in job.segments_in_order():
            upstream = job.upstream(segment)
            for s in job.in_order():
                if (
                    not s.ended_on(segment)
                    and job.closed(s, segment, promised)
                    and not job.held_by(s)
                    and all(s.account(g).balanced for g in upstream)
                    and not self._waits(job, s, segment)
                ):
                    reason = s.given_up or Reason.COMPLETE
                    if s.given_up and self._is_whole(job, s, segment, promised):
                        reason = Reason.COMPLETE
                    self._end(job, s, segment, reason, self._is_closed_by_drain(job, s, segment))
        if job.spec.progress and job.fronts:
            self._advance(job, promised)

    def _is_whole(self, job: Job, s: Substream, segment: str, promised: PromiseSet) -> bool:
        """Return whether nothing of a given-up substream is missing: by its fronts, by a drain, or upstream."""
        missing = any(s.ended[g].reason is s.given_up for g in job.upstream(segment) if g in s.ended)
        cut_short = job.cut_short(s, segment, promised)
        return not missing and not cut_short and job.closed_by_fronts(s, segment, promised)

    def _note_excess(self, job: Job, s: Substream, segment: str, promised: PromiseSet) -> None:
        """Announce more than expected once for each number expected."""
        if s.ended_on(segment) or segment not in s.expectations or not job.complete(s, segment, promised):
            return
        expected, sent = sum(s.expected(segment).values()), s.account(segment).sent
        if sent > expected and s.excess.get(segment) != expected:
            s.excess[segment] = expected
            self._emit(job, Excess(segment, s.scope, s.name, expected, sent))

    def _waits(self, job: Job, s: Substream, segment: str) -> bool:
        """Return whether, under an ordering, a substream of a smaller end time has not ended on the segment yet."""
        return any(not other.ended_on(segment) and self._comes_before(job, other, s) for other in job.open_substreams())

    def _is_closed_by_drain(self, job: Job, s: Substream, segment: str) -> bool:
        if not job.draining or job.hands_over:
            return False
        promised = job.promised()
        return job.closed(s, segment, promised) and job.closed_by_drain(s, segment, promised)

    def _end(self, job: Job, s: Substream, segment: str, reason: Reason, by_drain: bool) -> None:
        account = s.account(segment)
        in_flight = account.in_flight  # none where it balances
        expected = sum(s.expected(segment).values()) if segment in s.expectations else None
        s.ended[segment] = Ended(
            segment, s.scope, s.name, s.end_time, account.sent, reason, in_flight, by_drain, expected
        )
        self._emit(job, s.ended[segment])
        if all(s.ended_on(g) for g in job.feeds):
            self._is_over(job, s)

    def _is_over(self, job: Job, s: Substream) -> None:
        s.over_since = s.changed = self._now
        s.stalled = False
        for producer in job.producers.values():
            producer.holds.pop(s.id, None)

    def _end_everywhere(self, job: Job, s: Substream, reason: Reason) -> None:
        by_drain = {segment: self._is_closed_by_drain(job, s, segment) for segment in job.feeds}
        for segment in job.segments_in_order():
            if not s.ended_on(segment):
                self._end(job, s, segment, reason, by_drain[segment])

    def _advance(self, job: Job, promised: PromiseSet) -> None:
        for segment in job.segments_in_order():
            # reading: of every unfinished front, idle ones too
            unfinished = [front for front in job.reaching(segment) if front not in promised.finished]
            frontiers = [promised.frontier(front, None) for front in unfinished]
            times = [time for time in frontiers if time is not None]
            if len(times) < len(frontiers):
                continue
            waiting = [s.end_time - 1 for s in job.in_order() if s.end_time is not None and not s.ended_on(segment)]
            time = min([*times, *waiting], default=INT64_MAX)
            if segment not in job.advanced or time > job.advanced[segment]:
                job.advanced[segment] = time
                self._emit(job, Advanced(segment, time))

    def _abandon(self, c: Abandon) -> None:
        job = self._job(c.job)
        s = job.find(c.scope, c.name)
        if s is None or not s.known:
            raise Refused(Refusal.UNKNOWN_SUBSTREAM, c.name)
        self._end_everywhere(job, s, Reason.ABANDONED)
        self._evaluate(job)

    def _finish_front(self, c: FinishFront) -> None:
        job = self._job(c.job)
        if c.front not in job.fronts:
            raise Refused(Refusal.UNKNOWN_FRONT, c.front, code="NOT_FOUND")
        if job.handed_over:
            raise Refused(Refusal.DRAINED, c.front)
        if job.fronts[c.front].owner in job.staging:
            raise Refused(Refusal.EPOCH_STAGED, c.front)
        self._wake(job, [job.fronts[c.front]])
        self._break_silence(job, job.fronts[c.front])
        job.make_firm([("finish", c.front)])
        self._evaluate(job)

    # ------------------------------------------------------------ Subscriptions

    def _subscription(self, job: Job, name: str) -> Subscription:
        if name not in job.subscriptions:
            raise Refused(Refusal.UNKNOWN_SUBSCRIPTION, name)
        if job.subscriptions[name].expired is not None:
            raise Refused(Refusal.SUBSCRIPTION_EXPIRED, name)
        return job.subscriptions[name]

    def _check_log(self, job: Job, log_id: str) -> None:
        if log_id not in ("", job.log_id):
            raise Refused(Refusal.LOG_CHANGED, log_id)

    def _check_nothing_dropped(self, job: Job, wanted: Wanted, after_seq: int) -> None:
        last = job.last_dropped(wanted)
        if after_seq < last:
            raise Refused(Refusal.EVENTS_EXPIRED, str(last))

    def _subscribe(self, c: Subscribe) -> Subscribed:
        job = self._job(c.job)
        if not all(map(_is_name, (c.name, *c.segments))) or not all(map(_is_scope, c.scopes)):
            raise Refused(Refusal.MALFORMED, "no name")
        if c.max_age is not None and c.max_age <= 0:
            raise Refused(Refusal.MALFORMED, "no age")
        self._check_log(job, c.log_id)
        if any(segment not in job.feeds for segment in c.segments):
            raise Refused(Refusal.UNKNOWN_SEGMENT, ", ".join(c.segments))
        if c.after_seq is not None and c.after_seq > job.last_seq:
            raise Refused(Refusal.MALFORMED, "not happened yet")
        wanted = Wanted(frozenset(c.segments), frozenset(c.scopes))
        created = c.name not in job.subscriptions
        if created:
            if c.after_seq is not None:
                self._check_nothing_dropped(job, wanted, c.after_seq)
            place = job.last_dropped(wanted) if c.after_seq is None else c.after_seq
            job.subscriptions[c.name] = Subscription(c.name, wanted, place, self._now)
        subscription = self._subscription(job, c.name)
        if wanted != subscription.wanted:
            self._check_nothing_dropped(job, wanted, subscription.acknowledged)
            subscription.wanted = wanted
        subscription.max_age = c.max_age or 30 * DAY
        subscription.max_events = c.max_events or 1_000_000
        job.drop_unwanted()
        return Subscribed(subscription.acknowledged, job.last_seq, job.log_id, created)

    def _acknowledge(self, c: Ack) -> Acknowledged:
        job = self._job(c.job)
        subscription = self._subscription(job, c.name)
        self._check_log(job, c.log_id)
        if c.seq > job.last_seq:
            raise Refused(Refusal.MALFORMED, "not happened yet")
        subscription.last_ack = self._now
        subscription.acknowledged = max(subscription.acknowledged, c.seq)
        job.drop_unwanted()
        return Acknowledged(subscription.acknowledged)

    def _unsubscribe(self, c: Unsubscribe) -> None:
        job = self._job(c.job)
        if c.name not in job.subscriptions:
            raise Refused(Refusal.UNKNOWN_SUBSCRIPTION, c.name)
        del job.subscriptions[c.name]
        job.drop_unwanted()

    def _expire_subscriptions(self, job: Job) -> None:
        for subscription in job.subscriptions.values():
            waiting = job.retained_for(subscription)
            too_old = any(self._due(event.at_ns, subscription.max_age) for event in waiting)
            if too_old or len(waiting) > subscription.max_events:
                subscription.expired = self._now

    # ------------------------------------------------------------ Drain

    def _drain(self, c: Drain) -> DrainStatus:
        deadline = None if c.timeout is None else self._now + c.timeout
        job = self._jobs.get(c.job)
        if job is not None and c.deployment in job.left:
            raise Refused(Refusal.DEPLOYMENT_MISMATCH, c.deployment)
        if job is None or c.deployment != job.spec.deployment:
            pending = JobDrain(c.drain_id, c.deployment, DrainState.PENDING, deadline, c.mode)
            asked = self._pending.setdefault((c.job, c.deployment), pending)
            if asked.mode != c.mode:
                raise Refused(Refusal.DRAIN_MISMATCH, asked.id)
        elif not job.draining and not job.drained:
            self._start_drain(job, c.drain_id, deadline, c.mode)
            self._finish_drain(job)
        elif job.drain is not None and job.drain.mode != c.mode:
            raise Refused(Refusal.DRAIN_MISMATCH, job.drain.id)
        return self.drain_status(c.job, c.deployment)

    def _start_drain(self, job: Job, drain_id: str, deadline: int | None, mode: DrainMode) -> None:
        finished = set(job.promised().finished)
        job.drain = JobDrain(drain_id, job.spec.deployment, DrainState.DRAINING, deadline, mode, finished)
        self._emit(job, DrainRequested(drain_id, mode))

    def _finish_drain(self, job: Job) -> None:
        """Announce `drained`, the last event of its command."""
        if not job.draining:
            return
        assert job.drain is not None
        job.drain.finished_before &= job.promised().finished
        status = self.drain_status(job.spec.job)
        if job.hands_over:
            done = not status.open_producers and not status.unbalanced_segments
        else:
            fronts_done = not status.unfinished_fronts if job.fronts else not status.open_producers
            done = fronts_done and not status.open_substreams
        if done and not status.uncommitted_producers:
            job.drain.state = DrainState.DRAINED
            self._emit(job, Drained(job.drain.id, job.drain.mode))

    def _finished_in_drain(self, job: Job, drain: JobDrain) -> set[str]:
        """Return the fronts that finished because of a drain; in a hand-over none does."""
        if drain.mode == DrainMode.HAND_OVER:
            return set()
        return {front for front in job.promised().finished if front not in drain.finished_before}

    def _cancel(self, job: Job, drain: JobDrain) -> None:
        drain.state = DrainState.CANCELLED
        self._emit(job, DrainCancelled(drain.id))
        if drain.mode == DrainMode.HAND_OVER:
            self._resume(job)

    def _cancel_drain(self, c: CancelDrain) -> DrainStatus:
        job = self._jobs.get(c.job)
        if pending := self._pending.get((c.job, c.deployment)):
            if c.drain_id not in ("", pending.id):
                raise Refused(Refusal.DRAIN_MISMATCH, c.drain_id)
            del self._pending[c.job, c.deployment]
            return DrainStatus(DrainState.CANCELLED, pending.id, c.deployment, mode=pending.mode)
        if job is None:
            raise Refused(Refusal.UNKNOWN_JOB, c.job)
        if c.deployment not in ("", job.spec.deployment):
            raise Refused(Refusal.DEPLOYMENT_MISMATCH, c.deployment)
        if job.drain is not None and c.drain_id not in ("", job.drain.id):
            raise Refused(Refusal.DRAIN_MISMATCH, c.drain_id)
        if job.handed_over:
            raise Refused(Refusal.DRAINED, c.job)
        if job.drain is not None and job.drain.under_way:
            # reading: of STAGED producers; what is IMMEDIATE has finished, then or before
            staged = [
                promise
                for producer in job.producers.values()
                if producer.mode == Mode.STAGED
                for epoch in producer.staged.values()
                for promise in epoch.promises
            ]
            finishing = self._finished_in_drain(job, job.drain) or any(promise[0] == "finish" for promise in staged)
            if finishing and not job.hands_over:
                raise Refused(Refusal.DRAIN_IN_PROGRESS, job.drain.id)
            self._cancel(job, job.drain)
        return self.drain_status(c.job)

    # ------------------------------------------------------------ time

    def _hear(self, job: Job, producer: Producer) -> None:
        """Turn the idle fronts of a producer that has reported or promised back, before what woke them."""
        producer.last_heard = self._now
        self._wake(job, [front for front in job.fronts.values() if front.owner == producer.name])

    def _wake(self, job: Job, fronts: Sequence[Front]) -> None:
        if job.handed_over:
            return  # the next deployment goes on with the fronts as they are
        for front in fronts:
            front.since = self._now
            if front.idle:
                front.idle = False
                if front.silent:
                    continue
                self._emit(job, FrontIdle(front.name, False))
        self._note_closing(job)

    def _tick(self, _: Tick) -> None:
        for job in self._jobs.values():
            self._turn_idle(job)
            self._end_without_promise(job)
            self._stall_and_expire(job)
            drain = job.drain
            if drain is not None and drain.state == DrainState.DRAINING and self._passed(drain.deadline):
                drain.state = DrainState.TIMED_OUT
                self._emit(job, DrainTimedOut(drain.id))
            self._drop_old(job)
        for pending in self._pending.values():
            if self._passed(pending.deadline):
                pending.state = DrainState.TIMED_OUT  # reading: the event comes when there is a log for it

    def _passed(self, deadline: int | None) -> bool:
        return deadline is not None and self._now >= deadline

    def _due(self, since: int | None, after: int | None) -> bool:
        return since is not None and after is not None and self._now - since >= after

    def _turn_idle(self, job: Job) -> None:
        if job.hands_over:
            return
        finished = job.promised().finished
        turned = False
        for front in job.fronts.values():
            if (
                not front.idle
                and front.name not in finished
                and front.owner not in job.staging
                and self._due(front.since, job.spec.idle_after)
            ):
                front.idle = turned = True
                if not front.silent:
                    self._emit(job, FrontIdle(front.name, True))
        if turned:
            self._evaluate(job)

    def _end_without_promise(self, job: Job) -> None:
        if job.hands_over or not job.open_substreams():
            return
        if job.spec.deadline is not None:
            self._end_those(job, Reason.DEADLINE, self._overdue)
        rules = (job.spec.threshold_after, job.spec.scope_idle_after, job.spec.front_idle_after)
        waits = [wait for wait in rules if wait is not None]
        if waits and (job.looked_at is None or self._now >= job.looked_at + self._look_every(job, min(waits))):
            job.looked_at = self._now
            self._end_those(job, Reason.THRESHOLD, self._enough)
            self._end_those(job, Reason.IDLE, self._silent)
            self._fall_silent(job)
            self._end_those(job, Reason.IDLE, self._waits_for_silent_only)

    def _look_every(self, job: Job, shortest: int) -> int:
        """Return the time between two looks: a second while a front is silent and others promise."""
        assert job.looked_at is not None
        soon = job.promised_at >= job.looked_at and any(front.silent for front in job.fronts.values())
        return min(max(1, shortest // 8), 10**9 if soon else shortest)

    def _fall_silent(self, job: Job) -> None:
        if job.spec.front_idle_after is None:
            return
        finished = job.promised().finished
        staged = {p[1] for q in job.producers.values() for epoch in q.staged.values() for p in epoch.promises}
        for front in job.fronts.values():
            alike = [other for other in job.fronts.values() if job.fed(other.name) == job.fed(front.name)]
            times = [other.last_promise for other in alike if other.last_promise is not None]
            long = bool(times) and max(times) - front.quiet_since >= job.spec.front_idle_after
            if long and not front.silent and front.name not in finished | staged:
                front.silent = True
                if not front.idle:
                    self._emit(job, FrontIdle(front.name, True))

    def _waits_for_silent_only(self, job: Job, s: Substream, promised: PromiseSet) -> bool:
        if job.spec.front_idle_after is None or job.short(s):
            return False
        waited = self._waiting_for(job, s, promised)
        return bool(waited) and all(job.fronts[front].silent for front in waited)

    def _end_those(self, job: Job, reason: Reason, which: Callable[[Job, Substream, PromiseSet], bool]) -> None:
        promised = job.promised()
        ending = [
            s
            for s in job.open_substreams()
            if which(job, s, promised) and not all(s.ended_on(g) or job.closed(s, g, promised) for g in job.feeds)
        ]
        for s in ending:
            s.given_up = reason
        if ending:
            self._evaluate(job)

    def _overdue(self, job: Job, s: Substream, _: PromiseSet) -> bool:
        assert job.spec.deadline is not None
        if job.spec.deadline_by_event_time:
            if s.end_time is None or job.event_time is None:
                return False
            return s.end_time + job.spec.deadline // 1000 < min(job.event_time, self._now // 1000)
        return self._now >= (s.created if s.end_time is None else s.end_time * 1000) + job.spec.deadline

    def _enough(self, job: Job, s: Substream, promised: PromiseSet) -> bool:
        """Return whether most of what is expected came, nothing else is waited for, and nothing happened for long."""
        expecting = {front for fronts in s.expectations.values() for front in fronts}
        return (
            self._due(s.changed, job.spec.threshold_after)
            and bool(job.short(s))
            and all(
                s.account(g).sent * 10**6 >= sum(s.expected(g).values()) * job.spec.threshold_ppm for g in job.short(s)
            )
            and all(s.ended_on(g) or job.complete(s, g, promised) for g in s.expectations)
            and all(expecting.issuperset(job.open_fronts(s, g, promised)) for g in job.feeds if not s.ended_on(g))
        )

    def _silent(self, job: Job, s: Substream, _: PromiseSet) -> bool:
        if job.spec.scope_idle_after is None or job.folded_at is None:
            return False
        known = [other for other in job.substreams.values() if other.known]
        last = max(other.changed for other in known if other.scope == s.scope)
        return job.folded_at - last >= job.spec.scope_idle_after and not job.short(s)

    def _stall_and_expire(self, job: Job) -> None:
        if job.handed_over:
            return
        # In a hand-over the sources have stopped, and what state holds stays for the next deployment.
        state = set(job.spec.state_segments) if job.hands_over else set()
        promised = job.promised()
        closed = {s.id: job.closed_on(s, promised) for s in job.open_substreams()}
        owing = [
            s
            for s in job.open_substreams()
            if not closed[s.id].isdisjoint(set(job.unbalanced(s)) - state) or (closed[s.id] and job.held_by(s))
        ]
        short = [
            s
            for s in job.open_substreams()
            if s not in owing and not closed[s.id].issuperset(job.short(s)) and not job.hands_over
        ]
        for s in sorted(owing + short, key=lambda s: s.rank):
            if not s.stalled and self._due(s.changed, job.spec.stall_after):
                s.stalled = True
                self._emit(job, self._stall(job, s))
        begun = [s for s in short if any(a.xor or a.sent or a.received for a in s.accounts.values())]
        may_expire = sorted(owing + begun * job.spec.expire_expected, key=lambda s: s.rank)
        expired = [s for s in may_expire if self._due(s.changed, job.spec.expire_after)]
        for s in expired:
            self._end_everywhere(job, s, Reason.EXPIRED)
        if expired:
            self._evaluate(job)

    def _stall(self, job: Job, s: Substream) -> Stalled:
        short = job.short(s)
        faulty = job.unbalanced(s)
        missing = sum(s.account(g).in_flight for g in faulty)
        surplus = sum(s.account(g).sent - s.account(g).received for g in faulty)
        # reading: the proto lets it be negative; where anything is missing, the contract's sum is said
        return Stalled(
            s.scope,
            s.name,
            tuple(g for g in job.segments_in_order() if g in faulty or g in short),
            missing or surplus,
            sum(sum(s.expected(g).values()) for g in short),
            sum(s.account(g).sent for g in short),
        )

    def _drop_old(self, job: Job) -> None:
        retention = self._retention if job.spec.retention is None else job.spec.retention
        job.past_retention = max(job.past_retention, self._now - retention)
        self._expire_subscriptions(job)
        job.drop_unwanted()
        staged: set[Sid] = set()
        for producer in job.producers.values():
            for epoch in producer.staged.values():
                waiting = [entry for report in epoch.reports for entry in report.entries]
                staged |= {entry[0] for entry in (waiting if producer.mode == Mode.STAGED else epoch.folded)}
                staged |= set(_named(epoch.promises))
        for s in list(job.substreams.values()):
            # reading: what is named and never comes to be known is forgotten likewise; what a staged epoch speaks of
            # stays.
            over = s.over_since if s.known else s.created
            if over is not None and self._due(over, retention) and s.id not in staged:
                del job.substreams[s.id]
                if s.known and not all(job.below_floor(s, g) for g in job.feeds):
                    job.tombstones[s.scope, s.name] = -(-over // 10**9)
        if job.spec.remember is not None:
            forgotten = (self._now - job.spec.remember) // 10**9
            job.tombstones = {name: second for name, second in job.tombstones.items() if second > forgotten}

    def _recovered(self, c: Recovered) -> None:
        for job in self._jobs.values():
            for front in job.fronts.values():
                front.since = self._now
            if c.lost_tail:
                job.log_id = self._new_log()
            for producer in (each for each in job.producers.values() if c.fences and not each.closed):
                self._fence(producer)
                if job.draining and (job.hands_over or not job.fronts):
                    producer.run, producer.closed = f"lost-{c.lost_tail}", False
                    producer.seals = producer.settled = False
        if c.lost_tail:
            self._prefix = c.lost_tail

    # ------------------------------------------------------------ what can be asked

    def jobs(self) -> list[str]:
        return list(self._jobs)

    def drain_status(self, name: str, deployment: str = "") -> DrainStatus:
        if pending := self._pending.get((name, deployment)):
            return DrainStatus(pending.state, pending.id, deployment, mode=pending.mode)
        job = self._job(name)
        if deployment not in ("", job.spec.deployment):
            raise Refused(Refusal.DEPLOYMENT_MISMATCH, deployment)
        finished = job.promised().finished
        return DrainStatus(
            job.drain.state if job.drain else DrainState.NOT_DRAINING,
            job.drain.id if job.drain else "",
            job.spec.deployment,
            tuple(front for front in job.fronts if front not in finished),
            len(job.open_substreams()),
            self._in_flight(job),
            tuple(p.name for p in job.producers.values() if p.staged or (p.holds and job.hands_over)),
            tuple(producer.name for producer in job.producers.values() if not producer.closed),
            job.drain.mode if job.drain else None,
            tuple(g for g in job.unbalanced_segments() if g not in job.spec.state_segments)
            if job.hands_over and job.draining
            else (),
        )

    def _in_flight(self, job: Job) -> int:
        return sum(s.account(g).in_flight for s in job.open_substreams() for g in job.feeds if not s.ended_on(g))

    def view(self, name: str) -> ModelView:
        self._job(name)
        return ModelView(self, name)

    def job_status(self, name: str) -> JobStatus:
        job = self._job(name)
        promised = job.promised()
        known = job.in_order()
        return JobStatus(
            JobSpec.of(job.spec),
            job.last_dropped(Wanted()) + 1,
            job.last_seq,
            len(job.open_substreams()),
            len(known) - len(job.open_substreams()),
            self._in_flight(job),
            job.late_reports,
            tuple(
                ProducerStatus(
                    p.name, p.run, p.mode, p.committed_epoch, tuple(sorted(p.staged)), p.closed, p.last_heard
                )
                for p in job.producers.values()
            ),
            tuple(
                FrontStatus(
                    f.name,
                    f.name in promised.finished,
                    f.idle or f.silent,
                    {
                        "*" if scope is None else scope: t
                        for (front, scope), t in promised.frontiers.items()
                        if front == f.name
                    },
                    f.owner,
                    f.last_promise,
                    tuple(g for g in job.segments_in_order() if g in job.fed(f.name))
                    if len(job.fed(f.name)) < len(job.feeds)
                    else (),
                )
                for f in job.fronts.values()
            ),
            self.drain_status(name),
            job.log_id,
            job.incarnation,
            incomplete_substreams=len([s for s in job.open_substreams() if job.short(s)]),
            expected=sum(sum(s.expected(g).values()) for s in job.open_substreams() for g in job.short(s)),
            expected_sent=sum(s.account(g).sent for s in job.open_substreams() for g in job.short(s)),
            staged_substreams=sum(not s.known for s in job.substreams.values()),
            staged_units=sum(1 + len(epoch.units) for p in job.producers.values() for epoch in p.staged.values()),
            staged_entries=sum(
                len(epoch.promises)
                + (len(epoch.folded) if p.mode == Mode.IMMEDIATE else sum(len(r.entries) for r in epoch.reports))
                for p in job.producers.values()
                for epoch in p.staged.values()
            ),
            unread_segments=tuple(g for g in job.segments_in_order() if g not in job.read_segments),
            advanced={g: job.advanced[g] for g in job.segments_in_order() if job.spec.progress and g in job.advanced},
        )

    def events(
        self,
        name: str,
        after_seq: int,
        up_to_seq: int = 0,
        limit: int = 1000,
        log_id: str = "",
        wanted: Any = Wanted(),  # or the core's filter: both have segments and scopes
        own: bool = False,
        subscription: str = "",
    ) -> tuple[list[Event], int]:
        job = self._job(name)
        self._check_log(job, log_id)
        asked = Wanted(wanted.segments, wanted.scopes)
        if subscription:
            reader = self._subscription(job, subscription)
            asked, own, after_seq = reader.wanted, True, after_seq or reader.acknowledged
        if own or after_seq:
            self._check_nothing_dropped(job, asked, after_seq)
        after = max(after_seq, job.last_dropped(asked))
        up_to = min(up_to_seq or job.last_seq, job.last_seq)
        found = [event for event in job.events if after < event.seq <= up_to][:limit]
        return found, found[-1].seq if len(found) == limit else max(after, up_to)

    def first_seq(self, name: str, wanted: Any) -> int:
        return self._job(name).last_dropped(Wanted(wanted.segments, wanted.scopes)) + 1

    def through(
        self, name: str, log_id: str, producer: str, epoch: int, substreams: Sequence[tuple[str, str]]
    ) -> Through:
        job = self._job(name)
        self._check_log(job, log_id)
        by = self._producer(job, producer)
        if epoch > by.committed and not (by.mode == Mode.IMMEDIATE and epoch in by.staged):
            return Through(tuple(range(len(substreams))), waits_for_epoch=True)
        found = [job.find(*substream) for substream in substreams]
        return Through(
            tuple(n for n, s in enumerate(found) if s and s.open and (job.unbalanced(s) or job.held_by(s))),
            tuple(n for n, s in enumerate(found) if s and job.has_lost(s)),
            tuple(n for n, s in enumerate(found) if not s or not (s.known or s.late_reports)),
        )

    def explained(self, name: str, scope: str, substream: str) -> Explained:
        job = self._job(name)
        s = job.find(scope, substream)
        if s is None:
            return Explained(None, ())
        found = self.substreams(name, [scope], include_ended=True)
        staged = []
        for producer in sorted(job.producers.values(), key=lambda producer: producer.name):
            for number, epoch in sorted(producer.staged.items()):
                reported = [entry for report in epoch.reports for entry in report.entries]
                entries = [e for e in (reported if producer.mode == Mode.STAGED else epoch.folded) if e[0] == s.id]
                closing = {p[1] for p in epoch.promises if p[0] == "close" and p[2] == s.id}
                expecting = {p[1] for p in epoch.promises if p[0] in ("expect", "identities") and s.id in _named([p])}
                counts = tuple(
                    StagedCount(g, sum(e[3] for e in entries if e[1] == g), sum(e[4] for e in entries if e[1] == g))
                    for g in job.segments_in_order()
                    if any(e[1] == g for e in entries)
                )
                if counts or closing or expecting:
                    how = (producer.name, number, producer.mode, epoch.sealed)
                    staged.append(StagedStatus(*how, counts, tuple(sorted(closing)), tuple(sorted(expecting))))
        status = next((each for each in found if each.name == substream), None)
        earlier = self._earlier(job, s) if status is not None else []
        statuses = {(each.scope, each.name): each for each in self.substreams(name)} if earlier else {}
        first = tuple(statuses[each.scope, each.name] for each in earlier[:3])
        return Explained(status, tuple(staged), first, len(earlier))

    def _earlier(self, job: Job, s: Substream) -> list[Substream]:
        """Return the open substreams but for which it would have ended on some segment."""
        promised = job.promised()
        waits_on = [
            segment
            for segment in job.segments_in_order()
            if s.open
            and not s.ended_on(segment)
            and job.closed(s, segment, promised)
            and not job.held_by(s)
            and all(s.account(g).balanced for g in job.upstream(segment))
        ]
        return [
            other
            for other in job.open_substreams()
            if any(not other.ended_on(g) and self._comes_before(job, other, s) for g in waits_on)
        ]

    def _comes_before(self, job: Job, other: Substream, s: Substream) -> bool:
        return (
            job.spec.ordering != Ordering.NONE
            and s.end_time is not None
            and other.end_time is not None
            and other.end_time < s.end_time
            and (job.spec.ordering == Ordering.GLOBAL or other.scope == s.scope)
        )

    def subscriptions(self, name: str) -> list[SubscriptionStatus]:
        job = self._job(name)
        return [
            SubscriptionStatus(
                s.name,
                tuple(sorted(s.wanted.segments)),
                tuple(sorted(s.wanted.scopes)),
                s.acknowledged,
                s.max_age,
                s.max_events,
                len(job.retained_for(s)),
                next((event.at_ns for event in job.retained_for(s)), None),
                s.created,
                s.last_ack,
                s.expired,
                "",
            )
            for s in sorted(job.subscriptions.values(), key=lambda s: s.name)
        ]

    def substreams(
        self,
        name: str,
        scopes: Sequence[str] = (),
        include_ended: bool = False,
        only_stalled: bool = False,
    ) -> list[SubstreamStatus]:
        """Return the known substreams, by creation (the core pages them)."""
        job = self._job(name)
        promised = job.promised()
        return [
            SubstreamStatus(
                s.scope,
                s.name,
                s.end_time,
                not s.open or all(s.ended_on(g) or job.closed(s, g, promised) for g in job.feeds),
                tuple(self._waiting_for(job, s, promised)) if s.open else (),
                tuple(self._segment_status(job, s)),
                s.late_reports,
                s.created,
                s.changed,
                tuple(job.held_by(s)),
                any(end.by_drain for end in s.ended.values()),
            )
            for s in sorted(job.in_order(), key=lambda s: s.id)
            if (not scopes or s.scope in scopes) and (s.open or include_ended) and (s.stalled or not only_stalled)
        ]

    def _waiting_for(self, job: Job, s: Substream, promised: PromiseSet) -> set[str]:
        return {
            front
            for g in job.feeds
            if not s.ended_on(g) and not job.closed(s, g, promised)
            for front in job.open_fronts(s, g, promised)
        }

    def _segment_status(self, job: Job, s: Substream) -> Iterator[SegmentStatus]:
        promised = job.promised()
        for g in job.segments_in_order():
            a = s.account(g)
            yield SegmentStatus(
                g,
                s.ended_on(g),
                a.xor,
                a.sent,
                a.received,
                a.last_sender,
                a.last_receiver,
                sum(s.expected(g).values()) if s.expected(g) else None,
                s.expected(g),
                s.ended_on(g) or job.closed(s, g, promised),
                g in s.ended and s.ended[g].by_drain,
                s.differs(g),
            )


def _graph(spec: Spec) -> dict[str, frozenset[str]]:
    return {name: frozenset(feeds) for name, feeds in spec.segments}


def _fed(spec: Spec, front: str) -> frozenset[str]:
    return frozenset(
        dict(spec.front_segments).get(front, [name for name, _ in spec.segments] if front in spec.fronts else ())
    )


def _reached(spec: Spec, front: str) -> set[str]:
    """Return the segments that wait for a front: those that it feeds, and all downstream of them."""
    found = set(_fed(spec, front))
    while more := {feed for name, feeds in spec.segments if name in found for feed in feeds} - found:
        found |= more
    return found


def _least_floors(job: Job, segments: set[str]) -> dict[str | None, int]:
    """Return, by scope, the least floor of some segments, where all have one."""
    least: dict[str | None, int] = {}
    for scope in {scope for _, scope in job.floors}:
        times = [time for g in segments if (time := job.floor(g, scope)) is not None]
        if times and len(times) == len(segments):
            least[scope] = min(times)
    return least


def _same_but_durations(one: Spec, other: Spec) -> bool:
    return (
        _graph(one) == _graph(other)
        and {front: _fed(one, front) for front in one.fronts} == {front: _fed(other, front) for front in other.fronts}
        and one.ordering == other.ordering
        and one.progress == other.progress
    )


def _resolved(promise: Promise, sids: Sequence[Sid]) -> Promised:
    match promise:
        case Frontier(front, time, scope):
            return ("frontier", front, scope, time)
        case Close(front, index):
            return ("close", front, sids[index])
        case Finish(front):
            return ("finish", front)
        case Expect(front, segment, index, elements, revise, xor):
            return ("expect", front, sids[index], segment, (elements, xor if elements else 0), revise)
        case Identities(front, segment, index, xor):
            return ("identities", front, sids[index], segment, xor)


def _named(promises: Iterable[Promised]) -> list[Sid]:
    """Return the substreams that promises name: closed, or expected."""
    return [promise[2] for promise in promises if promise[0] in ("close", "expect", "identities")]


def _check_bounds(command: Command) -> None:
    """Refuse each number beyond its bound, before anything else is looked at."""
    century = 36_525 * 24 * 3600 * 10**9
    durations: list[int | None] = []
    epochs: list[int | None] = []
    if isinstance(command, DefineJob):
        spec = command.spec
        durations = [spec.stall_after, spec.expire_after, spec.idle_after, spec.retention, spec.remember]
        durations += [spec.deadline, spec.threshold_after, spec.scope_idle_after, spec.front_idle_after]
    elif isinstance(command, Drain):
        durations = [command.timeout]
    elif isinstance(command, Subscribe):
        durations = [command.max_age]
    elif isinstance(command, OpenProducer | CloseProducer):
        epochs = [command.resume_epoch]
    elif isinstance(command, Report | Commit):
        epochs = [command.epoch]
    end_times: list[int | None] = command.end_times.tolist() if isinstance(command, Report) else []
    if isinstance(command, Commit):
        end_times = [end_time for _, _, end_time in command.substreams]
    promises = command.promises if isinstance(command, Report | Commit) else ()
    if (
        any(isinstance(promise, Expect) and promise.elements > 2**48 for promise in promises)
        or any(duration is not None and duration > century for duration in durations)
        or any(epoch is not None and epoch >= 2**62 for epoch in epochs)
        or any(time is not None and time != NO_END_TIME and abs(time) > 2**61 for time in end_times)
    ):
        raise Refused(Refusal.MALFORMED, "a number is beyond its bound")


def _is_name(name: str) -> bool:
    return 1 <= len(name.encode()) <= 512


def _is_scope(scope: str) -> bool:
    return len(scope.encode()) <= 512 and scope != "*"
