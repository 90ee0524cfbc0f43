"""Reads a log in Redis while another tracker writes it, so that a standby has the state when it takes over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import redis

from ..comparing import Known, Relation
from ..heldback import Group, HeldBack
from ..interface import JournalError, LeftOut, LostTrackError, Place, Record
from .keys import Keys
from .log import Log, Reading, lost_while_followed


def left_out(client: Any, key: str) -> frozenset[LeftOut]:
    """Return the records that are left out, as the hash `key` names them."""
    kept = ((int(number), json.loads(text)) for number, text in client.hgetall(key).items())
    return frozenset(LeftOut(number, values["method"], values["at"]) for number, values in kept)


class RedisFollowing:
    """Reads the records after a place, as they come.

    Args:
        log: the log.
        keys: the journal's.
        place: where to begin.
    """

    def __init__(self, log: Log, keys: Keys, place: Place) -> None:
        self._log = log
        self._keys = keys
        self._held_back = HeldBack(place)
        self._reading: Reading = log.read(place.entry, place.number)
        self._claims = -1
        self._left_out: frozenset[LeftOut] = frozenset()
        self._newest = self._known(place.entry, place.number)
        self._log.known = max(self._log.known, self._newest)  # a snapshot has only what is acknowledged

    @property
    def place(self) -> Place:
        """What was returned so far."""
        return self._held_back.place

    def records(self) -> Iterator[tuple[int, Record]]:
        """Return the records that may be replayed now; see `tracker.journal.Following`."""
        try:
            known = self._log.known
            relation, _, first = self._log.look(self._log.client, known)
            if relation is Relation.LOST:
                raise lost_while_followed(self._keys, known.number, first)
            for group in self._reading:
                if self._reading.claims != self._claims:  # a tracker has started, and may have left records out
                    self._claims = self._reading.claims
                    self._left_out = left_out(self._log.client, self._keys.set_aside)
                self._note(group)
                yield from self._held_back.add(group, self._left_out)
        except redis.RedisError as error:
            raise JournalError(f"the log cannot be read: {error}") from error
        if self._reading.problem is not None:
            raise LostTrackError(self._reading.problem)

    def _note(self, group: Group) -> None:
        """Note what is known to be acknowledged now that a group was read.

        A leader that waits for replicas may still wait for the newest group, and a promoted one need not have it. The
        group before is acknowledged. Without replicas a server shows a record when it keeps it.
        """
        before, self._newest = self._newest, self._known(group.entry, self._reading.number)
        acknowledged = before if self._keys.address.replicas else self._newest
        self._log.known = max(self._log.known, acknowledged)

    def _known(self, entry: str, number: int) -> Known:
        term = int(entry.partition("-")[0])
        owner = self._reading.owner if self._reading.owner_of == term else ""
        return Known(term, number, owner)
