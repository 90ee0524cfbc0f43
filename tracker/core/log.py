"""A job's event log: numbered without gaps, trimmed from the old end.

An event that retention drops leaves the log, unless a subscription still waits for it: then it is *retained*, alone if
its neighbours are gone, until the last subscription that waits for it has no use for it any more.

An event is kept as a plain tuple of strings and numbers, as a snapshot has it, and is made when somebody reads it. The
garbage collector does not look at such tuples, of which there may be millions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

from tracker.contract import events
from tracker.contract.events import Advanced, Body, Drained, DrainRequested, Ended, Event, Excess, Late, Stalled
from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import DrainMode, Reason

Place: TypeAlias = tuple[str | None, str | None]  #: a segment and a scope

_OF_A_SCOPE = frozenset({Ended, Late, Excess})  # their first two fields are the segment and the scope
_EVERYWHERE = (None, None)


def place(body: Body) -> Place:
    """Return the segment and the scope that an event is about.

    Returns:
        no segment: it concerns everybody and passes every filter; no scope: it concerns every scope of the segment.
    """
    if isinstance(body, Ended | Late | Excess):
        return body.segment, body.scope
    return (body.segment, None) if isinstance(body, Advanced) else _EVERYWHERE


def place_of(kind: type[Body], fields: tuple[str, str]) -> Place:
    """Do the same for a kind of event and at least its first two fields, if it has so many."""
    if kind in _OF_A_SCOPE:
        return fields[:2]
    return (fields[0], None) if kind is Advanced else _EVERYWHERE


class EventFilter:
    """The segments and scopes that a reader asks for; empty: all of them.

    >>> from tracker.contract.events import Event, Late
    >>> late = Event(1, 0, "d", Late("raw", "tenant", "w", "p", 1, 0))
    >>> EventFilter(segments=["clean"]).passes(late), EventFilter(scopes=["tenant"]).passes(late)
    (False, True)
    """

    __slots__ = ("all", "scopes", "segments")

    def __init__(self, segments: Iterable[str] = (), scopes: Iterable[str] = ()) -> None:
        self.segments = frozenset(segments)
        self.scopes = frozenset(scopes)
        self.all = not (self.segments or self.scopes)  #: whether it lets everything through

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EventFilter) and (self.segments, self.scopes) == (other.segments, other.scopes)

    def __hash__(self) -> int:
        return hash((self.segments, self.scopes))

    def passes(self, event: Event) -> bool:
        """Return whether the reader asks for this event."""
        return self.all or self.covers(*place(event.kind))

    def covers(self, segment: str | None, scope: str | None) -> bool:
        """Return whether the reader asks for events of this place."""
        if segment is None:
            return True
        if self.segments and segment not in self.segments:
            return False
        # How far a segment has come is news for every scope.
        return not self.scopes or scope is None or scope in self.scopes


EVERYTHING = EventFilter()


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
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}
_ENDED, _STALLED = _NUMBER[Ended], _NUMBER[Stalled]
_DRAINS = (_NUMBER[DrainRequested], _NUMBER[Drained])
_REASON = Ended.__match_args__.index("reason")  # which field it is

_Kept: TypeAlias = tuple[Any, ...]  # an event: when, in which deployment, the number of its kind, and its fields

_REASONS = Reason.by_number()
_COMPLETE = Reason.COMPLETE.number

MOST_PLACES: Final = 4096  #: of dropped events, of which the last is known exactly
MOST_SEGMENTS: Final = 4096

_GONE: _Kept = ()  # in the place of an event that is dropped
_PIECE = 4096  # events that are added at a time, with others' turns in between


class EndColumns(NamedTuple):
    """Many `Ended` with reason COMPLETE on one segment: a column for each of their other fields."""

    scopes: Sequence[str]
    names: Sequence[str]
    end_times: Sequence[int | None]
    elements: Sequence[int]
    by_drain: Sequence[bool]
    expected: Sequence[int | None]


class _Retained:
    """Events kept beyond retention, each with the number of subscriptions that wait for it."""

    __slots__ = ("_events", "_readers", "_seqs")

    def __init__(self) -> None:
        self._events: dict[int, _Kept] = {}
        self._readers: dict[int, int] = {}
        self._seqs: list[int] = []  # ascending; those of events that are gone are taken out now and then

    def __len__(self) -> int:
        return len(self._events)

    def unclaimed(self) -> list[int]:
        """Return the events that nobody waits for."""
        return [seq for seq, readers in self._readers.items() if not readers]

    def add(self, seq: int, kept: _Kept, readers: int) -> None:
        """Keep an event, later than all that are kept."""
        self._events[seq] = kept
        self._readers[seq] = readers
        self._seqs.append(seq)

    def release(self, seq: int) -> _Kept | None:
        """Release an event for one reader; return the event if that was the last one."""
        self._readers[seq] -= 1
        if self._readers[seq]:
            return None
        del self._readers[seq]
        gone = self._events.pop(seq)
        if len(self._seqs) > 2 * len(self._events) + 64:
            self._seqs = list(self._events)
        return gone

    def join(self, seq: int) -> None:
        """Add a reader that waits for an event."""
        self._readers[seq] += 1

    def at(self, seq: int) -> int:
        """Return when an event happened (ns)."""
        at: int = self._events[seq][0]
        return at

    def after(self, seq: int) -> Iterator[Event]:
        """Yield the events after a number, in order."""
        for at in range(bisect_right(self._seqs, seq), len(self._seqs)):
            kept = self._events.get(self._seqs[at])
            if kept is not None:
                yield _event(self._seqs[at], kept)


class Dropped:
    """The events that a log has dropped: for any filter, the last one that it would have let through.

    A reader is refused only if an event that it asked for was dropped. So the last dropped number is kept for each
    (segment, scope); that answers every filter exactly. The table is bounded: the place whose last drop is longest ago
    makes room and is from then on known by its segment alone, which can only make the answer more careful: a reader may
    be refused that missed nothing, and only one that is further back than the last drop of all places in the table.

    Attributes:
        last: of all of them the highest; 0: none was dropped.

    >>> from tracker.contract.events import Advanced
    >>> dropped = Dropped()
    >>> dropped.note(Event(7, 0, "d", Advanced("raw", 10)))
    >>> dropped.last_passing(EventFilter(["raw"])), dropped.last_passing(EventFilter(["clean"]))
    (7, 0)
    """

    __slots__ = ("_everywhere", "_places", "_segments", "last")

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self._everywhere = last  # the last that passes every filter
        self._places: dict[tuple[str, str | None], int] = {}  # the longest unchanged first
        self._segments: dict[str, int] = {}  # the last of all the places of a segment that made room

    def note(self, event: Event) -> None:
        """Record that an event was dropped."""
        self._note(*place(event.kind), event.seq)

    def note_all(self, last: Mapping[Place, int]) -> None:
        """Record that events were dropped; the last one of each place counts."""
        for (segment, scope), seq in sorted(last.items(), key=lambda each: each[1]):
            self._note(segment, scope, seq)

    def _note(self, segment: str | None, scope: str | None, seq: int) -> None:
        self.last = max(self.last, seq)
        if segment is None:
            self._everywhere = max(self._everywhere, seq)
            return
        at = (segment, scope)
        self._places[at] = max(self._places.pop(at, 0), seq)
        if len(self._places) > MOST_PLACES:
            longest = next(iter(self._places))
            self._forget_scope(longest[0], self._places.pop(longest))

    def _forget_scope(self, segment: str, seq: int) -> None:
        if segment in self._segments or len(self._segments) < MOST_SEGMENTS:
            self._segments[segment] = max(self._segments.get(segment, 0), seq)
        else:
            self._everywhere = max(self._everywhere, seq)

    def last_passing(self, wanted: EventFilter) -> int:
        """Return the last dropped event that a filter lets through; 0: none."""
        if wanted.all:
            return self.last
        found = self._everywhere
        for (segment, scope), seq in self._places.items():
            if seq > found and wanted.covers(segment, scope):
                found = seq
        for segment, seq in self._segments.items():
            if seq > found and wanted.covers(segment, None):
                found = seq
        return found


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
        self._events: list[_Kept] = []  # the first `_passed` of them are gone: nothing is moved for a few
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
        """Return how many events are kept."""
        return len(self._events) - self._passed + len(self.retained)

    def append(self, at: int, deployment: str, body: Body) -> None:
        """Add the next event."""
        self._events.append(_kept(at, deployment, body))

    def append_ends(self, at: int, deployment: str, segment: str, columns: EndColumns) -> None:
        """Add one `Ended` after the other, all COMPLETE on one segment."""
        same = (at, deployment, _ENDED, segment)
        for start in range(0, len(columns.names), _PIECE):
            scopes, names, end_times, elements, *more = (column[start : start + _PIECE] for column in columns)
            own = (scopes, names, end_times, elements, repeat(_COMPLETE), repeat(0), *more)
            self._events.extend(zip(*map(repeat, same), *own, strict=False))

    def start(self, after_seq: int, wanted: EventFilter, own: bool) -> int:
        """Return the event after which a reader begins who misses nothing that it asks for.

        Args:
            after_seq: the reader's position; 0: after the last that is not kept any more, unless it is its own.
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
                Refusal.EVENTS_EXPIRED,
                f"retention has dropped events after seq {after_seq} that this reader asked for, the last of them seq "
                f"{lost}. All events from seq {lost + 1} on are kept: continue after {lost} if the missing ones do "
                "not matter. A subscription keeps its events until it acknowledges them",
            )
        return lost

    def read(
        self, after_seq: int, up_to_seq: int, limit: int, wanted: EventFilter = EVERYTHING, own: bool = False
    ) -> tuple[list[Event], int]:
        """Return at most `limit` events after `after_seq`, up to `up_to_seq` (0: the last), and the seq last looked at.

        Kept events that a filter does not let through are among them; no event that it lets through is missing.

        Raises:
            Refused: events after that number that the reader wants are gone: see `start`.
        """
        return self.read_kept(self.start(after_seq, wanted, own), up_to_seq, limit)

    def read_kept(self, after: int, up_to_seq: int, limit: int) -> tuple[list[Event], int]:
        """Return the same for a position of which it is known that the reader misses nothing."""
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
            events_ = self._events[self._passed + start : self._passed + stop]
            found += [_event(seq, kept) for seq, kept in enumerate(events_, self._first + start)]
        return found, found[-1].seq if len(found) >= limit > 0 else max(after, up_to)

    def retire(self, until: int, readers: Callable[[Event], int] | None, most: int) -> None:
        """Drop the events up to `until` (ns) that nobody waits for.

        Args:
            readers: how many subscriptions wait for an event, asked once for each; None: there are no subscriptions.
            most: so many at most; the others come with the next call.
        """
        start = at = self._passed
        stop = min(len(self._events), start + most)
        gone: dict[Place, int] = {}
        while at < stop and self._events[at][0] <= until:
            kept, self._events[at] = self._events[at], _GONE
            seq = self._first + at - start
            waiting = 0 if readers is None else readers(_event(seq, kept))
            if waiting:
                self.retained.add(seq, kept, waiting)
            else:
                gone[_place(kept)] = seq
            at += 1
        self.dropped.note_all(gone)
        self._first += at - start
        self._passed = at
        if 2 * at > len(self._events):
            del self._events[:at]
            self._passed = 0

    def release(self, seq: int) -> None:
        """Release a retained event for one subscription."""
        kept = self.retained.release(seq)
        if kept is not None:
            self.dropped.note_all({_place(kept): seq})

    def at(self, seq: int) -> int | None:
        """Return when the first kept event from `seq` on happened (ns); None: there is none yet."""
        if seq < self._first:
            for event in self.retained.after(seq - 1):
                return event.at_ns
        place = self._passed + max(0, seq - self._first)
        return self._events[place][0] if place < len(self._events) else None

    def oldest_at(self) -> int | None:
        """Return when the oldest event within retention happened (ns)."""
        return self._events[self._passed][0] if self._passed < len(self._events) else None


def _kept(at: int, deployment: str, body: Body) -> _Kept:
    if isinstance(body, Ended):  # field by field: ends are the many
        own = (body.segment, body.scope, body.name, body.end_time, body.elements, body.reason.number)
        return (at, deployment, _ENDED, *own, body.in_flight, body.by_drain, body.expected)
    if isinstance(body, DrainRequested | Drained):
        return (at, deployment, _NUMBER[type(body)], body.drain_id, body.mode.number)
    return (at, deployment, _NUMBER[type(body)], *(getattr(body, name) for name in body.__match_args__))


def _event(seq: int, kept: _Kept) -> Event:
    at, deployment, kind, *fields = kept
    return Event(seq, at, deployment, _body(kind, fields))


def _body(kind: int, fields: list[Any]) -> Body:
    if kind == _ENDED:
        fields[_REASON] = _REASONS[fields[_REASON]]
    elif kind == _STALLED:
        fields[2] = tuple(fields[2])
    elif kind in _DRAINS and len(fields) > 1:  # earlier versions kept no mode
        fields[1] = DrainMode.of(fields[1])
    body: Body = _KINDS[kind](*fields)
    return body


def _place(kept: _Kept) -> Place:
    return place_of(_KINDS[kept[2]], kept[3:5])
