"""Interface of a store.

One request decides everything: `create` writes a file only where there is none, and of several that try at once one
succeeds. There is no rename and no compare-and-swap. A caller with more than one file to write puts the parts under
names that nobody else uses, and then a small file that makes them count. All requests but `create` may be repeated, may
take effect late, and may fail after they took effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class StoreError(Exception):
    """A request that has failed."""


class NoAnswerError(StoreError):
    """The store has not answered: whether the request has had an effect, or will have one, is unknown."""


class RefusedError(StoreError):
    """The store has refused the request, which has no effect.

    Args:
        full: whether that is a lack of room.
    """

    def __init__(self, problem: str, full: bool = False) -> None:
        super().__init__(problem)
        self.full = full


class _Files(Protocol):
    """Files with names below a prefix, which appear whole and durable. Several threads may use the store.

    Each call raises a `StoreError` if it fails.
    """

    def get(self, name: str, first: int | None = None, soon: bool = False) -> bytes | None:
        """Return a file's content; None: there is no such file.

        Args:
            first: read only so many bytes, at least 1, of a file that is not empty.
            soon: fail within about a second.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, if they are there."""


class ConditionalStore(_Files, Protocol):
    """A store in which several can agree."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file if there is none of that name, and return whether this request has written it.

        The request is sent once. Without an answer, the file may appear later.
        """

    def put(self, name: str, data: bytes) -> None:
        """Write a file, in place of any that there is."""

    def names(self, folder: str, after: str = "") -> Sequence[str]:
        """Return the names of all files in a folder and below it, in order.

        Args:
            folder: such as ``log``; empty: all.
            after: only names behind this one, which begins with the folder.
        """


class FileStore(_Files, Protocol):
    """A store of files that may be larger than memory."""

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        """Write a file, at once or in pieces. It appears with the last piece; if one cannot be had, it does not."""

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a file's content.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def entries(self, folder: str = "") -> Sequence[str]:
        """Return the names of the files in a folder, and of the folders beside them, which end with ``/``.

        Args:
            folder: such as ``log``; empty: outside of all folders.
        """

    def remove(self, folder: str) -> None:
        """Remove all that is in a folder, and below it."""


def in_pieces(parts: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Return the same bytes in pieces of `size` bytes, the last of which may be shorter.

    >>> list(in_pieces([b"abc", b"de"], 2))
    [b'ab', b'cd', b'e']
    """
    piece = bytearray()
    for part in parts:
        rest = memoryview(part).cast("B")
        while rest.nbytes:
            taken = rest[: size - len(piece)]
            piece += taken
            rest = rest[len(taken) :]
            if len(piece) == size:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)
