"""Surroundings of the actors of a simulation: a tracker behind a bad network, channels, and an oracle.

The oracle is told where every element really is: what sources will still send, what is under way, what state is kept.
From that alone it judges each event of the tracker. It knows nothing of labels, accumulators or epochs.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from tests.core.invariants import broken
from tracker.contract.commands import Answer, Command, Commit, Recovered, Report, Tick
from tracker.contract.events import Advanced, Drained, DrainRequested, Ended, Event, Excess, Late
from tracker.contract.refusal import Refused
from tracker.contract.values import DrainMode, Mode, Reason
from tracker.core import Tracker

JOB = "job"
COMMAND = 1000  #: how long a command takes (ns), as long as a unit of end times
_RULES = (Reason.DEADLINE, Reason.THRESHOLD, Reason.IDLE)
WATCHED = (
    0.25  #: the share of commands after which invariants are checked: after all, a run would take three times as long
)
Graph: TypeAlias = Mapping[str, tuple[str, ...]]

GRAPH: Graph = {
    "a": ("b", "r"),  # what the sources send
    "r": ("b", "r"),  # elements that are tried again
    "b": ("st",),  # what goes into windows
    "st": ("c", "d"),  # windows that are open: state that later emits
    "c": (),  # a topic of results that two queries read: two segments
    "d": (),
}


@dataclass(frozen=True)
class Substream:
    scope: str
    name: str
    end_time: int | None


@dataclass(frozen=True)
class Element:
    """One element on one hop; `lineage` distinguishes it from all others, and is the same in a replay."""

    lineage: str
    substream: Substream
    segment: str

    def child(self, segment: str, number: int = 0, attempt: str = "") -> Element:
        return Element(f"{self.lineage}>{segment}{number}{attempt}", self.substream, segment)

    def chance(self, what: str) -> float:
        """Return a number from 0 to 1 that belongs to the element: its fate is the same in a replay."""
        return label_of(f"{self.lineage}?{what}") / 2**64

    @property
    def label(self) -> int:
        return label_of(self.lineage)


def label_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class FoundOut(AssertionError):  # noqa: N818 - read aloud, it is what happens
    """The tracker has said what is not so, or has not said what is; or who reports has broken a rule, and it shows."""


Place: TypeAlias = tuple[Substream, str]


@dataclass(frozen=True)
class Closing:
    """The job's rules that end what no source has closed; durations in ns.

    Attributes:
        start: the tracker's clock as the run began.
    """

    deadline: int | None = None
    by_event_time: bool = False
    threshold_ppm: int = 0
    threshold_after: int | None = None
    idle_after: int | None = None
    front_idle_after: int | None = None
    start: int = 10**9

    def spec(self) -> dict[str, Any]:
        """Return the fields of a job's spec."""
        return {
            "deadline": self.deadline,
            "deadline_by_event_time": self.by_event_time,
            "threshold_ppm": self.threshold_ppm,
            "threshold_after": self.threshold_after,
            "scope_idle_after": self.idle_after,
            "front_idle_after": self.front_idle_after,
        }

    def objects(self, end: Ended, first: Ended, at: int, reached: int) -> str:
        """Return why a rule may not end a substream at a time; "": it may.

        Args:
            end: the end.
            first: the one where elements are expected.
            at: the tracker's clock.
            reached: the greatest end time of which the tracker may know an element.
        """
        if end.reason is Reason.DEADLINE:
            return self._objects_to_deadline(end, at, reached)
        if end.reason is Reason.IDLE:
            waits = [wait for wait in (self.idle_after, self.front_idle_after) if wait is not None]
            return "" if waits and at >= self.start + min(waits) else "nothing was silent"
        if self.threshold_after is None or first.expected is None:
            return "there is no such rule"
        few = first.elements * 1_000_000 < first.expected * self.threshold_ppm
        return "there are too few" if few or at < self.start + self.threshold_after else ""

    def _objects_to_deadline(self, end: Ended, at: int, reached: int) -> str:
        if self.deadline is None:
            return "there is none"
        if self.by_event_time:
            early = end.end_time is None or reached * 1000 <= end.end_time * 1000 + self.deadline
        else:
            early = at < self.deadline + (self.start if end.end_time is None else end.end_time * 1000)
        return "that is too early" if early else ""


