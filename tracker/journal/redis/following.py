"""Reads a log in Redis while another tracker writes it, so that a standby has the state when it takes over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import redis

from ..heldback import HeldBack
from ..interface import JournalError, LeftOut, LostTrackError, Place, Record
from .log import Log, Reading


def left_out(client: Any, key: str) -> frozenset[LeftOut]:
    """Return the records that are left out, as the hash `key` names them."""
    kept = ((int(number), json.loads(text)) for number, text in client.hgetall(key).items())
    return frozenset(LeftOut(number, values["method"], values["at"]) for number, values in kept)


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
        self._held_back = HeldBack(place)
        self._reading: Reading = log.read(place.entry, place.number)
        self._claims = -1
        self._left_out: frozenset[LeftOut] = frozenset()

    @property
    def place(self) -> Place:
        """What was returned so far."""
        return self._held_back.place

    def records(self) -> Iterator[tuple[int, Record]]:
        """Return the records that may be replayed now; see `tracker.journal.Following`."""
        try:
            for group in self._reading:
                if self._reading.claims != self._claims:  # a tracker has started, and may have left records out
                    self._claims = self._reading.claims
                    self._left_out = left_out(self._log.client, self._key)
                yield from self._held_back.add(group, self._left_out)
        except redis.RedisError as error:
            raise JournalError(f"the log cannot be read: {error}") from error
        if self._reading.problem is not None:
            raise LostTrackError(self._reading.problem)
