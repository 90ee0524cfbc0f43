"""A job's event log: numbered without gaps, trimmed from the old end."""

from __future__ import annotations

from typing import Any

from . import events
from .events import Body, Ended, Event, Reason, Stalled
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
)
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}


class EventLog:
    """The events of one job.

    Args:
        log_id: names the log; sequence numbers and substream ids mean something only within it.
    """

    __slots__ = ("_events", "first_seq", "log_id")

    def __init__(self, log_id: str) -> None:
        self.log_id = log_id
        self.first_seq = 1  #: the oldest event still kept, or the next one to come
        self._events: list[Event] = []

    @property
    def last_seq(self) -> int:
        """The newest event's number; 0 before the first."""
        return self.first_seq + len(self._events) - 1

    def append(self, at: int, deployment: str, body: Body) -> None:
        """Add the next event."""
        self._events.append(Event(self.first_seq + len(self._events), at, deployment, body))

    def read(self, after_seq: int, up_to_seq: int, limit: int) -> tuple[list[Event], int]:
        """At most `limit` events after `after_seq`, up to `up_to_seq` (0: the last), and the seq last looked at.

        `after_seq` 0 starts at the oldest kept.

        Raises:
            Refused: ``EVENTS_EXPIRED`` if some of those asked for were dropped.
        """
        first = self.first_seq
        if after_seq and after_seq + 1 < first:
            raise Refused(
                "OUT_OF_RANGE",
                "EVENTS_EXPIRED",
                f"events up to seq {first - 1} were dropped by retention; the first kept is seq {first}",
            )
        start = max(after_seq + 1, first)
        stop = min(up_to_seq or self.last_seq, self.last_seq, start + limit - 1)
        if stop < start:
            return [], max(after_seq, min(start - 1, self.last_seq))
        return self._events[start - first : stop - first + 1], stop

    def drop_until(self, at: int) -> None:
        """Forget the events up to `at` (ns)."""
        keep = 0
        while keep < len(self._events) and self._events[keep].at <= at:
            keep += 1
        if keep:
            del self._events[:keep]
            self.first_seq += keep

    def oldest_at(self) -> int | None:
        """When the oldest kept event happened (ns)."""
        return self._events[0].at if self._events else None

    def dump(self) -> dict[str, Any]:
        """The log as plain values."""
        return {
            "log_id": self.log_id,
            "first_seq": self.first_seq,
            "events": [(event.at, event.deployment, _NUMBER[type(event.body)], *event.body) for event in self._events],
        }

    @classmethod
    def load(cls, dump: dict[str, Any]) -> EventLog:
        """The log that gave `dump`."""
        log = cls(dump["log_id"])
        log.first_seq = dump["first_seq"]
        for at, deployment, kind, *fields in dump["events"]:
            body = _KINDS[kind](*fields)
            if isinstance(body, Ended):
                body = body._replace(reason=Reason(body.reason))
            elif isinstance(body, Stalled):
                body = body._replace(segments=tuple(body.segments))
            log.append(at, deployment, body)
        return log