class Oracle:
    """The truth of where every element is.

    Args:
        at_least_once: some query is IMMEDIATE, so what was processed once may be processed again after its end.
    """

    def __init__(self, at_least_once: bool) -> None:
        self.at_least_once = at_least_once
        self.alive: dict[Place, set[str]] = defaultdict(set)
        self.begun: set[str] = set()
        self.gone: set[str] = set()
        self.sent: set[str] = set()  # by a source for good, or by a query
        self.travelled: Counter[Place] = Counter()
        self.ended: dict[Place, Ended] = {}
        self.named: set[Substream] = set()
        self.advanced: dict[str, int] = {}
        self.cut: set[Place] = set()  # of which a source has stopped before it had sent all
        self.draining = self.drained = False
        self.handing_over = self.handed_over = False
        self.closing = Closing()
        self.counted: set[str] = set()  # what the tracker certainly knows of, as its substream had not ended
        self.counted_on: Counter[Place] = Counter()
        self.ruled: set[tuple[str, str, str]] = set()  # scope, name and segment, where a rule has ended it
        self.asked_at = 0  # when a drain or a hand-over was asked for
        self.reached = -1  # the greatest end time of which the tracker may know an element
        self.seq = 0
        self.upstream = {segment: self._upstream(segment) for segment in GRAPH}

    def _upstream(self, segment: str) -> set[str]:
        found = {segment}
        while more := {name for name, feeds in GRAPH.items() if name not in found and found & set(feeds)}:
            found |= more
        return found

    # -- what really happens

    def begins(self, elements: Iterable[Element]) -> None:
        """Note elements that exist from now on, or will: a source is going to send them, a query has."""
        for element in elements:
            if element.lineage in self.begun:
                continue
            self.begun.add(element.lineage)
            for segment, upstream in self.upstream.items():
                ended = element.segment in upstream and (element.substream, segment) in self.ended
                if ended and not self.has_ended_by_rule(element.substream, element.segment):
                    raise FoundOut(f"{element} appears after its substream has ended on {segment!r}")
            if element.lineage not in self.gone:  # its consumer may be ahead of its producer
                self.alive[element.substream, element.segment].add(element.lineage)
            self.travelled[element.substream, element.segment] += 1

    def may_be_known(self, elements: Iterable[Element]) -> None:
        """Note that a report of these, which a source sends, may reach the tracker from now on."""
        for element in elements:
            self.sent.add(element.lineage)
            self.reached = max(self.reached, element.substream.end_time or -1)

    def is_known(self, elements: Iterable[Element]) -> None:
        """Note that the tracker has answered the report of these; it counts them, unless it closed the book before."""
        for element in elements:
            if (element.substream, element.segment) not in self.ended and element.lineage not in self.counted:
                self.counted.add(element.lineage)
                self.counted_on[element.substream, element.segment] += 1

    def has_ended_by_rule(self, substream: Substream, segment: str) -> bool:
        """Return whether the tracker has stopped counting a substream there or upstream, by a rule of the job."""
        return any((substream.scope, substream.name, each) in self.ruled for each in self.upstream[segment])

    def passes(self, element: Element, children: Iterable[Element]) -> None:
        """Note that, for good, an element has been taken off its segment, and has given rise to its children."""
        if element.lineage in self.gone:
            return
        children = list(children)
        if element.lineage in self.counted:
            self.is_known(children)
        self.begins(children)
        self.sent.update(child.lineage for child in children)
        self.alive[element.substream, element.segment].discard(element.lineage)
        self.gone.add(element.lineage)

    def never_sent(self, element: Element) -> None:
        """Note that a source has stopped before it sent an element."""
        self.alive[element.substream, element.segment].discard(element.lineage)
        self.travelled[element.substream, element.segment] -= 1
        self.cut.add((element.substream, element.segment))

    # -- what the tracker announces

    def hears(self, event: Event) -> None:
        self.seq += 1
        if event.seq != self.seq:
            raise FoundOut(f"event {event.seq} comes where {self.seq} was to come")
        body = event.kind
        if self.drained:
            raise FoundOut(f"{body} comes after the drain was confirmed")
        if isinstance(body, Ended):
            self._hears_end(body, event.at_ns)
        elif isinstance(body, Excess):
            raise FoundOut(f"{body}, but no source sends more than it says")
        elif isinstance(body, DrainRequested):
            self.asked_at = event.at_ns
            self.handing_over = body.mode is DrainMode.HAND_OVER
            self.draining = not self.handing_over
        elif isinstance(body, Late):
            late = Substream(body.scope, body.name, None)
            if not self.at_least_once and not self.has_ended_by_rule(late, body.segment):
                raise FoundOut(f"{body}: nobody reported late, and yet")
        elif isinstance(body, Advanced):
            for (substream, segment), left in self._known().items():
                over = substream.end_time is not None and substream.end_time <= body.time
                if left and over and segment in self.upstream[body.segment]:
                    raise FoundOut(f"{body}, but {len(left)} of {substream} are on {segment!r}")
            if self.advanced.get(body.segment, body.time - 1) >= body.time:
                raise FoundOut(f"{body} after {self.advanced[body.segment]}")
            self.advanced[body.segment] = body.time
        elif isinstance(body, Drained):
            if under_way := self.under_way() if self.handing_over else self.left_over():
                raise FoundOut(f"drained, but {under_way} are under way")
            self.drained, self.handed_over = not self.handing_over, self.handing_over

    def _known(self) -> dict[Place, set[str]]:
        """Return all that is alive, without what came, or will come, after a rule has ended its substream."""
        return {
            place: left & self.counted if self.has_ended_by_rule(*place) else left for place, left in self.alive.items()
        }

    def _hears_end(self, end: Ended, at: int) -> None:
        substream = Substream(end.scope, end.name, end.end_time)
        by_rule = end.reason in _RULES
        if not by_rule and end.reason is not Reason.COMPLETE:
            raise FoundOut(f"{end}: nobody abandons anything here")
        for segment in self.upstream[end.segment]:
            left = self.alive[substream, segment]
            if left := left & self.counted if by_rule else left:
                raise FoundOut(f"{end}, but {left} are on {segment!r}")
        if by_rule:
            self.ruled.add((end.scope, end.name, end.segment))
            at = self.asked_at if self.handing_over else at  # since then nothing more is closed so
            first = self.ended.get((substream, "a"), end)  # the segment of which numbers are given
            if why := self.closing.objects(end, first, at, self.reached):
                raise FoundOut(f"{end} at {at}, but {why}")
        if (substream, end.segment) in self.ended:
            raise FoundOut(f"{end} comes twice")
        travelled = self.travelled[substream, end.segment]
        fewest = self.counted_on[substream, end.segment] if by_rule else travelled
        if not fewest <= end.elements <= travelled and not self.at_least_once:
            raise FoundOut(f"{end}, but {travelled} elements have travelled there")
        cut = any((substream, segment) in self.cut for segment in self.upstream[end.segment])
        if end.by_drain < (cut and not by_rule) or end.by_drain > self.draining:
            raise FoundOut(f"{end}, but the drain {'has' if cut else 'has not'} cut it short")
        if end.expected is not None and end.elements != end.expected and not end.by_drain and not by_rule:
            raise FoundOut(f"{end}, but so many were not expected")
        self.ended[substream, end.segment] = end

    def is_through(self, elements: Sequence[Element], substream: Substream) -> None:
        """Note that, by the tracker's report, what a source sent of a substream is through everything."""
        roots = {element.lineage for element in elements if element.substream == substream}
        for segment in GRAPH:
            if left := [each for each in self.alive[substream, segment] if each.split(">")[0] in roots]:
                raise FoundOut(f"{substream} is through, but {left} are on {segment!r}")

    def goes_on(self) -> None:
        """Note that the next deployment has taken over."""
        self.handing_over = self.handed_over = False

    def under_way(self) -> list[str]:
        """List what a hand-over waits for: all that was sent and is not kept as state."""
        places = {place: left & self.sent for place, left in self._known().items() if place[1] != "st"}
        return [f"{len(left)} of {place}" for place, left in places.items() if left]

    def left_over(self) -> list[str]:
        return [f"{len(left)} of {place}" for place, left in self._known().items() if left]

    def check_nothing_missing(self) -> None:
        """Check that everything has been delivered, and all fronts have finished."""
        if left := self.left_over():
            raise FoundOut(f"all is quiet, but state waits for ends that do not come: {left}")
        substreams = self.named | {
            substream for substream, segment in self.travelled if self.travelled[substream, segment]
        }
        missing = [(s, g) for s in substreams for g in GRAPH if (s, g) not in self.ended]
        if missing:
            raise FoundOut(f"{len(missing)} ends are missing, as {missing[0]}")


