"""Interning: from a substream's (scope, name) to its row, for thousands of names at once.

A dict lookup costs most of a microsecond once a million names are known, nearly all of it waiting for memory, one
name after another. Here 64-bit keys are looked up in an open-addressing table of numpy columns, many at a time, and
what is found is compared with the name in full; so a key that two names share costs time, never truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint64]
Rows = NDArray[np.int64]

_SCOPE_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd: distinct scopes give distinct masks
_SPREAD = np.uint64(0xD6E8FEB86659FD93)
_WORD = (1 << 64) - 1
_EMPTY, _REMOVED = -1, -2
_FEW = 8  # up to so many are quicker one by one than by whole columns
_FIRST_BITS = 10


class NameTable:
    """Index of rows by scope number and name.

    Args:
        names: the names by row, owned by the caller, who appends to it before `add` and empties places after
            `remove`.
    """

    __slots__ = ("_bits", "_clashes", "_keys", "_names", "_rows", "_used")

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._clashes: dict[tuple[int, str], int] = {}
        self._reset(_FIRST_BITS)

    def _reset(self, bits: int) -> None:
        self._bits = bits
        self._keys: U8 = np.zeros(1 << bits, np.uint64)
        self._rows: NDArray[np.int32] = np.full(1 << bits, _EMPTY, np.int32)
        self._used = 0  # places not empty, removed ones included

    @staticmethod
    def keys(scopes: NDArray[np.int64], names: Sequence[str]) -> U8:
        """Return the 64-bit keys of names in scopes, both of the same length.

        Python's own string hash: it differs from process to process, so no sender can aim at it, and keys are
        never stored.
        """
        hashes = np.fromiter(map(hash, names), np.int64, len(names)).view(np.uint64)
        return hashes ^ (scopes.view(np.uint64) * _SCOPE_MIX)

    def _home(self, keys: U8) -> Rows:
        return ((keys * _SPREAD) >> np.uint64(64 - self._bits)).view(np.int64)

    def find(self, scopes: NDArray[np.int64], names: Sequence[str]) -> Rows:
        """Return the row of each name, -1 where it has none."""
        if len(names) <= _FEW:
            one_by_one = [self.find_one(scope, name) for scope, name in zip(scopes.tolist(), names, strict=True)]
            return np.array(one_by_one, np.int64)
        keys = self.keys(scopes, names)
        last = (1 << self._bits) - 1
        places = self._home(keys)
        rows = self._rows[places].astype(np.int64)
        matches = (self._keys[places] == keys) & (rows >= 0)
        todo = (~matches & (rows != _EMPTY)).nonzero()[0]
        rows[~matches] = -1
        while todo.size:
            places[todo] = tried = (places[todo] + 1) & last
            found = self._rows[tried]
            match = (self._keys[tried] == keys[todo]) & (found >= 0)
            rows[todo[match]] = found[match]
            todo = todo[~match & (found != _EMPTY)]
        self._verify(names, rows)
        if self._clashes:
            for i in np.flatnonzero(rows < 0).tolist():
                rows[i] = self._clashes.get((int(scopes[i]), names[i]), -1)
        return rows

    def find_one(self, scope: int, name: str) -> int:
        """Return the row of one name, -1 if it has none."""
        key = (hash(name) & _WORD) ^ (scope * int(_SCOPE_MIX) & _WORD)
        place = self._home_of(key)
        while (row := self._rows.item(place)) != _EMPTY:
            if row >= 0 and self._keys.item(place) == key:
                if self._names[row] == name:
                    return row
                break
            place = (place + 1) & ((1 << self._bits) - 1)
        return self._clashes.get((scope, name), -1)

    def _home_of(self, key: int) -> int:
        return (key * int(_SPREAD) & _WORD) >> (64 - self._bits)

    def _verify(self, names: Sequence[str], rows: Rows) -> None:
        """Set to -1, in place, the rows whose key was another name's."""
        hits = np.flatnonzero(rows >= 0)
        if hits.size < 2:  # itemgetter gives no tuple then
            if hits.size and self._names[int(rows[hits[0]])] != names[int(hits[0])]:
                rows[hits] = -1
            return
        stored = itemgetter(*rows[hits].tolist())(self._names)
        asked = tuple(names) if hits.size == len(names) else itemgetter(*hits.tolist())(names)
        if stored != asked:
            rows[hits[[have != want for have, want in zip(stored, asked, strict=True)]]] = -1

    def add(self, scopes: NDArray[np.int64], names: Sequence[str], rows: Rows) -> None:
        """Enter rows, whose names are in place and were not found."""
        self._enter(scopes, self.keys(scopes, names), rows)

    def _enter(self, scopes: NDArray[np.int64], keys: U8, rows: Rows) -> None:
        wanted = self._used + len(keys)
        if wanted * 5 > (3 << self._bits):  # at most 60 % full
            self._rebuild(wanted)
        if len(keys) <= _FEW:
            for i, (key, row) in enumerate(zip(keys.tolist(), rows.tolist(), strict=True)):
                self._enter_one(scopes, i, key, row)
            return
        last = (1 << self._bits) - 1
        places = self._home(keys)
        todo = np.arange(len(keys))
        while todo.size:
            here = places[todo]
            taken = self._rows[here] != _EMPTY
            clash = taken & (self._keys[here] == keys[todo]) & (self._rows[here] >= 0)
            if clash.any():
                for i in todo[clash].tolist():
                    self._clashes[int(scopes[i]), self._names[int(rows[i])]] = int(rows[i])
            free = todo[~taken]
            # Of several that want the same place the last one written has it; the others go on.
            self._rows[places[free]] = rows[free]
            self._keys[places[free]] = keys[free]
            won = self._rows[places[free]] == rows[free]
            self._used += int(won.sum())
            lost = free[~won]
            onward = todo[taken & ~clash]
            places[onward] = (places[onward] + 1) & last
            todo = np.concatenate([lost, onward])

    def _enter_one(self, scopes: NDArray[np.int64], i: int, key: int, row: int) -> None:
        place = self._home_of(key)
        while (other := self._rows.item(place)) != _EMPTY:
            if other >= 0 and self._keys.item(place) == key:
                self._clashes[int(scopes[i]), self._names[row]] = row
                return
            place = (place + 1) & ((1 << self._bits) - 1)
        self._rows[place] = row
        self._keys[place] = key
        self._used += 1

    def remove(self, scopes: NDArray[np.int64], rows: Rows) -> None:
        """Forget rows, whose names must still be in place."""
        for scope, row in zip(scopes.tolist(), rows.tolist(), strict=True):
            name = self._names[row]
            if self._clashes.pop((scope, name), None) is not None:
                continue
            place = self._home_of((hash(name) & _WORD) ^ (scope * int(_SCOPE_MIX) & _WORD))
            while self._rows[place] != row:
                place = (place + 1) & ((1 << self._bits) - 1)
            self._rows[place] = _REMOVED

    def _rebuild(self, wanted: int) -> None:
        """Make room, leaving removed places behind."""
        kept = self._rows >= 0
        keys, rows = self._keys[kept], self._rows[kept].astype(np.int64)
        bits = _FIRST_BITS
        while (len(rows) + wanted - self._used) * 5 > (3 << bits) // 2:
            bits += 1
        self._reset(bits)
        # None of these share a key (those that did are in the clashes), so no scope is needed.
        self._enter(np.empty(0, np.int64), keys, rows)
