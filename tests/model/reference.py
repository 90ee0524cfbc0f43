"""The contract as plain code: a model that is slow and, as far as its author can see, obviously right.

It reads like the contract, section by section, and keeps what the contract speaks of and nothing more: no index, no
cache, no flag that could be computed. What is closed, balanced, open or held is found out by looking at everything,
each time. It is what the tracker's core is compared with, so it must never import the core's logic (only its plain
values), and must never be made faster at the price of a sentence of the contract being harder to find in it.

Where the contract is silent, a comment says `reading:` and what is taken for granted here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from tracker.core.commands import (
    NO_END_TIME,
    Abandon,
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
    DrainState,
    DrainStatus,
    Finish,
    FinishFront,
    ForgetProducer,
    Frontier,
    JobDefined,
    Mode,
    Opened,
    OpenProducer,
    Ordering,
    Outcome,
    Promise,
    Recovered,
    Report,
    Reported,
    Spec,
    Tick,
)
from tracker.core.events import (
    Advanced,
    Body,
    DrainCancelled,
    Drained,
    DrainRequested,
    DrainTimedOut,
    Ended,
    Event,
    FrontIdle,
    Late,
    Reason,
    Stalled,
)
from tracker.core.refusal import Refused
from tracker.core.status import FrontStatus, JobStatus, ProducerStatus, SegmentStatus, SubstreamStatus

DAY = 24 * 3600 * 10**9
INT64_MAX = 2**63 - 1

Sid: TypeAlias = int  # a substream's id
FrontierPromise: TypeAlias = tuple[Literal["frontier"], str, str | None, int]
ClosePromise: TypeAlias = tuple[Literal["close"], str, Sid]
FinishPromise: TypeAlias = tuple[Literal["finish"], str]
Promised: TypeAlias = FrontierPromise | ClosePromise | FinishPromise
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
    was_closed: bool = False
    stalled: bool = False
    late_reports: int = 0

    @property
    def open(self) -> bool:
        return self.known and self.over_since is None

    def ended_on(self, segment: str) -> bool:
        return self.over_since is not None or segment in self.ended

    def account(self, segment: str) -> Account:
        return self.accounts.get(segment, Account())

    @property
    def rank(self) -> tuple[bool, int, Sid]:
        """Evaluation order: by end time (those without one last), then by creation."""
        return (self.end_time is None, self.end_time or 0, self.id)


@dataclass
class PromiseSet:
    """What fronts have promised, whoever said it."""

    finished: set[str] = field(default_factory=set)
    frontiers: dict[tuple[str, str | None], int] = field(default_factory=dict)  # by (front, scope; None: every scope)
    closed: set[tuple[str, Sid]] = field(default_factory=set)  # the front "" is the sole owner

    def add(self, promise: Promised) -> None:
        if promise[0] == "finish":
            self.finished.add(promise[1])
        elif promise[0] == "close":
            self.closed.add((promise[1], promise[2]))
        else:
            key = (promise[1], promise[2])
            self.frontiers[key] = max(promise[3], self.frontiers.get(key, promise[3]))

    def frontier(self, front: str, scope: str | None) -> int | None:
        """The front's frontier for a scope, or for every scope, whichever is greater."""
        values = [self.frontiers[key] for key in {(front, scope), (front, None)} if key in self.frontiers]
        return max(values, default=None)

    def frontiers_of(self, front: str) -> dict[str, int]:
        return {"*" if key[1] is None else key[1]: time for key, time in self.frontiers.items() if key[0] == front}

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
    fenced: set[str] = field(default_factory=set)
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
    finished_before: set[str] = field(default_factory=set)

    @property
    def under_way(self) -> bool:
        return self.state in (DrainState.DRAINING, DrainState.TIMED_OUT)