@dataclass
class Channel:
    """A carrier of one segment's records to the one consumer; it may double or delay them."""

    random: Random
    doubles: float
    under_way: list[Element] = field(default_factory=list)
    inbox: list[Element] = field(default_factory=list)

    def publish(self, elements: Iterable[Element]) -> None:
        for element in elements:
            self.under_way += [element] * (2 if self.random.random() < self.doubles else 1)

    def deliver(self, everything: bool = False) -> None:
        self.random.shuffle(self.under_way)
        count = len(self.under_way) if everything else self.random.randint(0, len(self.under_way))
        for _ in range(count):
            self.inbox.append(self.under_way.pop())


class Lost(Exception):  # noqa: N818 - it is the call that is lost
    """A call came to nothing that its caller would know of: it may have been carried out."""


class Network:
    """The tracker, as far as calls reach it.

    Args:
        random: decides.
        failures: the share of calls that are lost, unanswered, or arrive (again) later.
        oracle: hears every event as it happens.

    Attributes:
        retired: fronts that have finished and that a later deployment has removed.
    """

    def __init__(self, random: Random, failures: float, oracle: Oracle) -> None:
        self.random = random
        self.failures = failures
        self.oracle = oracle
        self.tracker = Tracker("log")
        self.now = 10**9
        self.events: list[Event] = []
        self.delayed: list[Report | Commit] = []
        self.retired: set[str] = set()
        self.forgetting: Random | None = None  # decides after which commands retention is looked at
        self.watching: Random | None = None  # decides after which commands the core's invariants are checked
        self.reported: list[tuple[str, int, Sequence[Element]]] = []  # by sources: producer, epoch, elements

    def call(self, command: Command) -> Answer:
        """Carry a command to the tracker, or raise `Lost`."""
        chance = self.random.random() / self.failures if self.failures else 1.0
        if chance < 0.4:
            if chance < 0.2:
                self._delay(command)
            raise Lost
        if chance < 0.6:
            self._delay(command)
        elif chance < 0.7:
            self._restart()
        answer = self._apply(command)
        if 0.7 <= chance < 1.0:
            raise Lost
        return answer

    def _delay(self, command: Command) -> None:
        if isinstance(command, Report | Commit):
            self.delayed.append(command)

    def late_arrival(self) -> None:
        """Let a command arrive that the network had kept, maybe of a run that is no more."""
        if self.delayed:
            command = self.delayed.pop(self.random.randrange(len(self.delayed)))
            try:
                self._apply(command)
            except Refused as refused:
                if not self._is_refused_rightly(command, refused.reason):
                    raise

    def _is_refused_rightly(self, command: Report | Commit, reason: str) -> bool:
        """Return whether a command that comes too late, or a second time, may be refused so."""
        if reason == "UNKNOWN_FRONT":  # a copy: the front's source had the answers to all it said when it finished
            return any(promise.front in self.retired for promise in command.promises)
        return reason in ("FENCED", "SEALED", "EPOCH_STAGED", "DRAINED", "EXPECT_CONFLICT")

    def _apply(self, command: Command) -> Answer:
        self.now += COMMAND
        if self.forgetting is not None and self.forgetting.random() < 0.2:
            self.tracker.apply(Tick(), self.now)
        try:
            return self.tracker.apply(command, self.now)
        finally:
            if self.watching is not None and self.watching.random() < WATCHED and (wrong := broken(self.tracker)):
                raise FoundOut(f"after {command}: {wrong}")
            if JOB in self.tracker.jobs():
                news, _ = self.tracker.view(JOB).events(len(self.events), limit=10**6)
                self.events += news
                for event in news:
                    self.oracle.hears(event)
                if self.watching is not None and self.watching.random() < WATCHED:
                    self.follow_reports()

    def follow_reports(self) -> Sequence[Substream]:
        """Ask how far all that sources have reported has come; give back what is on its way."""
        view, pending = self.tracker.view(JOB), []
        for producer, epoch, elements in self.reported:
            substreams = sorted({element.substream for element in elements}, key=str)
            through = view.through(view.log_id, producer, epoch, [(s.scope, s.name) for s in substreams])
            pending += [substreams[place] for place in through.pending]
            for place in {*range(len(substreams))} - {*through.pending, *through.lost, *through.forgotten}:
                self.oracle.is_through(elements, substreams[place])
        return pending

    def _restart(self) -> None:
        self.tracker = Tracker.load(self.tracker.dump())
        self._apply(Recovered())
        self._apply(Tick())

    @property
    def drain_is_asked_for(self) -> bool:
        """True if the job is to finish."""
        return any(
            isinstance(event.kind, DrainRequested) and event.kind.mode is DrainMode.FINISH for event in self.events
        )

    @property
    def is_calm(self) -> bool:
        """True if nothing is in flight as far as the tracker has been told, in a hand-over."""
        return not self.tracker.view(JOB).drain_status().unbalanced_segments


@dataclass(frozen=True)
class Rules:
    """Rules of reporters, by the contract's numbers. Each can be broken, to see that it is noticed."""

    sends_before_receiving: bool = True  #: 2: children are reported no later than their parent is received
    promises_after_sending: bool = True  #: 3
    holds_state: bool = True  #: 4
    labels_from_lineage: bool = True  #: 5: a replay reports the same
    seals_before_the_engine_commits: bool = True  #: 5: where it does not
    units_for_attempts: bool = True  #: 5: likewise
    waits_for_answers: bool = True  #: 6: work has succeeded when the tracker has answered
    drops_second_copies: bool = True  #: 6
    expects_what_it_sends: bool = True  #: 7: a number that a front expects is what it sends
    expects_before_it_finishes: bool = True  #: 7: also where it sends what others expect


ALL_RULES = Rules()


@dataclass(frozen=True)
class Kind:
    """Way of reporting of a producer."""

    mode: Mode
    seals: bool = False
