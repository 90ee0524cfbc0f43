"""A whole simulated dataflow: what a seed makes of it, how it goes on, and how it comes to rest.

Nothing in it fails unless the tracker does, or somebody is told to break a rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from operator import xor
from random import Random

from tracker.contract.commands import DefineJob, Drain
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.spec import Spec
from tracker.contract.values import DrainMode, Mode, Ordering

from .actors import BUSY, IDLE, Actor, Expected, Flush, Life, Query, Source, Superseded, Surroundings
from .world import (
    ALL_RULES,
    COMMAND,
    GRAPH,
    JOB,
    Channel,
    Closing,
    Element,
    FoundOut,
    Graph,
    Kind,
    Lost,
    Network,
    Oracle,
    Rules,
    Substream,
)

SCOPES = ["t0", "t1"]
WINDOW = 10
KINDS = [Kind(Mode.STAGED), Kind(Mode.STAGED), Kind(Mode.STAGED, seals=True), Kind(Mode.IMMEDIATE)]


def _closing(r: Random) -> Closing:
    """Draw the rules of a job that end what no source has closed."""
    deadline = r.choice([None, 30 * COMMAND, 100 * COMMAND, 300 * COMMAND])
    if r.random() < 0.3:
        return Closing(r.choice([5, 20, 50]) * COMMAND, by_event_time=True)
    after = r.choice([None, 2 * COMMAND, 8 * COMMAND])
    ppm = 0 if after is None else r.choice([300_000, 700_000])
    idle = r.choice([None, 5 * COMMAND, 15 * COMMAND])
    return Closing(deadline, False, ppm, after, idle, r.choice([None, 5 * COMMAND, 15 * COMMAND]))


class Dataflow:
    """Sources into a query that cleans and retries, one that keeps windows, and two readers of its results.

    Args:
        seed: decides everything.
        rules: what those who report hold to.
        kinds: among which each producer's way to report is chosen.
        told: the graph that the tracker is told of; the elements travel on the real one.
        closing: every second seed has rules that end what no source has closed.
    """

    def __init__(
        self,
        seed: int,
        rules: Rules = ALL_RULES,
        kinds: Iterable[Kind] = KINDS,
        told: Graph = GRAPH,
        closing: bool = True,
    ) -> None:
        self.told = told
        self.random = r = Random(seed)
        self.rules = rules
        choices = list(kinds)
        chosen = [r.choice(choices) for _ in range(5)]
        self.oracle = Oracle(at_least_once=any(kind.mode == Mode.IMMEDIATE for kind in chosen))
        self.failures = r.choice([0.0, 0.1, 0.3])
        self.network = Network(r, self.failures, self.oracle)
        forgetting = Random(f"forgetting {seed}")
        self.retention = forgetting.choice([None, 3 * COMMAND, 20 * COMMAND])
        if closing and Random(f"closing {seed}").random() < 0.5:
            self.oracle.closing = _closing(Random(f"closing how {seed}"))
            self.retention = 10**15  # what is forgotten could come again
        if self.retention is not None:
            self.network.forgetting = forgetting
        doubles = r.choice([0.0, 0.2])
        self.channels = {segment: Channel(r, doubles) for segment in GRAPH if segment != "st"}
        self.around = Surroundings(r, self.network, self.oracle, self.channels, rules)
        self.source_kind = Kind(chosen[0].mode)
        self.windows = r.randint(2, 6)
        self.actors: list[Actor] = [
            Query("clean", chosen[1], self.around, inputs=("a", "r")),
            Query("windows", chosen[2], self.around, inputs=("b",)),
            Query("reader", chosen[3], self.around, inputs=("c",)),
            Query("other", chosen[4], self.around, inputs=("d",)),
        ]
        self.sources: list[Source] = []
        self.fed: dict[str, str] = {}  # by front, the segment into which its source sends
        # Fronts that name what they feed would reach less of another graph, which is refused when it is defined.
        self.leads = r.random() < 0.5 and told is GRAPH
        windows = [Substream(scope, f"w{w}", WINDOW * (w + 1)) for scope in SCOPES for w in range(self.windows + 3)]
        sessions = [Substream(scope, session, None) for scope in SCOPES for session in ("s0", "s1")]
        share = r.choice([0.0, 0.2, 0.6])
        self.counted = [s for s in windows + sessions if r.random() < share]  # of which all sources say how many
        self.deployment = 1
        self.ordering = r.choice(list(Ordering))
        self.progress = r.random() < 0.5
        self.lives: dict[str, Life] = {}
        self.drains = r.random() < 0.4
        self.handing = Random(f"handing over {seed}")  # decides when deployments hand over
        self.hand_overs = self.handing.choice([0, 0, 1, 2])
        for _ in range(r.randint(1, 3)):
            self._add_source(SCOPES, first_window=0, sessions=["s0", "s1"])
        self.fronts = [source.front for source in self.sources]

    def _add_source(self, scopes: list[str], first_window: int, sessions: list[str]) -> None:
        r = self.random
        name = f"source{len(self.sources)}"
        front = f"f{len(self.sources)}"
        elements = []
        fed = self._fed_by(front)
        counted = self.counted if fed == "a" else []
        for number in range(r.randint(3, 25)):
            window = r.randint(first_window, first_window + self.windows)
            scope = r.choice(scopes)
            substream = Substream(scope, f"w{window}", WINDOW * (window + 1))
            if sessions and r.random() < 0.15:
                substream = Substream(scope, r.choice(sessions), None)
            if not sessions and substream in self.counted:
                continue  # all sources may have said before this one came how many there are
            elements.append(Element(f"{name}:{number}", substream, fed))
        # Where a number closes a substream, its elements may come long after its end time.
        lag = {substream: r.choice([0, 0, 40]) for substream in counted}
        elements.sort(
            key=lambda e: (e.substream.end_time or r.randint(0, 80)) + r.randint(-15, 15) + lag.get(e.substream, 0)
        )
        self.oracle.begins(elements)
        expects = self._numbers(front, elements, newcomer=not sessions) if counted else []
        expected: set[Substream] = set()
        flushes = []
        closed: set[Substream] = set(counted)
        while elements:
            size = r.randint(1, 6)
            flush, elements = elements[:size], elements[size:]
            said = [expects.pop(0) for _ in range(len(expects) if not elements else r.randint(0, len(expects)))]
            said = list({each.substream: each for each in said}.values())
            expected |= {each.substream for each in said}
            open_ = {element.substream for element in elements} | set(counted)
            open_ -= expected
            times = [substream.end_time for substream in open_ if substream.end_time is not None]
            frontier = min(times) - 1 if times else WINDOW * (first_window + self.windows + 1)
            over = {Substream(scope, session, None) for scope in scopes for session in sessions}
            over -= {element.substream for element in elements} | closed
            closing = sorted((s for s in over if r.random() < 0.5), key=lambda s: (s.scope, s.name))
            closed |= set(closing)
            flushes.append(Flush(flush, frontier, closing, said))
        source = Source(name, self.source_kind, self.around, front=front, flushes=flushes)
        self.sources.append(source)
        self.actors.append(source)

    def _numbers(self, front: str, elements: list[Element], newcomer: bool) -> list[Expected]:
        """Return the numbers that a source expects, in their order: of some too much at first, and then the truth."""
        r = self.random
        labels = {s: [e.label for e in elements if e.substream == s] for s in self.counted}
        exact = r.random() < 0.5
        numbers = [
            Expected(front, s, len(each), xor=reduce(xor, each, 0) if exact else None) for s, each in labels.items()
        ]
        r.shuffle(numbers)
        if newcomer:
            return numbers
        wrong = [
            replace(each, elements=each.elements + r.randint(1, 3))
            if each.xor is None or r.random() < 0.5
            else replace(each, xor=each.xor ^ r.getrandbits(64))
            for each in numbers
        ]
        wrong = [each for each in wrong if r.random() < 0.3]
        revised = {each.substream for each in wrong}
        return (
            wrong
            + [each for each in numbers if each.substream not in revised]
            + [replace(each, revise=True) for each in numbers if each.substream in revised]
        )

    # -- the operator

    def _define(self, fronts: list[str]) -> bool:
        """Deploy. Return whether it came to that."""
        deployment = f"d{self.deployment}"
        fed = tuple((front, (self.fed_as_told(front),)) for front in fronts) if self.leads else ()
        spec = Spec(
            JOB,
            deployment,
            tuple(self.told.items()),
            tuple(fronts),
            self.ordering,
            self.progress,
            retention=self.retention,
            **self.oracle.closing.spec(),
            front_segments=fed,
            state_segments=("st",) if "st" in self.told else (),
        )
        while True:
            try:
                self.network.call(DefineJob(spec))
            except Lost:
                continue
            except Refused as refused:
                if refused.reason in (Refusal.DRAIN_IN_PROGRESS, Refusal.EPOCH_STAGED):
                    return False
                raise
            return True

    def _fed_by(self, front: str) -> str:
        if front not in self.fed:
            self.fed[front] = "b" if self.fed and self.leads and self.random.random() < 0.4 else "a"
        return self.fed[front]

    def fed_as_told(self, front: str) -> str:
        return self._fed_by(front)

    def _redeploy(self) -> None:
        """Deploy again, rolling; a front that has finished may go, another source may come."""
        r = self.random
        unfinished = [source.front for source in self.sources if not source.finished]
        gone = {source.front for source in self.sources if source.finished and r.random() < 0.3}
        fronts = [front for front in self.fronts if front not in gone]
        if not any(self._fed_by(front) == "a" for front in fronts):  # one has to reach every segment
            fronts.append(next(front for front in self.fronts if self._fed_by(front) == "a"))
        comes = bool(unfinished) and r.random() < 0.5
        newcomer = f"f{len(self.sources)}"
        if comes and self._fed_by(newcomer) == "a":
            # Where all fronts that reach a segment have finished, what is known there has ended.
            comes = any(self._fed_by(front) == "a" for front in unfinished)
        self.deployment += 1
        if comes:
            fronts = [*fronts, newcomer]
        if not self._define(fronts):
            self.deployment -= 1
            return
        self.oracle.goes_on()
        self.network.retired |= set(self.fronts) - set(fronts)
        self.fronts = fronts  # what is removed never comes back: it would be another, unfinished
        if comes:
            # It may send nothing at or below the floor; nobody has promised more than this.
            promised = [flush.frontier for source in self.sources for flush in source.flushes[: source.begun + 3]]
            self._add_source(SCOPES, first_window=max(promised, default=0) // WINDOW + 1, sessions=[])

    def _drain(self) -> None:
        while True:
            try:
                self.network.call(Drain(JOB, f"d{self.deployment}", "the drain"))
            except Lost:
                continue
            except Refused as refused:  # it hands over
                if refused.reason != Refusal.DRAIN_MISMATCH:
                    raise
            return

    def _hand_over(self) -> None:
        self.hand_overs -= 1
        while True:
            try:
                self.network.call(Drain(JOB, f"d{self.deployment}", f"{self.deployment}", mode=DrainMode.HAND_OVER))
            except Lost:
                continue
            except Refused as refused:  # it finishes
                if refused.reason != Refusal.DRAIN_MISMATCH:
                    raise
            return

    # -- how it goes on

    def run(self, steps: int = 400) -> None:
        """Go on for so many steps, then without further failures until everything is at rest, and check that it is.

        Raises:
            FoundOut: the tracker, or somebody who breaks a rule, is found out.
        """
        r = self.random
        self._define(self.fronts)
        drain_at = r.randrange(steps) if self.drains else -1
        for step in range(steps):
            chance = r.random()
            goes_on = not self.oracle.handing_over and not self.oracle.drained
            if self.hand_overs and goes_on and self.handing.random() < 0.01:
                self._hand_over()
            if self.oracle.handed_over and self.handing.random() < 0.1:
                self._redeploy()
            if step == drain_at:
                self._drain()
            elif chance < 0.01:
                self._redeploy()
            elif chance < 0.1:
                r.choice(list(self.channels.values())).deliver()
            elif chance < 0.14:
                self.network.late_arrival()
            else:
                actor = r.choice(self.actors)
                if r.random() < self.failures / 6:
                    self.lives.pop(actor.name, None)  # it dies where it stands
                self._step(actor)
        self._come_to_rest()
        self.oracle.check_nothing_missing()
        if on_its_way := self.network.follow_reports():
            raise FoundOut(f"all is quiet, but {on_its_way} are not through")
        if self.network.drain_is_asked_for and not self.oracle.drained:
            raise FoundOut("the drain has not been confirmed")

    def _step(self, actor: Actor) -> str:
        if actor.finished:
            return IDLE
        life = self.lives.get(actor.name)
        if life is None:
            life = self.lives[actor.name] = actor.life()
        try:
            return next(life)
        except (StopIteration, Superseded):
            del self.lives[actor.name]
            return BUSY

    def _come_to_rest(self) -> None:
        self.network.failures = 0.0
        while self.network.delayed:
            self.network.late_arrival()
        quiet = 0
        for _ in range(3000):
            before = len(self.network.events)
            for channel in self.channels.values():
                channel.deliver(everything=True)
            idle = [self._step(actor) == IDLE for actor in self.actors]
            at_rest = all(idle) and len(self.network.events) == before
            delivered = self.oracle.drained or not any(channel.inbox for channel in self.channels.values())
            if self.oracle.handed_over:
                self._redeploy()
                continue
            quiet = quiet + 1 if at_rest and delivered else 0
            if quiet == 20:
                return
        raise FoundOut("it does not come to rest")
