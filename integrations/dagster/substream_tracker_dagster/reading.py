"""The ends after a cursor. Nothing here needs Dagster.

A cursor names the job's log and the last event that was looked at, since numbers begin anew in another log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tracker.client import Ended, Event, Reason, TrackerClient, TrackerError
from tracker.client.waiting import AcceptedEnds

COMPLETE: Final = Reason.COMPLETE.name
_PAGE: Final = 100
_MOST_PAGES: Final = 1000  #: in one call: an evaluation of a sensor has a deadline, and would lose its cursor


class CursorError(Exception):
    """The events after a cursor are gone; the message names the remedy."""


@dataclass(frozen=True)
class Wanted:
    """The ends that are wanted.

    Raises:
        ValueError: a reason is none of the tracker's, or there are none.
    """

    job: str
    segments: Sequence[str] = ()  #: empty: all
    scopes: Sequence[str] = ()  #: empty: all
    reasons: Sequence[str] = (COMPLETE,)
    by_drain: bool = False  #: also of substreams that only a drain has closed

    def __post_init__(self) -> None:
        for name in ("segments", "scopes"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} is no list: give [{getattr(self, name)!r}]")
        AcceptedEnds(self.reasons, self.by_drain)

    def concerns(self, event: Event) -> bool:
        """Return whether an event is such an end; the tracker has filtered by segment and scope."""
        kind = event.kind
        return isinstance(kind, Ended) and AcceptedEnds(self.reasons, self.by_drain).accepts(kind)


@dataclass(frozen=True)
class Ends:
    """Ends in the order of the job's log, by keys that stay the same, and where to go on."""

    by_key: Mapping[str, Mapping[str, Any]]
    cursor: str


def ends_after(client: TrackerClient, wanted: Wanted, cursor: str | None, most: int) -> Ends:
    """Return the ends after a cursor.

    Args:
        client: calls the tracker.
        wanted: which ends.
        cursor: from the call before; empty or None: from the oldest event that is kept. If the job was deleted and made
            again since, the ends of its new log are returned, from the oldest.
        most: stop after so many ends, and at most a page more. It also stops after 100,000 events, of which none may be
            wanted: the next call goes on behind them.

    Raises:
        CursorError: the tracker has forgotten events after the cursor, or it is no cursor.
        TrackerError: the tracker refuses, as for an unknown job.
        TrackerUnavailable: the tracker cannot be reached.
    """
    log_id, seq = _read_cursor(cursor)
    found: dict[str, Mapping[str, Any]] = {}
    filters = {"segments": wanted.segments, "scopes": wanted.scopes}
    try:
        for _ in range(_MOST_PAGES):
            page = client.list_events(
                wanted.job, after_seq=seq, log_id=log_id, own_position=bool(log_id), limit=_PAGE, **filters
            )
            log_id = page.log_id
            for event in filter(wanted.concerns, page.events):
                found[f"{wanted.job}/{log_id}/{event.seq}"] = _fields(event)
            if page.last_seq <= seq:
                break
            seq = page.last_seq
            if len(found) >= most:
                break
    except TrackerError as error:
        if error.reason == "LOG_CHANGED":
            return ends_after(client, wanted, None, most)
        if error.reason == "EVENTS_EXPIRED":
            raise CursorError(
                f"job {wanted.job!r} no longer keeps the events after {cursor}: {error}. Look at what ended meanwhile, "
                "and reset the sensor's cursor to go on with the oldest event that is kept; a longer retention of the "
                "job prevents it"
            ) from error
        raise
    return Ends(found, f"{log_id}:{seq}")


def _read_cursor(cursor: str | None) -> tuple[str, int]:
    if not cursor:
        return "", 0
    log_id, _, seq = cursor.rpartition(":")
    if not log_id or not seq.isdecimal():
        raise CursorError(f"{cursor!r} is no cursor of this sensor, which is LOG:NUMBER; reset it")
    return log_id, int(seq)


def _fields(event: Event) -> dict[str, Any]:
    assert isinstance(event.kind, Ended)
    return {
        "deployment": event.deployment,
        "time": event.at.isoformat(),
        **asdict(event.kind),
        "reason": event.kind.reason.name,
        "account": event.kind.account,
        "complete": not event.kind.incompleteness,
    }
