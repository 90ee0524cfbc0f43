"""Requests as bytes."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from tracker.contract.refusal import Refusal, Refused

_M = TypeVar("_M", bound=Message)


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
