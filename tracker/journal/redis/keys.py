"""The names of a journal's keys. They share a hash tag, so a script may use all of them in a cluster's slot."""

from __future__ import annotations

from .address import RedisAddress


class Keys:
    """The names.

    Args:
        address: with their prefix.

    >>> Keys(RedisAddress.parse("redis://localhost?prefix=billing")).log
    '{billing}:log'
    """

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._base = f"{{{address.prefix}}}"
        self.log = f"{self._base}:log"
        self.top = f"{self._base}:top"
        self.lease = f"{self._base}:lease"
        self.snapshots = f"{self._base}:snapshots"
        self.unfinished = f"{self._base}:unfinished"
        self.marks = f"{self._base}:marks"
        self.set_aside = f"{self._base}:set-aside"

    def piece(self, entry: str, place: int) -> str:
        """Return the key of a snapshot's piece.

        Args:
            entry: the snapshot's.
            place: of the piece, from 0.
        """
        return f"{self._base}:snapshot:{entry}:{place}"

    def damaged(self, when: str) -> str:
        """Return the key of what was set aside because it could not be used."""
        return f"{self._base}:damaged:{when}"
