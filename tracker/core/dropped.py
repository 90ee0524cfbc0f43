"""The events that a log has dropped: for any filter, the last one that it would have let through.

A reader is refused only if an event that it asked for was dropped. So the last dropped number is kept for each
(segment, scope); that answers every filter exactly. The table is bounded: the place whose last drop is longest ago
makes room and is from then on known by its segment alone, which can only make the answer more careful: a reader may be
refused that missed nothing, and only one that is further back than the last drop of all the places in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tracker.contract.events import Event

from .filters import EventFilter, Place, place

MOST_PLACES: Final = 4096
MOST_SEGMENTS: Final = 4096


class Dropped:
    """The numbers of dropped events.

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
