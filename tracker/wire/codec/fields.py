"""Messages as bytes, and their single fields: numbers, enumerations, times.

Times and lengths of time are nanoseconds in the contract; what a caller asks for with a length of time is a
`timedelta`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import Numbered

_E = TypeVar("_E", bound=Numbered)
_M = TypeVar("_M", bound=Message)

NS: Final = 1_000_000_000
_LARGEST = 2**64 - 1


def optional(message: Message, field: str) -> Any:
    """Return a field's value; None: it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def enumeration(kind: type[_E], value: int, field: str) -> _E:
    """Return a wire enumeration's value, its default for unspecified.

    Raises:
        Refused: ``MALFORMED``: the enumeration has no such value.
    """
    try:
        return kind.of(value or 1)
    except ValueError:
        raise Refused(Refusal.MALFORMED, f"{field}={value} is not a known value; use one of {_named(kind)}") from None


def _named(kind: type[Numbered]) -> str:
    return ", ".join(f"{member.number} ({member.name})" for member in kind)


def count(number: int) -> int:
    """Return a sum of numbers, each of which the wire can carry: no larger than it can carry."""
    return min(number, _LARGEST)


def parse(kind: type[_M], data: bytes) -> _M:
    """Return a request.

    Raises:
        Refused: ``MALFORMED``: the bytes are not a valid request.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused(
            Refusal.MALFORMED,
            f"the bytes are not a valid {kind.DESCRIPTOR.full_name} ({error}); check that the client was built from "
            "this proto and that nothing on the way cuts messages",
        ) from error


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
