"""Single fields of messages."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

from tracker.contract.refusal import Refusal, Refused
from tracker.contract.values import Numbered

_E = TypeVar("_E", bound=Numbered)

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
