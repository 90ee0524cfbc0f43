"""The snapshots of a journal in an object store: each in pieces, with a description that makes them count.

    snapshots/POSITION-NUMBER-NAME/PLACE        a piece
    snapshots/POSITION-NUMBER-NAME/description  written last

POSITION is the log's group after which the snapshot was taken, and NUMBER its last record.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tracker.store import ConditionalStore, NoAnswerError, RefusedError

from ..interface import JournalError, JournalFullError
from ..snapshots import KEEP, read_pieces, write_pieces

_ATTEMPTS: Final = 8
_PAUSE_S: Final = 0.1  # before the second attempt, and twice as long before each other one
_FOLDER: Final = "snapshots"
_DESCRIPTION: Final = "description"
_NAME: Final = re.compile(_FOLDER + r"/([0-9]+)-([0-9]+)-(\w+)/\w+")

T = TypeVar("T")


@dataclass(frozen=True, order=True, slots=True)
class Taken:
    """A snapshot's place in the log, and its name."""

    position: int
    number: int
    name: str

    @property
    def folder(self) -> str:
        """The folder of its objects."""
        return f"{_FOLDER}/{self.position:020}-{self.number}-{self.name}"

    @property
    def description(self) -> str:
        """The name of its description."""
        return f"{self.folder}/{_DESCRIPTION}"

    @classmethod
    def of(cls, name: str) -> Taken | None:
        """Return the snapshot to which an object belongs; None: it belongs to none."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None


class ObjectsSnapshots:
    """The snapshots.

    Args:
        where: its address, for messages.
        pause: waits for so many seconds.
    """

    def __init__(self, objects: ConditionalStore, where: str, pause: Callable[[float], None] = time.sleep) -> None:
        self._objects = objects
        self._where = where
        self._pause = pause

    def all(self) -> list[Taken]:
        """Return the finished snapshots, newest first."""
        return sorted((taken for taken, names in self._found().items() if taken.description in names), reverse=True)

    def newest_position(self) -> int:
        """Return the position of the newest one; 0: there is none."""
        return max((taken.position for taken in self.all()), default=0)

    def read(self, taken: Taken) -> Any:
        """Return a snapshot's state.

        Raises:
            SnapshotDamagedError: it is not what was written.
        """
        description = self._objects.get(taken.description)
        return read_pieces(description, lambda place: self._objects.get(f"{taken.folder}/{place:06}"))

    def write(self, position: int, number: int, state: Any, is_leader: Callable[[], None]) -> tuple[int, int]:
        """Keep a state, and remove older ones except one.

        A snapshot that was never finished goes when two newer ones are there, and not before: a tracker that slept in
        the middle of it may still finish it, and then it must be whole.

        Args:
            position: of the group after which it was taken.
            number: the last record of the group.
            state: of plain values, which `tracker.journal.snapshots.encode` can write.
            is_leader: raises an error if this tracker no longer leads; called before anything counts or is removed.

        Returns:
            The state's size in bytes, and the position up to which the log is no longer needed.

        Raises:
            JournalError: it could not be kept.
        """
        taken = Taken(position, number, secrets.token_hex(4))

        def put(place: int, piece: bytes) -> None:
            self._insist(lambda: self._objects.put(f"{taken.folder}/{place:06}", piece))

        description = write_pieces(state, put)
        size, text = description["bytes"], json.dumps(description).encode()
        is_leader()
        self._insist(lambda: self._objects.put(taken.description, text))
        is_leader()
        kept = self._insist(self.all)[:KEEP]
        if len(kept) < KEEP:
            return size, 0
        self._insist(lambda: self._remove(each for each in self._found() if each < kept[-1]))
        return size, kept[-1].position

    def oldest_needed(self) -> int:
        """Return the position up to which the log is no longer needed."""
        kept = self.all()[:KEEP]
        return kept[-1].position if len(kept) == KEEP else 0

    def set_aside(self, taken: Taken, where: str) -> None:
        """Move a snapshot that cannot be used to another folder."""
        for name in self._found()[taken]:
            if (content := self._objects.get(name)) is not None:
                self._objects.put(f"{where}/{name}", content)
        self._remove([taken])

    def _found(self) -> dict[Taken, list[str]]:
        found: dict[Taken, list[str]] = {}
        for name in self._objects.names(_FOLDER):
            if (taken := Taken.of(name)) is not None:
                found.setdefault(taken, []).append(name)
        return found

    def _remove(self, snapshots: Iterable[Taken]) -> None:
        """Remove snapshots; their descriptions first, so that none counts without all of its pieces."""
        found = self._found()
        some = list(snapshots)
        self._objects.delete(taken.description for taken in some)
        self._objects.delete(name for taken in some for name in found.get(taken, ()) if name != taken.description)

    def _insist(self, request: Callable[[], T]) -> T:
        """Return what a request returns that may be repeated."""
        for attempt in range(_ATTEMPTS):
            try:
                return request()
            except NoAnswerError as error:
                if attempt == _ATTEMPTS - 1:
                    raise JournalError(
                        f"{self._where} has not answered while a snapshot was written: {error}"
                    ) from error
            except RefusedError as error:
                kind = JournalFullError if error.full else JournalError
                raise kind(f"{self._where} has refused a snapshot: {error}") from error
            self._pause(_PAUSE_S * 2**attempt)
        raise AssertionError("the last attempt returns or raises")
