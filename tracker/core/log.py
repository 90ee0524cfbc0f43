"""A job's event log: numbered without gaps, trimmed from the old end.

What retention lets go leaves the log, unless a subscription still waits for it: then it is *retained*, alone if its
neighbours are gone, until the last subscription that waits for it has no use for it any more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from . import events
from .dropped import Dropped
from .events import Body, Ended, Event, Reason, Stalled
from .filters import EVERYTHING, EventFilter
from .refusal import Refused

_KINDS: tuple[type[Any], ...] = (
    events.Ended,
    events.Late,
    events.Stalled,
    events.FrontIdle,
    events.DrainRequested,
    events.Drained,
    events.DrainTimedOut,
    events.DrainCancelled,
    events.Advanced,
    events.Excess,
)
_GONE = Event(0, 0, "", events.Drained(""))  # in the place of an event that is dropped
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}


class _Retained:
    """Events that outlive retention, each with the number of subscriptions that wait for it."""

    __slots__ = ("_events", "_readers", "_seqs")

    def __init__(self) -> None:
        self._events: dict[int, Event] = {}
        self._readers: dict[int, int] = {}
        self._seqs: list[int] = []  # ascending; those of events that are gone are taken out now and then

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events.values())

    def __len__(self) -> int:
        return len(self._events)

    def unclaimed(self) -> list[int]:
        """The events that nobody waits for."""
        return [seq for seq, readers in self._readers.items() if not readers]

    def add(self, event: Event, readers: int) -> None:
        """Keep an event, later than all that are kept."""
        self._events[event.seq] = event
        self._readers[event.seq] = readers
        self._seqs.append(event.seq)

    def release(self, seq: int) -> Event | None:
        """One reader does not wait for an event any more; the event, if that was the last one."""
        self._readers[seq] -= 1
        if self._readers[seq]:
            return None
        del self._readers[seq]
        gone = self._events.pop(seq)
        if len(self._seqs) > 2 * len(self._events) + 64:
            self._seqs = list(self._events)
        return gone

    def join(self, seq: int) -> None:
        """One more reader waits for an event."""
        self._readers[seq] += 1

    def at(self, seq: int) -> int:
        """When an event happened (ns)."""
        return self._events[seq].at

    def after(self, seq: int) -> Iterator[Event]:
        """The events after a number, in order."""
        for at in range(bisect_right(self._seqs, seq), len(self._seqs)):
            event = self._events.get(self._seqs[at])
            if event is not None:
                yield event


class EventLog:
    """The events of one job.

    Args:
        log_id: names the log; sequence numbers and substream ids mean something only within it.

    Attributes:
        dropped: what is not kept any more.
        retained: what is kept only because subscriptions wait for it.
    """

    __slots__ = ("_events", "_first", "_passed", "dropped", "log_id", "retained")

    def __init__(self, log_id: str) -> None:
        self.log_id = log_id
        self._first = 1  # the oldest event within retention, or the next one to come
        self._events: list[Event] = []  # the first `_passed` of them are gone: nothing is moved for a few
        self._passed = 0
        self.dropped = Dropped()
        self.retained = _Retained()

    @property
    def first_seq(self) -> int:
        """Every event from this one on is kept."""
        return self.dropped.last + 1

    @property
    def last_seq(self) -> int:
        """The newest event's number; 0 before the first."""
        return self._first + len(self._events) - self._passed - 1

    @property
    def kept(self) -> int:
        """How many events are kept."""
        return len(self._events) - self._passed + len(self.retained)

    def append(self, at: int, deployment: str, body: Body) -> None:
        """Add the next event."""
        self._events.append(Event(self.last_seq + 1, at, deployment, body))

    def start(self, after_seq: int, wanted: EventFilter, own: bool) -> int:
        """After which event a reader begins who misses nothing that it asks for.

        Args:
            after_seq: the reader's position; 0: after the last that is not kept any more, unless it is its own.
            wanted: what the reader asks for.
            own: 0, too, is a position of the reader's own: it wants everything.

        Raises:
            Refused: ``EVENTS_EXPIRED`` if an event after the reader's own position was dropped.
        """
        if after_seq >= self.dropped.last:
            return after_seq
        lost = self.dropped.last_passing(wanted)
        if after_seq >= lost:
            return after_seq
        if own or after_seq:
            raise Refused(
                "OUT_OF_RANGE",
                "EVENTS_EXPIRED",
                f"events after seq {after_seq} that were asked for were dropped by retention, the last of them seq "
                f"{lost}; all from seq {lost + 1} on are kept: read on after {lost} if nothing of what is missing "
                "matters; a subscription keeps its events until it has acknowledged them",
            )
        return lost

    def read(
        self, after_seq: int, up_to_seq: int, limit: int, wanted: EventFilter = EVERYTHING, own: bool = False
    ) -> tuple[list[Event], int]:
        """At most `limit` events after `after_seq`, up to `up_to_seq` (0: the last), and the seq last looked at.

        What a filter does not let through is among them as far as it is kept; nothing that it lets through is missing.

        Raises:
            Refused: see `start`.
        """
        return self.read_kept(self.start(after_seq, wanted, own), up_to_seq, limit)

    def read_kept(self, after: int, up_to_seq: int, limit: int) -> tuple[list[Event], int]:
        """The same for a position of which it is known that the reader misses nothing."""
        up_to = min(up_to_seq or self.last_seq, self.last_seq)
        found: list[Event] = []
        if after + 1 < self._first:
            for event in self.retained.after(after):
                if event.seq > up_to or len(found) >= limit:
                    break
                found.append(event)
        start = max(after + 1 - self._first, 0)
        stop = min(up_to + 1 - self._first, start + limit - len(found))
        if stop > start:
            found += self._events[self._passed + start : self._passed + stop]
        return found, found[-1].seq if len(found) >= limit > 0 else max(after, up_to)

    def retire(self, until: int, readers: Callable[[Event], int] | None, most: int) -> None:
        """Let go of the events up to `until` (ns) that nobody waits for.

        Args:
            readers: how many subscriptions wait for an event, asked once for each; None: there are no subscriptions.
            most: so many at most; the others come with the next call.
        """
        start = at = self._passed
        stop = min(len(self._events), start + most)
        gone: list[Event] = []
        while at < stop and self._events[at].at <= until:
            event, self._events[at] = self._events[at], _GONE
            waiting = 0 if readers is None else readers(event)
            if waiting:
                self.retained.add(event, waiting)
            else:
                gone.append(event)
            at += 1
        self.dropped.note_all(gone)
        self._first += at - start
        self._passed = at
        if 2 * at > len(self._events):
            del self._events[:at]
            self._passed = 0

    def release(self, seq: int) -> None:
        """One subscription does not wait for a retained event any more."""
        event = self.retained.release(seq)
        if event is not None:
            self.dropped.note(event)

    def oldest_at(self) -> int | None:
        """When the oldest event within retention happened (ns)."""
        return self._events[self._passed].at if self._passed < len(self._events) else None

    def dump(self) -> dict[str, Any]:
        """The log as plain values."""
        return {
            "log_id": self.log_id,
            "first_seq": self._first,
            "events": [_plain(event) for event in self._events[self._passed :]],
            "retained": [[event.seq, *_plain(event)] for event in self.retained],
            "dropped": self.dropped.dump(),
        }

    @classmethod
    def load(cls, dump: dict[str, Any]) -> EventLog:
        """The log that gave `dump`. Who waits for what is retained, subscriptions say when they are loaded."""
        log = cls(dump["log_id"])
        log._first = dump["first_seq"]
        # Version 0.1 dumped neither of the two: whatever was before the first event had been dropped.
        log.dropped = Dropped.load(dump["dropped"]) if "dropped" in dump else Dropped(dump["first_seq"] - 1)
        for seq, at, deployment, kind, *fields in dump.get("retained", ()):
            log.retained.add(Event(seq, at, deployment, _body(kind, fields)), 0)
        for at, deployment, kind, *fields in dump["events"]:
            log.append(at, deployment, _body(kind, fields))
        return log


def _plain(event: Event) -> tuple[Any, ...]:
    return (event.at, event.deployment, _NUMBER[type(event.body)], *event.body)


def _body(kind: int, fields: list[Any]) -> Body:
    body: Body = _KINDS[kind](*fields)
    if isinstance(body, Ended):
        return body._replace(reason=Reason(body.reason))
    if isinstance(body, Stalled):
        return body._replace(segments=tuple(body.segments))
    return body
