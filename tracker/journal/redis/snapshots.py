"""The snapshots of a journal in Redis: each in pieces, with a description that makes them count, and trims the log."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import count
from typing import Any

import redis

from ..interface import JournalError, JournalFullError, JournalGoneError
from ..snapshots import KEEP, SnapshotDamagedError, described, read_pieces, write_pieces
from . import scripts
from .address import LOST, connect, is_full
from .scripts import Keys


class RedisSnapshots:
    """The snapshots."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._client = connect(keys.address)

    def entries(self) -> list[str]:
        """Return the entries after which a snapshot was taken, newest first."""
        names = self._client.hkeys(self._keys.snapshots)
        return sorted((name.decode() for name in names), key=_order, reverse=True)

    def read(self, entry: str) -> tuple[int, Any]:
        """Return the record after which a snapshot was taken, and its state.

        Raises:
            SnapshotDamagedError: it is not what was written.
        """
        text = self._client.hget(self._keys.snapshots, entry)
        if text is None:
            raise SnapshotDamagedError("newer ones have replaced it")
        state = read_pieces(text, lambda place: self._client.get(self._keys.piece(entry, place)))
        return _order(entry)[1], state

    def write(self, term: int, number: int, state: Any) -> int:
        """Keep a state, remove older ones except one, trim the log, and return the state's size in bytes.

        Args:
            number: the record after which it was taken.
            state: of plain values, which `tracker.journal.snapshots.encode` can write.

        Raises:
            JournalGoneError: another tracker has taken over.
            JournalError: it could not be kept.
        """
        entry = f"{term}-{number}"
        try:
            self._client.sadd(self._keys.unfinished, entry)
            written = write_pieces(state, lambda place, piece: self._client.set(self._keys.piece(entry, place), piece))
            text = json.dumps({"number": number, **written})
            keys = [self._keys.log, self._keys.top, self._keys.snapshots]
            dropped = self._client.eval(scripts.KEEP, len(keys), *keys, term, entry, text, KEEP)
            self._client.srem(self._keys.unfinished, entry)
            self._remove(name.decode() for name in dropped)
        except redis.RedisError as error:
            raise self._failure(error) from error
        return written["bytes"]

    def clear(self) -> None:
        """Remove the pieces of snapshots that were never finished."""
        begun = self._client.smembers(self._keys.unfinished)
        self._remove({name.decode() for name in begun} - set(self.entries()))
        self._client.delete(self._keys.unfinished)

    def set_aside(self, entry: str, where: str) -> None:
        """Move a snapshot that cannot be used to a key, and its pieces to `where:0`, `where:1`, …"""
        text = self._client.hget(self._keys.snapshots, entry)
        self._client.set(where, text)
        pieces = 0
        with suppress(SnapshotDamagedError):
            pieces, _ = described(text)
        for place in count():
            try:
                self._client.rename(self._keys.piece(entry, place), f"{where}:{place}")
            except redis.ResponseError:  # it is missing
                if place >= pieces:
                    break
        self._client.hdel(self._keys.snapshots, entry)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _remove(self, entries: Iterable[str]) -> None:
        for entry in entries:
            place = 0
            while self._client.unlink(self._keys.piece(entry, place)):
                place += 1

    def _failure(self, error: redis.RedisError) -> JournalError:
        where = self._keys.address
        if isinstance(error, LOST):
            return JournalError(f"{where} has not answered while a snapshot was written: {error}")
        if str(error).startswith("NOTLAST"):
            return JournalGoneError(f"another tracker has taken over {where}")
        if is_full(error):
            return JournalFullError(f"{where} has no room for a snapshot ({error}); free some and retry")
        return JournalError(f"{where} has refused a snapshot: {error}")


def _order(entry: str) -> tuple[int, int]:
    term, _, number = entry.partition("-")
    return int(term), int(number)
