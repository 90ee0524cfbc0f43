"""Reader of a log in an object store that another tracker writes, so that a standby can take over with the state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from tracker.store import StoreError

from ..interface import JournalError, LeftOut, LostTrackError, Place, Record
from ..replicated import Group, HeldBack
from .chain import BrokenError, Chain, CutError
from .entries import Entry
from .log import Log

_IDLE_LOOKS: Final = 10  # looks at a log that does not grow, after which newer entries are looked for


class ObjectsFollowing:
    """Reader of the records after a place, as they come.

    Args:
        left_out: returns the records that are left out.
        look_s: seconds between two looks at a log that has not grown.
        clock: a monotonic one, in seconds.
    """

    def __init__(
        self,
        log: Log,
        left_out: Callable[[], frozenset[LeftOut]],
        chain: Chain,
        look_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._look_left_out = left_out
        self._chain = chain
        self._position = chain.group
        self._held_back = HeldBack(Place(str(chain.group), chain.number))
        self._look_s = look_s
        self._clock = clock
        self._looked = -look_s
        self._idle = 0
        self._left_out: frozenset[LeftOut] | None = None

    @property
    def place(self) -> Place:
        """Return what was returned so far."""
        return self._held_back.place

    def records(self) -> Iterator[tuple[int, Record]]:
        """Return the records that may be replayed now; see `tracker.journal.Following`."""
        if self._clock() - self._looked < self._look_s:
            return
        try:
            yield from self._records()
        except StoreError as error:
            raise JournalError(f"the log cannot be read: {error}") from error
        except (BrokenError, CutError) as error:
            raise LostTrackError(str(error)) from error
        finally:
            self._looked = self._clock()

    def _records(self) -> Iterator[tuple[int, Record]]:
        before = self._position
        try:
            yield from self._read_on()
        except BrokenError:
            if not self._skip():
                raise
        self._idle = self._idle + 1 if self._position == before else 0
        if self._idle >= _IDLE_LOOKS:
            self._idle = 0
            # The next entry may be lost, or have been removed while this machine slept.
            missing = self._log.is_past(self._position + 1) and self._log.read(self._position + 1) is None
            if missing and not self._skip():
                raise LostTrackError(f"entry {self._position + 1} is missing, and there are newer ones")

    def _read_on(self) -> Iterator[tuple[int, Record]]:
        for position, found in self._log.following(self._position):
            counts = self._chain.add(position, found)
            self._position = position
            if not counts:  # a tracker starts, and leaves records out before it appends its first group
                self._left_out = None
            elif isinstance(found, Entry):
                if self._left_out is None:
                    self._left_out = self._look_left_out()
                yield from self._held_back.add(Group(str(position), found.first, found.data), self._left_out)

    def _skip(self) -> bool:
        """Go on behind entries that were given up when a loss was accepted; return whether there are any."""
        for position, found in self._log.between(self._position, self._log.newest_position()):
            if isinstance(found, Entry) and found.cut and found.after == self._chain.group:
                self._position, self._chain.term = position - 1, found.term
                return True
        return False