@dataclass
class Job:
    spec: Spec
    log_id: str
    incarnation: int = 0
    left: set[str] = field(default_factory=set)  # deployments
    substreams: dict[Sid, Substream] = field(default_factory=dict)
    next_id: Sid = 0
    fronts: dict[str, Front] = field(default_factory=dict)
    firm: PromiseSet = field(default_factory=PromiseSet)  # what cannot be withdrawn any more
    scopes: set[str] = field(default_factory=set)  # named by frontiers; only these have floors of their own
    floors: dict[str | None, int] = field(default_factory=dict)  # by scope; None: all scopes
    producers: dict[str, Producer] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)  # those kept
    last_seq: int = 0
    advanced: dict[str, int] = field(default_factory=dict)
    drain: JobDrain | None = None
    late_reports: int = 0

    # -- names

    def find(self, scope: str, name: str) -> Substream | None:
        return next((s for s in self.substreams.values() if (s.scope, s.name) == (scope, name)), None)

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
        """What holds now: what is firm, and what IMMEDIATE epochs may still withdraw."""
        now = copy.deepcopy(self.firm)
        for producer in self.producers.values():
            for epoch in producer.staged.values():
                for promise in epoch.withdrawable:
                    now.add(promise)
        return now

    def waited_for(self, promised: PromiseSet) -> list[str]:
        """The fronts that must have closed a substream: not the idle ones, while an unfinished one is not idle."""
        if any(name not in promised.finished and not front.idle for name, front in self.fronts.items()):
            return [name for name, front in self.fronts.items() if name in promised.finished or not front.idle]
        return list(self.fronts)

    def open_fronts(self, s: Substream, promised: PromiseSet) -> list[str]:
        """The fronts that have not closed a substream."""

        def has_closed(front: str) -> bool:
            if front in promised.finished or (front, s.id) in promised.closed:
                return True
            frontier = promised.frontier(front, s.scope)
            return s.end_time is not None and frontier is not None and s.end_time <= frontier

        return [front for front in self.waited_for(promised) if not has_closed(front)]

    def closed_by_fronts(self, s: Substream, promised: PromiseSet) -> bool:
        return bool(self.fronts) and not self.open_fronts(s, promised)

    def closed(self, s: Substream, promised: PromiseSet) -> bool:
        return ("", s.id) in promised.closed or self.closed_by_fronts(s, promised)

    def floor(self, scope: str) -> int | None:
        return max((self.floors[key] for key in (scope, None) if key in self.floors), default=None)

    def below_floor(self, s: Substream) -> bool:
        floor = self.floor(s.scope)
        return s.end_time is not None and floor is not None and s.end_time <= floor

    def raise_floors(self) -> None:
        unfinished = [name for name in self.fronts if name not in self.firm.finished]
        if not unfinished:
            return
        for scope in {None} | self.scopes:
            frontiers = [self.firm.frontier(front, scope) for front in unfinished]
            times = [time for time in frontiers if time is not None]
            if len(times) == len(unfinished):
                self.floors[scope] = max(min(times), self.floors.get(scope, min(times)))

    def make_firm(self, promises: Iterable[Promised]) -> None:
        for promise in promises:
            if promise[0] == "close" or promise[1] in self.fronts:
                self.firm.add(promise)
                self.note_scope(promise)
                self.raise_floors()

    def note_scope(self, promise: Promised) -> None:
        if promise[0] == "frontier" and promise[2] is not None:
            self.scopes.add(promise[2])

    # -- what is open

    def in_order(self) -> list[Substream]:
        """The known substreams in evaluation order."""
        return sorted((s for s in self.substreams.values() if s.known), key=lambda s: s.rank)

    def open_substreams(self) -> list[Substream]:
        return [s for s in self.in_order() if s.open]

    def held_by(self, s: Substream) -> list[str]:
        return [producer.name for producer in self.producers.values() if s.id in producer.holds]

    def unbalanced(self, s: Substream) -> list[str]:
        return [g for g in self.segments_in_order() if not s.ended_on(g) and not s.account(g).balanced]

    @property
    def staging(self) -> list[str]:
        return [producer.name for producer in self.producers.values() if producer.staged]

    @property
    def draining(self) -> bool:
        return self.drain is not None and self.drain.under_way

    @property
    def drained(self) -> bool:
        return self.drain is not None and self.drain.state == DrainState.DRAINED


