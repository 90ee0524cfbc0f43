"""What a journal asks of an object store.

One request decides everything: `Objects.create` writes an object only where there is none, and of several that try
at once one succeeds. All other requests may be repeated, may take effect late, and may fail after they took effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..interface import JournalError


class NoAnswerError(Exception):
    """The store has not answered: whether the request has had an effect, or will have one, is unknown."""


class RefusedError(Exception):
    """The store has refused the request, which has no effect.

    Args:
        problem: the store's reason.
        full: whether that is a lack of room.
    """

    def __init__(self, problem: str, full: bool = False) -> None:
        super().__init__(problem)
        self.full = full


#: A request can raise these.
FAILURES = (NoAnswerError, RefusedError)


def unusable(where: str, error: Exception) -> JournalError:
    """Return the error that a store cannot be used.

    Args:
        where: its address.
        error: of `FAILURES`.
    """
    if isinstance(error, RefusedError):
        return JournalError(
            f"{where} does not let this tracker in, or is not there: {error}; check the bucket, and the "
            "credentials (in the environment, or ?credentials-file=FILE) with what they allow"
        )
    return JournalError(f"{where} cannot be reached: {error}; check that it runs, its address, and its region")


class Objects(Protocol):
    """Objects with names below a prefix. Several threads may use it."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object if there is none of that name, and return whether this request has written it.

        The request is sent once. Without an answer, the object may appear later.
        """

    def put(self, name: str, data: bytes) -> None:
        """Write an object, in place of any that there is."""

    def get(self, name: str) -> bytes | None:
        """Return an object's content; None: there is no such object."""

    def get_soon(self, name: str) -> bytes | None:
        """Return an object's content like `get`, or raise an error within about a second."""

    def exists(self, name: str) -> bool:
        """Return whether there is an object of that name."""

    def names(self, folder: str, after: str = "") -> Sequence[str]:
        """Return the names of all objects in a folder and below it, in order.

        Args:
            folder: such as ``log``.
            after: only names behind this one, which begins with the folder.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, if they are there."""
