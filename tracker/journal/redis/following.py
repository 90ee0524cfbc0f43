"""Reads a log in Redis while another tracker writes it, so that a standby has the state when it takes over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import redis

from ..groups import unpack
from ..interface import JournalError, LostTrackError, Place, Record
from .log import Group, Log, Reading

#: Groups at the end of the log that are not replayed yet. The leader appends a group once it has carried out the one
#: before the last. So a command that ends the process does not end the standby's, too: whoever recovers leaves it out.
_BEHIND: Final = 2


class RedisFollowing:
    """Reads the records after a place, as they come.

    Args:
        log: the log.
        set_aside: the key of the records that are left out.
        place: where to begin.
    """

    def __init__(self, log: Log, set_aside: str, place: Place) -> None:
        self._log = log
        self._key = set_aside
        self._waiting: deque[Group] = deque()
        self._reading: Reading = log.read(place.entry, place.number)
        self._claims = -1
        self._left_out: frozenset[int] = frozenset()
        self.place = place

    def records(self) -> Iterator[tuple[int, Record]]:
        """Return the records that may be replayed now; see `tracker.journal.Following`."""
        try:
            for group in self._reading:
                self._waiting.append(group)
                yield from self._ready()
        except redis.RedisError as error:
            raise JournalError(f"the log cannot be read: {error}") from error
        if self._reading.problem is not None:
            raise LostTrackError(self._reading.problem)

    def _ready(self) -> Iterator[tuple[int, Record]]:
        if self._reading.claims != self._claims:  # a tracker has started, and may have left records out
            self._claims = self._reading.claims
            names: Any = self._log.client.hkeys(self._key)
            self._left_out = frozenset(int(name) for name in names)
        while len(self._waiting) > _BEHIND:
            group = self._waiting.popleft()
            number = group.first - 1
            for number, record in enumerate(unpack(group.data), group.first):
                if number not in self._left_out:
                    yield number, record
            self.place = Place(group.entry, number)
