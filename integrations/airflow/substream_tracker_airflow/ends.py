"""The end of a substream as JSON, and whether that is good enough. Nothing here needs Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from tracker.client import Ended, Event, Reason
from tracker.client.waiting import AcceptedEnds

COMPLETE: Final = Reason.COMPLETE.name
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def fields_of(ended: Ended) -> dict[str, Any]:
    """Return an end's fields under the names that `tracker events --json` has."""
    return asdict(ended) | {"reason": ended.reason.name}


def payload_of(job: str, log_id: str, event: Event) -> dict[str, Any]:
    """Return the fields of an end in an asset's event: its own, and an `id` that is the same if the end comes again."""
    assert isinstance(event.kind, Ended)
    return {
        "id": f"{job}/{log_id}/{event.seq}",
        "job": job,
        "deployment": event.deployment,
        "time": event.at.isoformat(),
        **fields_of(event.kind),
        "account": event.kind.account,
    }


def checked_reasons(reasons: Sequence[str]) -> tuple[str, ...]:
    """Return the reasons of ends that are good enough.

    Raises:
        ValueError: one of them is no reason, or there are none.

    >>> checked_reasons(["COMPLETE", "EXPIRED"])
    ('COMPLETE', 'EXPIRED')
    """
    return tuple(AcceptedEnds(reasons).reasons)


def complaint(end: Mapping[str, Any], reasons: Sequence[str] = (COMPLETE,), by_drain: bool = False) -> str:
    """Return why an end is not good enough, with what to do; empty if it is.

    Args:
        end: its fields.
        reasons: those of ends that are.
        by_drain: whether the end of a substream that only a drain has closed is.

    >>> end = fields_of(Ended("clean", "JFK", "monday", None, 7, Reason.EXPIRED, 3))
    >>> complaint(end, ["COMPLETE", "EXPIRED"])
    ''
    >>> complaint(end).partition(", ")[0]
    "'monday' of scope 'JFK' ended on 'clean' as EXPIRED with 3 elements in flight"
    """
    ended = Ended(**{**end, "reason": Reason[end["reason"]]})
    wrong = AcceptedEnds(reasons, by_drain).complaint(ended)
    if not wrong:
        return ""
    accepting = f"reasons={[*reasons, end['reason']]!r}" if end["reason"] not in reasons else "by_drain=True"
    return f"{wrong}; {accepting} accepts that"


def end_time_of(value: int | str | datetime) -> int:
    """Return an end time in the job's unit: a number as it is, a point in time as microseconds since 1970, UTC, as
    the Spark client counts. Without a time zone, a point is in UTC.

    Raises:
        ValueError: the value is neither.

    >>> end_time_of("2013-01-02T01:00:00+01:00"), end_time_of("2013-01-02"), end_time_of("24")
    (1357084800000000, 1357084800000000, 24)
    """
    if isinstance(value, bool) or not isinstance(value, int | str | datetime):
        raise ValueError(f"{value!r} is no time: give a number in the job's unit, a datetime, or a text in ISO 8601")
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.lstrip("-").isdecimal():
            return int(text)
        try:
            value = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" if text.endswith("Z") else text)
        except ValueError:
            raise ValueError(
                f"{text!r} is no time: give a number in the job's unit, or a time in ISO 8601, such as "
                "2013-01-02T00:00:00+00:00"
            ) from None
    if value.tzinfo is None:
        value = value.replace(tzinfo=timezone.utc)
    return (value - _EPOCH) // timedelta(microseconds=1)
