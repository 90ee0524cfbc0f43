"""The names of a journal's keys. They share a hash tag, so a script may use all of them in a cluster's slot."""

from __future__ import annotations

from .address import RedisAddress


class Keys:
    """The names.

    >>> Keys(RedisAddress.parse("redis://localhost?prefix=billing")).log
    '{billing}:log'
    """

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self.base = f"{{{address.prefix}}}"
        self.log = f"{self.base}:log"
        self.top = f"{self.base}:top"
        self.lease = f"{self.base}:lease"
        self.standby = f"{self.base}:standby"
        self.snapshots = f"{self.base}:snapshots"
        self.unfinished = f"{self.base}:unfinished"
        self.confirmed = f"{self.base}:confirmed"
        self.marks = f"{self.base}:marks"
        self.set_aside = f"{self.base}:set-aside"

    def piece(self, entry: str, place: int) -> str:
        """Return the key of a snapshot's piece.

        Args:
            place: of the piece, from 0.
        """
        return f"{self.base}:snapshot:{entry}:{place}"

    def replaced(self, when: str) -> str:
        """Return the beginning of the keys of a journal that was replaced."""
        return f"{self.base}:replaced:{when}"

    def damaged(self, when: str) -> str:
        """Return the key of what was set aside because it could not be used."""
        return f"{self.base}:damaged:{when}"
