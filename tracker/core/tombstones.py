"""Tombstones: the names of what has ended and is forgotten, 16 bytes each.

A name is kept as 96 bits of a hash with the second in which its substream had ended everywhere, so that what comes of
it later is late and never begins a second life. A false match needs two names with the same 96 bits: with a billion
tombstones and a billion new names its chance is one in 10^10.

They are kept in runs, each sorted by hash and more than twice as long as the next: adding costs O(log n) a tombstone
over all, looking up one search in each run. Tombstones older than `remember` do not count any more, and are removed
once an eighth of `remember` has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_SWEEPS = 8  # how often within `remember` the old ones are removed
_SECOND = 10**9


class _Run(NamedTuple):
    """Tombstones sorted by the first 64 bits of their hashes."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint32]
    second: NDArray[np.uint32]  # in which it ended, rounded up

    def where(self, mask: NDArray[Any]) -> _Run:
        return _Run(self.high[mask], self.low[mask], self.second[mask])


def _joined(runs: Sequence[_Run]) -> _Run:
    high, low, second = zip(*runs, strict=True)
    return _Run(np.concatenate(high), np.concatenate(low), np.concatenate(second))


def _hashes(substreams: Iterable[tuple[str, str]]) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Return 96 bits for each (scope, name), the same in every process."""
    digests = bytearray()
    for scope, name in substreams:
        prefix = scope.encode()
        digests += blake2b(b"%d:%b%b" % (len(prefix), prefix, name.encode()), digest_size=12).digest()
    words = np.frombuffer(digests, "<u4").reshape(-1, 3)
    return words[:, 0].astype(np.uint64) << np.uint64(32) | words[:, 1], words[:, 2].copy()


class Tombstones:
    """A job's tombstones.

    >>> stones = Tombstones()
    >>> stones.add([("tenant", "session-1")], [5 * 10**9])
    >>> stones.has([("tenant", "session-1"), ("tenant", "session-2")]).tolist()
    [True, False]
    >>> stones.forget_until(5 * 10**9)
    >>> stones.has([("tenant", "session-1")]).tolist()
    [False]
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._until = -1  # those of this second and earlier ones count no more
        self._swept = -1  # those of this second and earlier ones are removed

    def __len__(self) -> int:
        """Return how many take up memory."""
        return sum(len(run.high) for run in self._runs)

    def add(self, substreams: Iterable[tuple[str, str]], ended: Iterable[int]) -> None:
        """Remember names, each with the time at which its substream had ended everywhere (ns)."""
        high, low = _hashes(substreams)
        if not len(high):
            return
        second = np.fromiter((-(-at // _SECOND) for at in ended), np.uint32, len(high))
        if int(second.min()) <= self._until:
            # `remember` has grown since, so these count, though as old as what does not any more.
            self._remove()
            self._until = -1
        self._push(_Run(high, low, second))

    def _push(self, run: _Run) -> None:
        while self._runs and len(self._runs[-1].high) <= 2 * len(run.high):
            before = self._runs.pop()
            run = _joined([before, run])
        self._runs.append(run.where(np.argsort(run.high, kind="stable")))

    def has(self, substreams: Iterable[tuple[str, str]]) -> NDArray[np.bool_]:
        """Return which names are remembered."""
        high, low = _hashes(substreams)
        found = np.zeros(len(high), np.bool_)
        for run in self._runs:
            places = np.searchsorted(run.high, high)
            todo = np.flatnonzero(places < len(run.high))
            while todo.size:  # more than once only where two names share 64 bits, or one was remembered twice
                at = places[todo]
                same = run.high[at] == high[todo]
                match = same & (run.low[at] == low[todo]) & (run.second[at].astype(np.int64) > self._until)
                found[todo[match]] = True
                todo = todo[same & ~match]
                places[todo] += 1
                todo = todo[places[todo] < len(run.high)]
        return found

    def forget_until(self, at: int) -> None:
        """Forget, for good, what had ended by then (ns)."""
        self._until = max(self._until, at // _SECOND)

    def sweep(self, remember: int) -> None:
        """Remove what counts no more, if enough time has passed since the last time.

        Args:
            remember: how long tombstones are kept (ns).
        """
        if not self._runs:
            self._swept = self._until
        if (self._until - self._swept) * _SECOND * _SWEEPS < remember:
            return
        self._swept = self._until
        self._remove()

    def _remove(self) -> None:
        runs, self._runs = self._runs, []
        for run in runs:
            kept = run.second.astype(np.int64) > self._until
            if kept.any():
                self._push(run.where(kept))

    def next_sweep(self, remember: int) -> int | None:
        """Return when a sweep may find something (ns); None: there is nothing to find."""
        if not self._runs:
            return None
        return max(self._swept, 0) * _SECOND + remember + remember // _SWEEPS + _SECOND

    def all(self) -> _Run:
        """Return all that take up memory, as columns."""
        return _joined(self._runs or [_Run(np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint32))])

    def put(self, high: NDArray[np.uint64], low: NDArray[np.uint32], second: NDArray[np.uint32]) -> None:
        """Put back the columns that `all` gave."""
        if len(high):
            self._push(_Run(high, low, second))
