"""Moments and lengths of time on the wire.

The core's are nanoseconds, a caller's are `datetime` (in UTC) and `timedelta`, which are exact to the microsecond.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tracker.contract.refusal import Refusal, Refused

NS: Final = 1_000_000_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def write_time(ns: int) -> Timestamp:
    """Return a moment of the core."""
    return Timestamp(seconds=ns // NS, nanos=ns % NS)


def write_time_if_any(ns: int | None) -> Timestamp | None:
    """Return the same for one that need not be."""
    return None if ns is None else write_time(ns)


def read_time(message: Timestamp) -> datetime:
    """Return a moment for a caller."""
    return _EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def read_time_if_any(message: Message, field: str) -> datetime | None:
    """Return the moment in a field, if it is set."""
    return read_time(getattr(message, field)) if message.HasField(field) else None


def write_duration(ns: int | None) -> Duration | None:
    """Return a length of time of the core."""
    return None if ns is None else Duration(seconds=ns // NS, nanos=ns % NS)


def read_duration(message: Message, field: str) -> int | None:
    """Return the length of time in a field for the core, if it is set.

    Raises:
        Refused: ``MALFORMED``: it is negative, or no normal duration.
    """
    if not message.HasField(field):
        return None
    value: Duration = getattr(message, field)
    if value.seconds < 0 or not 0 <= value.nanos < NS:
        raise Refused(
            Refusal.MALFORMED, f"{field} is {value.seconds} s and {value.nanos} ns; a duration must not be negative"
        )
    return value.seconds * NS + value.nanos


def write_length(length: timedelta | None) -> Duration | None:
    """Return a length of time of a caller."""
    if length is None:
        return None
    message = Duration()
    message.FromTimedelta(length)
    return message


def read_length(message: Duration) -> timedelta:
    """Return a length of time for a caller."""
    return timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def read_length_if_any(message: Message, field: str) -> timedelta | None:
    """Return the length of time in a field for a caller, if it is set."""
    return read_length(getattr(message, field)) if message.HasField(field) else None
