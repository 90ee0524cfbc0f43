"""Possible ends of substreams in a job's log: by the rules it has, and by what its reporters have sent by then.

Of each substream every reporter sends one element, in one epoch, and receives it (in the next one, if the job has
rules), with a child on the second segment. So an end that is complete has an element of each reporter; one by a rule
may have fewer, but none of a report that was answered before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from google.protobuf.duration_pb2 import Duration

from tracker.contract.events import DrainCancelled, Drained, DrainRequested, Ended, Event
from tracker.contract.values import Reason

from .judging import PRODUCERS, FoundOut, Log

_S = 10**9
_PPM = 500_000  # one of two elements is enough
EPOCH_US = 1_700_000_000 * 10**6  # the machines' clock as a run begins
WINDOW_US = 500_000


def end_time(window: int) -> int:
    """Return when a window ends, in microseconds since 1970."""
    return EPOCH_US + window * WINDOW_US


def scope(window: int) -> str:
    """Return the scope of a window: it falls silent once later ones are reported."""
    return f"s{window // 2}"


@dataclass(frozen=True)
class Rules:
    """The job's rules; durations in seconds, None: there is no such rule.

    Args:
        expects: whether reporters say how many elements they send, in place of a frontier.
    """

    deadline: float | None = None
    by_event_time: bool = False
    threshold_after: float | None = None
    idle_after: float | None = None
    front_idle_after: float | None = None
    expects: bool = False

    @classmethod
    def drawn(cls, random: Random) -> Rules:
        """Return none in half of all cases."""
        if random.random() < 0.5:
            return cls()
        kind = random.choice(("deadline", "event time", "threshold", "idle", "front", "all"))
        seconds = random.choice((0.5, 1.5, 4.0))
        if kind in ("deadline", "event time"):
            return cls(seconds, kind == "event time")
        threshold = seconds if kind in ("threshold", "all") else None
        idle = random.choice((0.5, 1.5, 4.0)) if kind in ("idle", "all") else None
        front = random.choice((0.5, 1.5, 4.0)) if kind in ("front", "all") else None
        return cls(6.0 if kind == "all" else None, False, threshold, idle, front, threshold is not None)

    @property
    def any(self) -> bool:
        """True if there is any rule."""
        return self != Rules()

    @property
    def lag(self) -> int:
        """Return after how many epochs an element is received: a hand-over waits for those that are not."""
        return int(self.any)

    def spec(self) -> dict[str, Any]:
        """Return the fields of a job's spec."""
        durations = {
            "deadline": self.deadline,
            "threshold_after": self.threshold_after,
            "scope_idle_after": self.idle_after,
            "front_idle_after": self.front_idle_after,
        }
        fields: dict[str, Any] = {
            name: Duration(nanos=int(seconds % 1 * _S), seconds=int(seconds))
            for name, seconds in durations.items()
            if seconds is not None
        }
        if self.threshold_after is not None:
            fields["threshold_ppm"] = _PPM
        return {**fields, "deadline_by_event_time": self.by_event_time}


@dataclass
class Sent:
    """Sent elements of reporters, and when they first tried to, in ns since 1970.

    Args:
        rules: of the job.
    """

    rules: Rules
    begun: dict[tuple[str, int], int] = field(default_factory=dict)  #: by reporter and epoch
    exact_from: int = 0  #: when reports were lost that nobody repeats: they were left out, or nobody knew

    def is_exact(self, window: int) -> bool:
        """Return whether all that was answered of a window is still there."""
        epochs = range(window - 1, window + 2)  # in which it is expected, sent and received
        return all(begun >= self.exact_from for (_, epoch), begun in self.begun.items() if epoch in epochs)

    def check(self, events: Sequence[Event], log: Log) -> None:
        """Hold events of one log against that.

        Raises:
            FoundOut: one of them is not so.
        """
        asked = 0  # when a hand-over was, from which on no rule closes anything
        for event in events:
            body = event.kind
            if isinstance(body, Drained):
                raise FoundOut(f"a hand-over is over, and no reporter has closed: {body}")
            if isinstance(body, DrainRequested | DrainCancelled):
                asked = event.at_ns if isinstance(body, DrainRequested) else 0
            if not isinstance(body, Ended):
                continue
            if log.ends.setdefault((body.segment, body.name), event.seq) != event.seq:
                raise FoundOut(f"{body} comes twice")
            if why := self._objects(event, body, log.answered, asked or event.at_ns):
                raise FoundOut(f"a false end: {body} at {event.at_ns}, but {why}")

    def _objects(self, event: Event, end: Ended, answered: Mapping[tuple[str, int], int], closed: int) -> str:
        """Return why an end may not be announced; empty: it may.

        Args:
            closed: when a rule has closed the substream, at the latest.
        """
        window, at = int(end.name[1:]), event.at_ns
        epoch = window if end.segment == "a" else window + self.rules.lag  # in which its elements are sent there
        most = sum(each == epoch and begun <= at for (_, each), begun in self.begun.items())
        fewest = sum(each == epoch and time < at for (_, each), time in answered.items())
        if not fewest <= end.elements <= most:
            return f"{fewest} to {most} elements were sent"
        if end.reason is Reason.COMPLETE:
            return "one is missing" if end.elements != len(PRODUCERS) and self.is_exact(window) else ""
        named = window - 1 if self.rules.expects else window
        since = min((begun for (_, each), begun in self.begun.items() if each >= named), default=at)
        waited = (closed - since) / _S
        if end.reason is Reason.DEADLINE:
            return self._objects_to_deadline(window, closed)
        if end.reason is Reason.IDLE:
            silent = waited >= (self.rules.idle_after or float("inf")) or self._is_front_silent(
                window, answered, closed
            )
            return "" if silent else "neither its scope nor a front was silent for long"
        if end.reason is not Reason.THRESHOLD:
            return "nobody abandons anything here"
        few = end.segment == "a" and end.elements * 1_000_000 < (end.expected or 0) * _PPM
        return "that is too few or too early" if few or waited < (self.rules.threshold_after or float("inf")) else ""

    def _is_front_silent(self, window: int, answered: Mapping[tuple[str, int], int], at: int) -> bool:
        """Return whether a front may have been silent, by then, that had not promised a window."""
        if self.rules.front_idle_after is None:
            return False
        silence = int(self.rules.front_idle_after * _S)
        for front in PRODUCERS:
            epochs = [each for name, each in answered if name == front and each < window and answered[name, each] < at]
            since = [EPOCH_US * 1000, *(self.begun[front, each] for each in sorted(epochs))]
            later = sorted(time for (name, _), time in answered.items() if name == front and time < at)
            if any(until - begun >= silence for begun, until in zip(since, [*later, at], strict=False)):
                return True
        return False

    def _objects_to_deadline(self, window: int, at: int) -> str:
        if self.rules.deadline is None:
            return "there is none"
        due = end_time(window) * 1000 + int(self.rules.deadline * _S)
        reached = max(end_time(epoch) * 1000 for (_, epoch), begun in self.begun.items() if begun <= at)
        early = reached <= due if self.rules.by_event_time else at < due
        return "that is too early" if early else ""