# ---------------------------------------------------------------- the tracker


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
            Tick: self._tick,
            Recovered: self._recovered,
        }
        try:
            return carry_out[type(command)](command)
        finally:
            for job in self._jobs.values():
                self._note_closing(job)
                self._finish_drain(job)

    def _emit(self, job: Job, body: Body) -> None:
        job.last_seq += 1
        job.events.append(Event(job.last_seq, self._now, job.spec.deployment, body))

    def _job(self, name: str) -> Job:
        if name not in self._jobs:
            raise Refused.unknown("UNKNOWN_JOB", name)
        return self._jobs[name]

    def _producer(self, job: Job, name: str) -> Producer:
        if name not in job.producers:
            raise Refused.unknown("UNKNOWN_PRODUCER", name)
        return job.producers[name]

    def _current_run(self, job: Job, name: str, run: str) -> Producer:
        producer = self._producer(job, name)
        if producer.closed or producer.run != run:
            raise Refused.precondition("FENCED", run)
        return producer

    # ------------------------------------------------------------ Jobs

    def _new_log(self) -> str:
        self._logs += 1
        return f"{self._prefix}-{self._logs}"

    def _define(self, c: DefineJob) -> JobDefined:
        spec = c.spec
        names = [name for name, _ in spec.segments]
        if len(set(names)) < len(names) or len(set(spec.fronts)) < len(spec.fronts):
            raise Refused.malformed("a segment or a front is named twice")
        if any(feed not in names for _, feeds in spec.segments for feed in feeds):
            raise Refused.invalid("UNKNOWN_SEGMENT", "a feed is no segment")

        job = self._jobs.get(spec.job)
        created = job is None
        if job is None:
            job = Job(spec, self._new_log())
            job.fronts = {name: Front(name, self._now) for name in spec.fronts}
            self._jobs[spec.job] = job
        elif spec.deployment == job.spec.deployment:
            if not _same_but_durations(spec, job.spec):
                raise Refused.precondition("SPEC_CONFLICT", spec.deployment)
            job.spec = replace(
                job.spec,
                stall_after=spec.stall_after,
                expire_after=spec.expire_after,
                idle_after=spec.idle_after,
                retention=spec.retention,
            )
            self._forget_stalls(job)
            return self._defined(job, created)
        elif spec.deployment in job.left:
            raise Refused.precondition("DEPLOYMENT_MISMATCH", spec.deployment)
        elif job.drained:
            self._start_afresh(job, spec)
        else:
            if not c.force:
                self._check_takeover(job, spec)
            else:
                self._clear_by_force(job)
            self._take_over(job, spec)
        self._forget_stalls(job)
        self._evaluate(job)
        if pending := self._pending.pop((spec.job, spec.deployment), None):
            self._start_drain(job, pending.id, pending.deadline)
            self._finish_drain(job)
        return self._defined(job, created)

    def _defined(self, job: Job, created: bool) -> JobDefined:
        drain = self.drain_status(job.spec.job)
        return JobDefined(job.spec, created, job.last_seq, drain, job.log_id, job.incarnation)

    def _start_afresh(self, job: Job, spec: Spec) -> None:
        job.left.add(job.spec.deployment)
        job.spec = spec
        job.incarnation += 1
        job.substreams = {}
        job.fronts = {name: Front(name, self._now) for name in spec.fronts}
        job.firm = PromiseSet()
        job.scopes = set()
        job.floors = {}
        job.advanced = {}
        job.drain = None
        for producer in job.producers.values():
            self._fence(producer)
            producer.holds = {}
            producer.staged = {}  # reading: only units can have been staged since; a new incarnation has none

    def _check_takeover(self, job: Job, spec: Spec) -> None:
        if job.draining:
            raise Refused.precondition("DRAIN_IN_PROGRESS", job.spec.deployment)
        if _graph(spec) != _graph(job.spec) and (job.open_substreams() or job.staging):
            raise Refused.precondition("INCOMPATIBLE_GRAPH", "something is open")
        if job.fronts and not spec.fronts:
            raise Refused.precondition("INCOMPATIBLE_GRAPH", "the last front would go")
        if any(job.fronts[name].owner in job.staging for name in job.fronts if name not in spec.fronts):
            raise Refused.precondition("EPOCH_STAGED", "a removed front's owner has an epoch staged")

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
        floors = dict(job.floors)  # added fronts take it as it stood
        # reading: what can still be withdrawn counts, as the contract excepts it for the floor alone
        promised = job.promised()
        unfinished = [name for name in job.fronts if name not in promised.finished]
        closed_by_all = {
            sid
            for front, sid in promised.closed
            if front and unfinished and all((other, sid) in promised.closed for other in unfinished)
        }
        for name in set(job.fronts) - set(spec.fronts):
            job.firm.forget(name)
            for producer in job.producers.values():
                for epoch in producer.staged.values():
                    epoch.withdrawable = [p for p in epoch.withdrawable if p[1] != name]
                    for report in epoch.reports:
                        report.promises = [p for p in report.promises if p[1] != name]
        for name in set(spec.fronts) - set(job.fronts):
            for scope, time in floors.items():
                job.firm.add(("frontier", name, scope, time))
            for sid in closed_by_all:
                job.firm.add(("close", name, sid))
        job.fronts = {name: job.fronts.get(name) or Front(name, self._now) for name in spec.fronts}
        job.left.add(job.spec.deployment)
        job.spec = spec
        job.drain = None
        for s in job.substreams.values():
            s.accounts = {g: account for g, account in s.accounts.items() if g in job.feeds}
        job.raise_floors()

    def _forget_stalls(self, job: Job) -> None:
        """reading: in a job that wants to hear of no stalls, nothing is stalled."""
        if job.spec.stall_after is None:
            for s in job.substreams.values():
                s.stalled = False

    def _delete(self, c: DeleteJob) -> None:
        job = self._job(c.job)
        if not c.force and any(not producer.closed for producer in job.producers.values()):
            raise Refused.precondition("JOB_ACTIVE", c.job)
        del self._jobs[c.job]
        self._pending = {key: drain for key, drain in self._pending.items() if key[0] != c.job}

    # ------------------------------------------------------------ Producers, epochs, units

    def _fence(self, producer: Producer) -> None:
        if not producer.closed:
            producer.fenced.add(producer.run)
            producer.closed = True

    def _open(self, c: OpenProducer) -> Opened:
        job = self._job(c.job)
        producer = job.producers.get(c.producer, Producer(c.producer, c.mode))
        if c.run in producer.fenced:
            raise Refused.precondition("FENCED", c.run)
        if c.mode != producer.mode:
            raise Refused.precondition("MODE_CONFLICT", c.producer)
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
            raise Refused.precondition("EPOCH_REWOUND", producer.name)

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
        """What earlier runs left behind, once a run has said where it starts."""
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
            job.make_firm(promises)
            self._evaluate(job)
        else:
            job.make_firm(epoch.withdrawable)
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
            return Reported(Outcome.ALREADY_COMMITTED, job.last_seq, log_id=job.log_id)
        if job.drained and (c.entry_count or c.promises):
            raise Refused.precondition("DRAINED", c.job)
        epoch = producer.staged.get(c.epoch)
        known_units = epoch.units if epoch else set()
        duplicates = tuple(unit for unit in c.units if unit in known_units)
        if duplicates and len(duplicates) < len(c.units):
            self._hear(job, producer)
            return Reported(Outcome.PARTIAL_DUPLICATE, job.last_seq, duplicates, log_id=job.log_id)
        if duplicates:
            self._hear(job, producer)
            if c.commit:
                self._commit_up_to(job, producer, c.epoch)
            return Reported(Outcome.DUPLICATE, job.last_seq, log_id=job.log_id)
        if epoch and epoch.sealed:
            raise Refused.precondition("SEALED", str(c.epoch))

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
            self._evaluate(job)
        if c.commit:
            self._commit_up_to(job, producer, c.epoch)
        ids = np.array(sids[: len(c.names)], np.uint64) if c.want_ids else None
        return Reported(Outcome.APPLIED, job.last_seq, substream_ids=ids, log_id=job.log_id)

    def _check_report(self, job: Job, producer: Producer, c: Report) -> list[Substream | tuple[str, str, int | None]]:
        """Shape and units, ids, segments, the entries' end times, then promise by promise."""
        if not c.units and not c.commit:
            raise Refused.malformed("neither units nor commit")
        if len(set(c.units)) < len(c.units):
            raise Refused.malformed("a unit is named twice")
        if any(not _is_name(name) for name in (*c.units, *c.names)) or any(not _is_scope(scope) for scope in c.scopes):
            raise Refused.malformed("a name is empty or too long")
        columns = (c.substream_index, c.segment_index, c.xor, c.sent, c.received)
        if any(len(column) != c.entry_count for column in columns):
            raise Refused.malformed("columns of unequal length")
        if len(c.scope_index) != len(c.names) or len(c.end_times) not in (0, len(c.names)):
            raise Refused.malformed("columns of unequal length")
        substreams = len(c.names) + len(c.substream_ids)
        closes = [promise.substream_index for promise in c.promises if isinstance(promise, Close)]
        if (
            any(i >= len(c.scopes) for i in c.scope_index.tolist())
            or any(i >= substreams for i in (*c.substream_index.tolist(), *closes))
            or any(i >= len(c.segments) for i in c.segment_index.tolist())
        ):
            raise Refused.malformed("an index past its table")
        if any(isinstance(p, Frontier) and p.scope is not None and not _is_scope(p.scope) for p in c.promises):
            raise Refused.malformed("no scope")

        if len(c.substream_ids):
            if c.log_id != job.log_id:
                raise Refused.precondition("LOG_CHANGED", c.log_id)
            if any(sid not in job.substreams for sid in c.substream_ids.tolist()):
                raise Refused.precondition("UNKNOWN_ID", c.log_id)

        if any(segment not in job.feeds for segment in c.segments):
            raise Refused.invalid("UNKNOWN_SEGMENT", ", ".join(c.segments))

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
                raise Refused.invalid("END_TIME_CONFLICT", str(said))

        for index in c.substream_index.tolist():
            check_end_time(index)
        for promise in c.promises:
            if not isinstance(promise, Close) or promise.front:
                self._check_front(job, producer, promise.front)
            if isinstance(promise, Close):
                check_end_time(promise.substream_index)
        return named

    def _check_front(self, job: Job, producer: Producer, name: str) -> None:
        if name not in job.fronts:
            raise Refused.invalid("UNKNOWN_FRONT", name)  # reading: in a commit's promises, too
        front = job.fronts[name]
        if front.owner in ("", producer.name):
            return
        if front.owner_deployment == job.spec.deployment:
            raise Refused.precondition("FRONT_OWNED", name)
        if job.producers[front.owner].staged:
            raise Refused.precondition("EPOCH_STAGED", name)

    def _claim(self, job: Job, producer: Producer, promises: Sequence[Promised]) -> None:
        fronts = [job.fronts[promise[1]] for promise in promises if promise[1]]
        self._wake(job, fronts)
        for front in fronts:
            front.owner, front.owner_deployment = producer.name, job.spec.deployment
            front.last_promise = self._now

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
            raise Refused.malformed("a seal that promises, or a seal or manifest without an epoch")
        if any(isinstance(promise, Close) for promise in c.promises):
            raise Refused.malformed("a commit closes nothing by name")
        for promise in c.promises:
            self._check_front(job, producer, promise.front)
        promises = [_resolved(promise, []) for promise in c.promises]

        if c.epoch is not None and not producer.settled:
            if promises:
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
        if later and any(self._says_more(job, promise, with_it) for promise in promises):
            raise Refused.precondition("EPOCH_STAGED", str(later))

        producer.last_heard = self._now
        if promises:
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
        if promises:
            self._claim(job, producer, promises)
            job.make_firm(promises)
            self._evaluate(job)
        return Committed(job.last_seq)

    def _check_manifest(self, producer: Producer, number: int, kept: set[str]) -> list[StagedReport]:
        """The reports that the manifest drops."""
        epoch = producer.staged.get(number, StagedEpoch(False))
        if missing := kept - epoch.units:
            raise Refused.precondition("MISSING_UNITS", ", ".join(sorted(missing)))
        if epoch.sealed:
            return []
        dropped = [report for report in epoch.reports if kept.isdisjoint(report.units)]
        split = [report for report in epoch.reports if report not in dropped and not kept.issuperset(report.units)]
        if split or (dropped and producer.mode == Mode.IMMEDIATE):
            raise Refused.precondition("SPLIT_UNITS", str(number))
        return dropped

    def _says_more(self, job: Job, promise: Promised, committed_with_it: Sequence[Promised]) -> bool:
        """Whether a promise would raise a frontier or finish a front, after the commit."""
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
        """All entries, after all that they name is known; gives what was folded in, and the promises that count."""
        before = job.promised()
        for sid in [entry[0] for entry in entries] + _closed(promises):
            s = job.substreams[sid]
            if not s.known and not job.closed_by_fronts(s, before) and not job.below_floor(s):
                s.known = True
        folded: list[Entry] = []
        late: dict[tuple[Sid, str], list[int]] = {}
        for entry in entries:
            sid, segment, xor, sent, received = entry
            s = job.substreams[sid]
            if not s.known or s.ended_on(segment):
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
            folded.append(entry)
        for (sid, segment), (sent, received) in late.items():
            s = job.substreams[sid]
            s.late_reports += 1
            job.late_reports += 1
            self._emit(job, Late(segment, s.scope, s.name, producer.name, sent, received))
        return folded, [p for p in promises if p[0] != "close" or job.substreams[p[2]].known]

    # ------------------------------------------------------------ Ends

    def _note_closing(self, job: Job) -> None:
        """reading: to be closed is a change, so that nothing stalls the moment it is closed."""
        promised = job.promised()
        for s in job.open_substreams():
            closed = job.closed(s, promised)
            if closed and not s.was_closed:
                s.changed = self._now
            if not closed:
                s.stalled = False
            s.was_closed = closed

    def _evaluate(self, job: Job) -> None:
        self._note_closing(job)
        promised = job.promised()
        for segment in job.segments_in_order():
            upstream = job.upstream(segment)
            for s in job.in_order():
                if (
                    not s.ended_on(segment)
                    and job.closed(s, promised)
                    and not job.held_by(s)
                    and all(s.account(g).balanced for g in upstream)
                    and not self._waits(job, s, segment)
                ):
                    self._end(job, s, segment, Reason.COMPLETE)
        if job.spec.progress and job.fronts:
            self._advance(job, promised)

    def _waits(self, job: Job, s: Substream, segment: str) -> bool:
        """Ordering: whether a substream of a smaller end time has not ended on the segment yet."""
        if job.spec.ordering == Ordering.NONE or s.end_time is None:
            return False
        return any(
            other.end_time is not None and other.end_time < s.end_time and not other.ended_on(segment)
            for other in job.open_substreams()
            if job.spec.ordering == Ordering.GLOBAL or other.scope == s.scope
        )

    def _end(self, job: Job, s: Substream, segment: str, reason: Reason) -> None:
        account = s.account(segment)
        in_flight = 0 if reason == Reason.COMPLETE else account.in_flight
        s.ended[segment] = Ended(segment, s.scope, s.name, s.end_time, account.sent, reason, in_flight)
        self._emit(job, s.ended[segment])
        if all(s.ended_on(g) for g in job.feeds):
            s.over_since = s.changed = self._now
            s.stalled = False
            for producer in job.producers.values():
                producer.holds.pop(s.id, None)

    def _end_everywhere(self, job: Job, s: Substream, reason: Reason) -> None:
        for segment in job.segments_in_order():
            if not s.ended_on(segment):
                self._end(job, s, segment, reason)

    def _advance(self, job: Job, promised: PromiseSet) -> None:
        # reading: of every unfinished front, idle ones too
        frontiers = [promised.frontier(front, None) for front in job.fronts if front not in promised.finished]
        times = [time for time in frontiers if time is not None]
        if len(times) < len(frontiers):
            return
        for segment in job.segments_in_order():
            waiting = [s.end_time - 1 for s in job.in_order() if s.end_time is not None and not s.ended_on(segment)]
            time = min([*times, *waiting], default=INT64_MAX)
            if segment not in job.advanced or time > job.advanced[segment]:
                job.advanced[segment] = time
                self._emit(job, Advanced(segment, time))

    def _abandon(self, c: Abandon) -> None:
        job = self._job(c.job)
        s = job.find(c.scope, c.name)
        if s is None or not s.known:
            raise Refused.unknown("UNKNOWN_SUBSTREAM", c.name)
        self._end_everywhere(job, s, Reason.ABANDONED)
        self._evaluate(job)

    def _finish_front(self, c: FinishFront) -> None:
        job = self._job(c.job)
        if c.front not in job.fronts:
            raise Refused.unknown("UNKNOWN_FRONT", c.front)
        if job.fronts[c.front].owner in job.staging:
            raise Refused.precondition("EPOCH_STAGED", c.front)
        self._wake(job, [job.fronts[c.front]])
        job.make_firm([("finish", c.front)])
        self._evaluate(job)

    # ------------------------------------------------------------ Drain

    def _drain(self, c: Drain) -> DrainStatus:
        deadline = None if c.timeout is None else self._now + c.timeout
        job = self._jobs.get(c.job)
        if job is not None and c.deployment in job.left:
            raise Refused.precondition("DEPLOYMENT_MISMATCH", c.deployment)
        if job is None or c.deployment != job.spec.deployment:
            pending = JobDrain(c.drain_id, c.deployment, DrainState.PENDING, deadline)
            self._pending.setdefault((c.job, c.deployment), pending)
        elif not job.draining and not job.drained:
            self._start_drain(job, c.drain_id, deadline)
            self._finish_drain(job)
        return self.drain_status(c.job, c.deployment)

    def _start_drain(self, job: Job, drain_id: str, deadline: int | None) -> None:
        finished = set(job.promised().finished)
        job.drain = JobDrain(drain_id, job.spec.deployment, DrainState.DRAINING, deadline, finished)
        self._emit(job, DrainRequested(drain_id))

    def _finish_drain(self, job: Job) -> None:
        """`drained` is the last event of its command."""
        if not job.draining:
            return
        assert job.drain is not None
        job.drain.finished_before &= job.promised().finished
        status = self.drain_status(job.spec.job)
        fronts_done = not status.unfinished_fronts if job.fronts else not status.open_producers
        if fronts_done and not status.open_substreams and not status.uncommitted_producers:
            job.drain.state = DrainState.DRAINED
            self._emit(job, Drained(job.drain.id))

    def _finished_in_drain(self, job: Job, drain: JobDrain) -> set[str]:
        return {front for front in job.promised().finished if front not in drain.finished_before}

    def _cancel(self, job: Job, drain: JobDrain) -> None:
        drain.state = DrainState.CANCELLED
        self._emit(job, DrainCancelled(drain.id))

    def _cancel_drain(self, c: CancelDrain) -> DrainStatus:
        job = self._jobs.get(c.job)
        if pending := self._pending.get((c.job, c.deployment)):
            if c.drain_id not in ("", pending.id):
                raise Refused.precondition("DRAIN_MISMATCH", c.drain_id)
            del self._pending[c.job, c.deployment]
            return DrainStatus(DrainState.CANCELLED, pending.id, c.deployment)
        if job is None:
            raise Refused.unknown("UNKNOWN_JOB", c.job)
        if c.deployment not in ("", job.spec.deployment):
            raise Refused.precondition("DEPLOYMENT_MISMATCH", c.deployment)
        if job.drain is not None and c.drain_id not in ("", job.drain.id):
            raise Refused.precondition("DRAIN_MISMATCH", c.drain_id)
        if job.drain is not None and job.drain.under_way:
            # reading: of STAGED producers; what is IMMEDIATE has finished, then or before
            staged = [
                promise
                for producer in job.producers.values()
                if producer.mode == Mode.STAGED
                for epoch in producer.staged.values()
                for promise in epoch.promises
            ]
            if self._finished_in_drain(job, job.drain) or any(promise[0] == "finish" for promise in staged):
                raise Refused.precondition("DRAIN_IN_PROGRESS", job.drain.id)
            self._cancel(job, job.drain)
        return self.drain_status(c.job)

    # ------------------------------------------------------------ time

    def _hear(self, job: Job, producer: Producer) -> None:
        """A producer has reported or promised: its idle fronts turn back, before what woke them."""
        producer.last_heard = self._now
        self._wake(job, [front for front in job.fronts.values() if front.owner == producer.name])

    def _wake(self, job: Job, fronts: Sequence[Front]) -> None:
        for front in fronts:
            front.since = self._now
            if front.idle:
                front.idle = False
                self._emit(job, FrontIdle(front.name, False))
        self._note_closing(job)

    def _tick(self, _: Tick) -> None:
        for job in self._jobs.values():
            self._turn_idle(job)
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
                self._emit(job, FrontIdle(front.name, True))
        if turned:
            self._evaluate(job)

    def _stall_and_expire(self, job: Job) -> None:
        promised = job.promised()
        owing = [s for s in job.open_substreams() if job.closed(s, promised) and (job.unbalanced(s) or job.held_by(s))]
        for s in owing:
            if not s.stalled and self._due(s.changed, job.spec.stall_after):
                s.stalled = True
                self._emit(job, self._stall(job, s))
        expired = [s for s in owing if self._due(s.changed, job.spec.expire_after)]
        for s in expired:
            self._end_everywhere(job, s, Reason.EXPIRED)
        if expired:
            self._evaluate(job)

    def _stall(self, job: Job, s: Substream) -> Stalled:
        faulty = job.unbalanced(s)
        missing = sum(s.account(g).in_flight for g in faulty)
        surplus = sum(s.account(g).sent - s.account(g).received for g in faulty)
        # reading: the proto lets it be negative; where anything is missing, the contract's sum is said
        return Stalled(s.scope, s.name, tuple(faulty), missing or surplus)

    def _drop_old(self, job: Job) -> None:
        retention = self._retention if job.spec.retention is None else job.spec.retention
        job.events = [event for event in job.events if not self._due(event.at, retention)]
        staged: set[Sid] = set()
        for producer in job.producers.values():
            for epoch in producer.staged.values():
                waiting = [entry for report in epoch.reports for entry in report.entries]
                staged |= {entry[0] for entry in (waiting if producer.mode == Mode.STAGED else epoch.folded)}
                staged |= set(_closed(epoch.promises))
        for s in list(job.substreams.values()):
            # reading: what is named and never comes to be known is forgotten likewise; what a staged epoch speaks of
            # stays, and what has ended above the floor as long as an unfinished front may come to it.
            over = s.over_since if s.known else s.created
            floor_to_come = bool(job.fronts) and not job.firm.finished.issuperset(job.fronts)
            above_floor = s.known and s.end_time is not None and not job.below_floor(s) and floor_to_come
            if self._due(over, retention) and not above_floor and s.id not in staged:
                del job.substreams[s.id]

    def _recovered(self, c: Recovered) -> None:
        for job in self._jobs.values():
            for front in job.fronts.values():
                front.since = self._now
            if c.lost_tail:
                job.log_id = self._new_log()
        if c.lost_tail:
            self._prefix = c.lost_tail

    # ------------------------------------------------------------ what can be asked

    def jobs(self) -> list[str]:
        return list(self._jobs)

    def drain_status(self, name: str, deployment: str = "") -> DrainStatus:
        if pending := self._pending.get((name, deployment)):
            return DrainStatus(pending.state, pending.id, deployment)
        job = self._job(name)
        if deployment not in ("", job.spec.deployment):
            raise Refused.precondition("DEPLOYMENT_MISMATCH", deployment)
        finished = job.promised().finished
        return DrainStatus(
            job.drain.state if job.drain else DrainState.NOT_DRAINING,
            job.drain.id if job.drain else "",
            job.spec.deployment,
            tuple(front for front in job.fronts if front not in finished),
            len(job.open_substreams()),
            self._in_flight(job),
            tuple(job.staging),
            tuple(producer.name for producer in job.producers.values() if not producer.closed),
        )

    def _in_flight(self, job: Job) -> int:
        return sum(s.account(g).in_flight for s in job.open_substreams() for g in job.feeds if not s.ended_on(g))

    def job_status(self, name: str) -> JobStatus:
        job = self._job(name)
        promised = job.promised()
        known = job.in_order()
        return JobStatus(
            job.spec,
            job.events[0].seq if job.events else job.last_seq + 1,
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
                    f.idle,
                    {
                        "*" if scope is None else scope: t
                        for (front, scope), t in promised.frontiers.items()
                        if front == f.name
                    },
                    f.owner,
                    f.last_promise,
                )
                for f in job.fronts.values()
            ),
            self.drain_status(name),
            job.log_id,
            job.incarnation,
        )

    def events(
        self, name: str, after_seq: int, up_to_seq: int = 0, limit: int = 1000, log_id: str = ""
    ) -> tuple[list[Event], int]:
        job = self._job(name)
        if log_id not in ("", job.log_id):
            raise Refused.precondition("LOG_CHANGED", log_id)
        first = job.events[0].seq if job.events else job.last_seq + 1
        if 0 < after_seq < first - 1:
            raise Refused("OUT_OF_RANGE", "EVENTS_EXPIRED", str(first))
        up_to = up_to_seq or job.last_seq
        wanted = [event for event in job.events if after_seq < event.seq <= up_to][:limit]
        return wanted, wanted[-1].seq if wanted else max(after_seq, first - 1)

    def substreams(
        self,
        name: str,
        scopes: Sequence[str] = (),
        include_ended: bool = False,
        only_stalled: bool = False,
    ) -> list[SubstreamStatus]:
        """The known substreams, by creation (the core pages them)."""
        job = self._job(name)
        promised = job.promised()
        return [
            SubstreamStatus(
                s.scope,
                s.name,
                s.end_time,
                not s.open or job.closed(s, promised),
                () if not s.open or job.closed(s, promised) else tuple(job.open_fronts(s, promised)),
                tuple(self._segment_status(job, s)),
                s.late_reports,
                s.created,
                s.changed,
                tuple(job.held_by(s)),
            )
            for s in sorted(job.in_order(), key=lambda s: s.id)
            if (not scopes or s.scope in scopes) and (s.open or include_ended) and (s.stalled or not only_stalled)
        ]

    def _segment_status(self, job: Job, s: Substream) -> Iterator[SegmentStatus]:
        for g in job.segments_in_order():
            a = s.account(g)
            yield SegmentStatus(g, s.ended_on(g), a.xor, a.sent, a.received, a.last_sender, a.last_receiver)


def _graph(spec: Spec) -> dict[str, frozenset[str]]:
    return {name: frozenset(feeds) for name, feeds in spec.segments}


def _same_but_durations(one: Spec, other: Spec) -> bool:
    return (
        _graph(one) == _graph(other)
        and set(one.fronts) == set(other.fronts)
        and one.ordering == other.ordering
        and one.progress == other.progress
    )


def _resolved(promise: Promise, sids: Sequence[Sid]) -> Promised:
    match promise:
        case Frontier(front, scope, time):
            return ("frontier", front, scope, time)
        case Close(front, index):
            return ("close", front, sids[index])
        case Finish(front):
            return ("finish", front)


def _closed(promises: Iterable[Promised]) -> list[Sid]:
    return [promise[2] for promise in promises if promise[0] == "close"]


def _is_name(name: str) -> bool:
    return 1 <= len(name.encode()) <= 512


def _is_scope(scope: str) -> bool:
    return len(scope.encode()) <= 512 and scope != "*"
