"""Reporters in a simulation: sources with fronts, and queries that run epoch after epoch and crash in between.

An actor's life is a generator that yields where the world may go on or the actor may die; what survives it stands in
the attributes. They hold to the contract's rules for those who report, except where `Rules` says otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

import numpy as np

from tracker.contract.commands import (
    Answer,
    Close,
    CloseProducer,
    Command,
    Commit,
    Expect,
    Finish,
    Frontier,
    Identities,
    Opened,
    OpenProducer,
    Promise,
    Report,
    Reported,
)
from tracker.contract.events import Ended
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import NO_END_TIME, Mode, Outcome

from .world import JOB, Channel, Closing, Element, Kind, Lost, Network, Oracle, Rules, Substream, label_of

IDLE, BUSY = "idle", "busy"
Life: TypeAlias = Generator[str, None, None]
Said: TypeAlias = Generator[str, None, Answer]


class Superseded(Exception):  # noqa: N818 - it happens to good runs
    """A run has learned that it is fenced; it dies."""


@dataclass(frozen=True)
class Expected:
    """The number of elements that a source promises to send of a substream, and the XOR of their labels."""

    front: str
    substream: Substream
    elements: int
    revise: bool = False
    xor: int | None = None

    def promise(self, index: int) -> Expect:
        return Expect(self.front, "a", index, self.elements, self.revise, self.xor)


@dataclass
class Work:
    """A report's elements sent and received, its promises, and substreams closed for a front or expected of it.

    Args:
        front: that says which elements it has sent; empty: none does.
    """

    units: tuple[str, ...]
    sent: list[Element] = field(default_factory=list)
    received: list[Element] = field(default_factory=list)
    promises: list[Promise] = field(default_factory=list)
    closes: list[tuple[str, Substream]] = field(default_factory=list)
    expects: list[Expected] = field(default_factory=list)
    front: str = ""

    def __add__(self, other: Work) -> Work:
        return Work(
            self.units + other.units,
            self.sent + other.sent,
            self.received + other.received,
            self.promises + other.promises,
            self.closes + other.closes,
            self.expects + other.expects,
            self.front or other.front,
        )

    def report(self, producer: str, run: str, epoch: int, commit: bool = False) -> Report:
        sums: dict[tuple[Substream, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for column, elements in ((1, self.sent), (2, self.received)):
            for element in elements:
                each = sums[element.substream, element.segment]
                each[0] ^= element.label
                each[column] += 1
        named = [s for s, _ in sums] + [s for _, s in self.closes] + [each.substream for each in self.expects]
        substreams = list(dict.fromkeys(named))
        segments = list(dict.fromkeys(segment for _, segment in sums))
        scopes = list(dict.fromkeys(s.scope for s in substreams))
        return Report(
            JOB,
            producer,
            run,
            epoch,
            units=self.units,
            scopes=scopes,
            names=[s.name for s in substreams],
            scope_index=np.array([scopes.index(s.scope) for s in substreams], np.uint32),
            end_times=np.array([NO_END_TIME if s.end_time is None else s.end_time for s in substreams], np.int64),
            segments=segments,
            substream_index=np.array([substreams.index(s) for s, _ in sums], np.uint32),
            segment_index=np.array([segments.index(segment) for _, segment in sums], np.uint32),
            xor=np.array([xor for xor, _, _ in sums.values()], np.uint64),
            sent=np.array([sent for _, sent, _ in sums.values()], np.uint32),
            received=np.array([received for _, _, received in sums.values()], np.uint32),
            entry_count=len(sums),
            promises=[
                *(each.promise(substreams.index(each.substream)) for each in self.expects),
                *(
                    Identities(self.front, segment, substreams.index(s), xor)
                    for (s, segment), (xor, _, _) in sums.items()
                    if self.front and segment == "a"
                ),
                *self.promises,
                *(Close(front, substreams.index(s), only_without_fronts=True) for front, s in self.closes),
            ],
            commit=commit,
        )


@dataclass
class Surroundings:
    """The surroundings of all actors."""

    random: Random
    network: Network
    oracle: Oracle
    channels: dict[str, Channel]
    rules: Rules


@dataclass
class Actor:
    """A producer. Its attributes, also those of subclasses, survive a crash."""

    name: str
    kind: Kind
    world: Surroundings
    runs: int = 0
    finished: bool = False

    @property
    def run(self) -> str:
        return f"{self.name}.{self.runs}"

    def chance(self, share: float) -> bool:
        return self.world.random.random() < share

    def life(self) -> Life:
        """Play one run, from its opening to its end or to a crash."""
        raise NotImplementedError

    def say(self, command: Command, patient: bool = True) -> Said:
        """Send a command until there is an answer, and return that; impatiently: once, and never mind."""
        while True:
            try:
                return self.world.network.call(command)
            except Lost:
                if not patient:
                    return None
            except Refused as refused:
                # A drain is confirmed without what comes after a rule has ended its substream.
                too_late = refused.reason == Refusal.DRAINED and self.world.oracle.closing != Closing()
                if refused.reason == Refusal.FENCED or too_late:
                    raise Superseded from refused
                raise
            yield BUSY

    def open(self, resume_epoch: int | None) -> Generator[str, None, int | None]:
        self.runs += 1
        opened = yield from self.say(
            OpenProducer(JOB, self.name, self.run, self.kind.mode, resume_epoch, self.kind.seals)
        )
        assert isinstance(opened, Opened)
        return opened.committed_epoch

    def publish(self, elements: Sequence[Element]) -> None:
        for element in elements:
            self.world.channels[element.segment].publish([element])


# ---------------------------------------------------------------- sources


@dataclass
class Flush:
    """One epoch of a source: what it sends, and what it promises after it."""

    elements: list[Element]
    frontier: int
    closes: list[Substream] = field(default_factory=list)
    expects: list[Expected] = field(default_factory=list)


@dataclass
class Source(Actor):
    """A plain client that sends a fixed series of flushes and promises for a front; the tracker keeps its place."""

    front: str = ""
    flushes: list[Flush] = field(default_factory=list)
    begun: int = -1  # the last flush of which anything may have left
    unsaid: list[Expected] = field(default_factory=list)  # numbers that it had still to give when it was stopped

    def life(self) -> Life:
        committed = yield from self.open(None)
        epoch = 0 if committed is None else committed + 1
        if self.world.oracle.drained:
            self.finished = True
            return
        if 0 < epoch <= len(self.flushes):
            self.publish(self.flushes[epoch - 1].elements)  # an earlier run may have died before it did
        while epoch < len(self.flushes) and not (self.world.network.drain_is_asked_for and epoch > self.begun):
            if self.world.oracle.handing_over and epoch > self.begun:
                yield from self._stand_by()
                return
            yield from self._send(epoch)
            epoch += 1
            yield BUSY
        yield from self._finish(epoch)

    def _stand_by(self) -> Life:
        """Stop between two epochs, and go on when the next deployment has taken over."""
        if not self.world.oracle.handed_over:
            with suppress(Superseded):  # closed by the call before, whose answer was lost
                yield from self.say(CloseProducer(JOB, self.name, self.run))
        while self.world.oracle.handing_over:
            yield IDLE

    def _send(self, epoch: int) -> Life:
        flush = self.flushes[epoch]
        self.begun = max(epoch, self.begun)
        self.world.oracle.may_be_known(flush.elements)
        self.world.oracle.named |= set(flush.closes)
        work = Work((f"flush{epoch}",), sent=flush.elements, closes=[(self.front, s) for s in flush.closes])
        work.front = self.front
        promises = self._promises(epoch)
        expects = self._expects(flush)
        if expects and self.chance(0.3):
            yield from self._pass_on(expects)
            yield BUSY
        first = self.chance(0.5)
        if first:
            self.publish(flush.elements)
            yield BUSY
        match self.world.random.choice(["at once", "report, then commit", "the driver's word"]):
            case "at once":
                work.promises, work.expects = promises, expects
                yield from self._report(work, epoch, commit=True)
            case "report, then commit":
                work.promises, work.expects = promises, expects
                yield from self._report(work, epoch)
                yield BUSY
                yield from self.say(Commit(JOB, self.name, self.run, epoch))
            case _:
                work.expects = expects
                yield from self._report(work, epoch)
                yield BUSY
                yield from self.say(Commit(JOB, self.name, self.run, epoch, units=work.units, promises=promises))
        self.world.oracle.is_known(flush.elements)
        self.world.network.reported.append((self.name, epoch, flush.elements))
        if not first:
            yield BUSY
            self.publish(flush.elements)

    def _report(self, work: Work, epoch: int, commit: bool = False) -> Life:
        """Report, without another number for what a rule of the job has ended meanwhile: that comes too late."""
        while True:
            try:
                yield from self.say(work.report(self.name, self.run, epoch, commit))
                return
            except Refused as refused:
                too_late = [each for each in work.expects if self.world.oracle.has_ended_by_rule(each.substream, "a")]
                if refused.reason != Refusal.EXPECT_CONFLICT or not too_late:
                    raise
                work.expects = [each for each in work.expects if each not in too_late]

    def _pass_on(self, expects: Sequence[Expected]) -> Life:
        """Send numbers without a batch; none that revises, since a copy of it might overtake a later one."""
        expects = [each for each in expects if not each.revise]
        promises = [each.promise(index) for index, each in enumerate(expects)]
        names = tuple((s.scope, s.name, s.end_time) for s in (each.substream for each in expects))
        yield from self.say(Commit(JOB, self.name, self.run, promises=promises, substreams=names))

    def _expects(self, flush: Flush) -> list[Expected]:
        if self.world.rules.expects_what_it_sends:
            return flush.expects
        return [replace(each, elements=each.elements // 2) for each in flush.expects]

    def _promises(self, epoch: int) -> list[Promise]:
        if not self.world.rules.promises_after_sending:
            epoch = min(epoch + 2, len(self.flushes) - 1)
        time = self.flushes[epoch].frontier
        if self.chance(0.3):
            scopes = sorted({element.substream.scope for element in self.flushes[epoch].elements})
            return [Frontier(self.front, time, scope) for scope in scopes]
        return [Frontier(self.front, time)]

    def _finish(self, epoch: int) -> Life:
        for flush in self.flushes[epoch:]:
            for element in flush.elements:
                self.world.oracle.never_sent(element)
            self.unsaid += flush.expects if self.world.rules.expects_before_it_finishes else []
        del self.flushes[epoch:]
        if self.chance(0.5) and not self.unsaid:
            yield from self.say(Commit(JOB, self.name, self.run, promises=[Finish(self.front)]))
        else:
            expects = list({each.substream: each for each in self.unsaid}.values())
            last = Work(("last",), promises=[Finish(self.front)], expects=expects)
            yield from self._report(last, epoch, commit=True)
        with suppress(Superseded):  # closed by the call before, whose answer was lost
            yield from self.say(CloseProducer(JOB, self.name, self.run))
        self.finished = True


# ---------------------------------------------------------------- queries


@dataclass(frozen=True)
class Plan:
    """Work of an epoch of a query, written down before it starts, so that a replay works on the same."""

    inputs: list[Element]
    releases: list[Substream]


@dataclass(frozen=True)
class Attempt:
    """One attempt of one task, and what it made of each element that it took off."""

    work: Work
    passed: list[tuple[Element, list[Element]]]

    @property
    def children(self) -> list[Element]:
        return [child for _, children in self.passed for child in children]

    @property
    def outputs(self) -> list[Element]:
        return [child for child in self.children if child.segment != "st"]


@dataclass
class Query(Actor):
    """An engine's query: plans an epoch, runs its tasks, seals if it does, commits, and reports to the tracker.

    `plans`, `engine_committed`, `taken` and `holding` are the engine's checkpoint.
    """

    inputs: tuple[str, ...] = ()
    plans: dict[int, Plan] = field(default_factory=dict)
    engine_committed: int = -1
    taken: set[str] = field(default_factory=set)
    holding: dict[Substream, Element] = field(default_factory=dict)
    attempts: int = 0
    deferred: list[Element] = field(default_factory=list)  # what a broken rule 2 reports too late

    @property
    def stateful(self) -> bool:
        return "b" in self.inputs

    def life(self) -> Life:
        first_word = self.world.random.choice(["resume", "report", "commit"])
        told = -1
        if first_word == "resume":
            yield from self.open(self.engine_committed + 1)
            told = self.engine_committed
        else:
            yield from self.open(None)
        while True:
            if (
                self.world.oracle.drained or self.world.oracle.handed_over
            ):  # what an IMMEDIATE query would repeat is over
                yield IDLE
                continue
            epoch = self.engine_committed + 1
            self.plans.setdefault(epoch, self._plan())
            plan = self.plans[epoch]
            nothing_to_do = not plan.inputs and not plan.releases
            if nothing_to_do:
                del self.plans[epoch]
            if told < epoch - 1 and (first_word == "commit" or nothing_to_do):
                yield from self.say(Commit(JOB, self.name, self.run, epoch - 1))
                told = epoch - 1
            first_word = ""
            if nothing_to_do and self.world.oracle.handing_over and self.world.network.is_calm:
                yield from self._stand_by()
                return
            if nothing_to_do:
                yield IDLE
                continue
            yield BUSY
            kept = yield from self._run_tasks(epoch, plan)
            yield from self._commit(epoch, plan, kept)
            if self.chance(0.7):
                units = _units(kept) if self.chance(0.3) else None
                yield from self.say(Commit(JOB, self.name, self.run, epoch, units=units))
                told = epoch

    def _stand_by(self) -> Life:
        """Close the run, and open another one as soon as there is something to do, or the next deployment is there."""
        if not self.world.oracle.handed_over:
            with suppress(Superseded):  # closed by the call before, whose answer was lost
                yield from self.say(CloseProducer(JOB, self.name, self.run, self.engine_committed + 1))
        while self.world.oracle.handing_over and not any(self.world.channels[each].inbox for each in self.inputs):
            if not self.world.oracle.handed_over and self._plan().releases:
                return
            yield IDLE

    def _plan(self) -> Plan:
        if self.engine_committed + 1 in self.plans:
            return self.plans[self.engine_committed + 1]
        inputs: list[Element] = []
        for segment in self.inputs:
            inbox = self.world.channels[segment].inbox
            for element in [inbox.pop(0) for _ in range(self.world.random.randint(0, len(inbox)))]:
                if element.lineage not in self.taken or not self.world.rules.drops_second_copies:
                    self.taken.add(element.lineage)
                    inputs.append(element)
        bodies = [event.kind for event in self.world.network.events]
        ended = {Substream(e.scope, e.name, e.end_time) for e in bodies if isinstance(e, Ended) and e.segment == "b"}
        return Plan(inputs, [s for s in self.holding if s in ended and self.chance(0.8)])

    # -- tasks

    def _run_tasks(self, epoch: int, plan: Plan) -> Generator[str, None, list[Attempt]]:
        """Try each task until an attempt succeeds. Return those attempts."""
        kept: list[Attempt] = []
        unreported: list[Attempt] = []
        for number, (inputs, releases) in enumerate(self._tasks(plan)):
            while True:
                attempt = self._attempt(f"task{number}", inputs, releases)
                if not self.kind.seals:
                    self.publish(attempt.outputs)
                yield BUSY
                if self.chance(self.world.network.failures):
                    if self.chance(0.7):
                        yield from self._report(epoch, [attempt], patient=False)
                    continue
                kept.append(attempt)
                if self.kind.seals or self.chance(0.5):
                    yield from self._report(epoch, [attempt])
                else:
                    unreported.append(attempt)  # its node combines it with others
                break
        if unreported:
            again = [attempt for attempt in kept if attempt not in unreported and self.chance(0.3)]
            yield from self._report(epoch, [*again, *unreported])
        return kept

    def _tasks(self, plan: Plan) -> list[tuple[list[Element], list[Substream]]]:
        """Return the plan's parts, the same in a replay; a substream's state is in one."""
        count = 1 + (len(plan.inputs) + len(plan.releases)) % 3
        tasks: list[tuple[list[Element], list[Substream]]] = [([], []) for _ in range(count)]
        for element in plan.inputs:
            key = label_of(element.substream.name) if self.stateful else element.label
            tasks[key % count][0].append(element)
        for substream in plan.releases:
            tasks[label_of(substream.name) % count][1].append(substream)
        return tasks

    def _attempt(self, task: str, inputs: Sequence[Element], releases: Sequence[Substream]) -> Attempt:
        self.attempts += 1
        rules = self.world.rules
        nonce = f"#{self.attempts}" if self.kind.seals or not rules.labels_from_lineage else ""
        unit = f"{task}.{self.attempts}" if self.kind.seals and rules.units_for_attempts else task
        passed = self._keep_state(inputs, releases, nonce) if self.stateful else _pass_on(inputs, nonce)
        work = Work((unit,), [child for _, children in passed for child in children], [each for each, _ in passed])
        if not rules.holds_state:
            work.sent = [element for element in work.sent if element.segment != "st"]
            work.received = [element for element in work.received if element.segment != "st"]
        if not rules.sends_before_receiving:
            work.sent, self.deferred = self.deferred, work.sent
        return Attempt(work, passed)

    def _keep_state(
        self, inputs: Sequence[Element], releases: Sequence[Substream], nonce: str
    ) -> list[tuple[Element, list[Element]]]:
        """Let a window's first element take its hold, and a released window go to both readers of the topic."""
        passed: list[tuple[Element, list[Element]]] = []
        held = set(self.holding)
        for element in inputs:
            first = element.substream not in held
            held.add(element.substream)
            passed.append((element, [element.child("st", attempt=nonce)] if first else []))
        holds = [self.holding[substream] for substream in releases]
        passed += [(hold, [hold.child(topic, attempt=nonce) for topic in ("c", "d")]) for hold in holds]
        return passed

    def _report(self, epoch: int, attempts: Sequence[Attempt], patient: bool = True) -> Life:
        """Report attempts together, without those that the tracker turns out to have."""
        if self.kind.mode == Mode.IMMEDIATE:
            self._pass(attempts)  # it may take effect from now on
        left = list(attempts)
        while left:
            work = sum((attempt.work for attempt in left[1:]), left[0].work)
            patient = patient and self.world.rules.waits_for_answers
            answer: Any = yield from self.say(work.report(self.name, self.run, epoch), patient)
            if not isinstance(answer, Reported) or answer.outcome is not Outcome.PARTIAL_DUPLICATE:
                return
            left = [attempt for attempt in left if not set(attempt.work.units) & set(answer.duplicate_units)]

    # -- commits

    def _commit(self, epoch: int, plan: Plan, kept: Sequence[Attempt]) -> Life:
        """Play the seal, and the engine's own commit, with which a sealing query publishes."""
        if self.kind.seals and self.world.rules.seals_before_the_engine_commits:
            yield from self.say(Commit(JOB, self.name, self.run, epoch, units=_units(kept), seal=True))
            yield BUSY
        self.engine_committed = epoch
        self._pass(kept)
        if self.kind.seals:
            for attempt in kept:
                self.publish(attempt.outputs)
        for substream in plan.releases:
            del self.holding[substream]
        self.holding |= {c.substream: c for attempt in kept for c in attempt.children if c.segment == "st"}
        yield BUSY

    def _pass(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            for element, children in attempt.passed:
                self.world.oracle.passes(element, children)


def _units(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    return tuple(unit for attempt in attempts for unit in attempt.work.units)


def _pass_on(inputs: Sequence[Element], nonce: str) -> list[tuple[Element, list[Element]]]:
    """Apply a stateless query to elements: some are tried again, some filtered out, some become two."""
    passed: list[tuple[Element, list[Element]]] = []
    for element in inputs:
        fate = element.chance(nonce)
        if element.segment in ("c", "d"):
            children = []
        elif fate < 0.25 and element.lineage.count(">r") < 3:
            children = [element.child("r", attempt=nonce)]
        else:
            count = 0 if fate < 0.35 else 2 if fate > 0.8 else 1
            children = [element.child("b", number, nonce) for number in range(count)]
        passed.append((element, children))
    return passed
