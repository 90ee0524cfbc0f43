"""Events that a reader asks for: one filter for watches, pages, subscriptions and dropped events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from tracker.contract.events import Advanced, Body, Ended, Event, Excess, Late

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
