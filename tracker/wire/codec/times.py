"""Times and lengths of time on the wire.

The contract's are nanoseconds; what a caller asks for with a length of time is a `timedelta`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from tracker.contract.refusal import Refusal, Refused

NS: Final = 1_000_000_000


def write_time(ns: int) -> Timestamp:
    """Return a time."""
    return Timestamp(seconds=ns // NS, nanos=ns % NS)


def write_time_if_any(ns: int | None) -> Timestamp | None:
    """Return a time; None: there is none."""
    return None if ns is None else write_time(ns)


def read_time(message: Timestamp | Duration) -> int:
    """Return a time, or a length of time that a server gives, in nanoseconds."""
    return message.seconds * NS + message.nanos


def read_time_if_any(message: Message, field: str) -> int | None:
    """Return the time in a field, if it is set."""
    return read_time(getattr(message, field)) if message.HasField(field) else None


def write_duration(ns: int) -> Duration:
    """Return a length of time in nanoseconds."""
    return Duration(seconds=ns // NS, nanos=ns % NS)


def read_duration(message: Message, field: str) -> int | None:
    """Return the length of time in a field of a request, if it is set.

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
    return read_time(value)


def write_length(length: timedelta | None) -> Duration | None:
    """Return a length of time of a caller; None: there is none."""
    if length is None:
        return None
    message = Duration()
    message.FromTimedelta(length)
    return message


def read_length_if_any(message: Message, field: str) -> timedelta | None:
    """Return the length of time in a field for a caller, if it is set."""
    value: Duration = getattr(message, field)
    return timedelta(seconds=value.seconds, microseconds=value.nanos // 1000) if message.HasField(field) else None
