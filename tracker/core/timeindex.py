"""Search for known substreams that the fronts of a group have passed.

They are sorted by scope and end time, so a rising frontier visits only those between the old time and the new.
A heap of the scopes' lowest open end times gives the scopes that a promise for every scope reaches.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tracker.contract.values import NO_END_TIME

from .accounts import Accounts
from .cells import Rows
from .fronts import FrontGroup

_ID_BITS = 64
_ID_MASK = (1 << _ID_BITS) - 1
_BIAS = 2**63


def _key(end_time: int, substream_id: int) -> int:
    """Sort by end time, then by creation."""
    return ((end_time + _BIAS) << _ID_BITS) | substream_id


def _last_key(time: int) -> int:
    """Return a key above those of all end times up to `time`, below all later ones."""
    return ((time + _BIAS) << _ID_BITS) | _ID_MASK


@dataclass(eq=False, slots=True)
class _Scope:
    """The known substreams of a scope that have an end time, and up to which end time the fronts closed them."""

    name: str
    watermark: int
    keys: list[int] = field(default_factory=list)
    done: int = 0  #: how many of them have ended everywhere, roughly: they are dropped when half have
    by_name: list[int] = field(default_factory=list)  #: keys of those that some front closed by name, or expects

    def lowest(self) -> int | None:
        """Return the lowest key that the fronts have not closed."""
        at = bisect_right(self.keys, _last_key(self.watermark))
        return self.keys[at] if at < len(self.keys) else None


class TimeIndex:
    """Finder of the rows that rising times pass.

    Args:
        group: whose times they are.
        passed: takes rows that the watermark of their scope has passed.
        review: takes a row of which something may have changed.
    """

    def __init__(
        self,
        accounts: Accounts,
        group: FrontGroup,
        passed: Callable[[Rows], None],
        review: Callable[[int], None],
    ) -> None:
        self._accounts = accounts
        self._group = group
        self._passed = passed
        self._review = review
        self._scopes: dict[int, _Scope] = {}
        self._lowest: list[tuple[int, int]] = []  # (lowest open end time, scope number); may lag behind

    # ------------------------------------------------------------ substreams come and go

    def join(self, rows: Rows) -> None:
        """Add rows that have just opened."""
        accounts = self._accounts
        timed = rows[accounts.end_time[rows] != NO_END_TIME]
        if not timed.size:
            return
        scopes = accounts.scope[timed]
        keys = map(_key, accounts.end_time[timed].tolist(), accounts.ids_of(timed).tolist())
        by_scope: dict[int, list[int]] = {}
        for number, key in zip(scopes.tolist(), keys, strict=True):
            by_scope.setdefault(number, []).append(key)
        for number, new in by_scope.items():
            scope = self._scope(number)
            lowest = scope.lowest()
            if len(new) > 8 and len(new) * 64 > len(scope.keys):
                scope.keys.extend(new)
                scope.keys.sort()
            else:
                for key in new:
                    insort(scope.keys, key)
            if scope.lowest() != lowest:
                self._push_lowest(number, scope)

    def watch(self, row: int) -> None:
        """Review a row whenever a front's time passes it, since not all fronts close it by time."""
        end_time = int(self._accounts.end_time[row])
        if end_time == NO_END_TIME or len(self._group.members) < 2:
            return
        by_name = self._scope(int(self._accounts.scope[row])).by_name
        key = _key(end_time, self._accounts.id_of(row))
        at = bisect_right(by_name, key)
        if not at or by_name[at - 1] != key:
            by_name.insert(at, key)

    def leave(self, numbers: list[int]) -> None:
        """Remove rows of these scopes that ended on every segment."""
        for number in numbers:
            scope = self._scopes.get(number)
            if scope is None:
                continue
            scope.done += 1
            if scope.done * 2 > len(scope.keys) + 16:
                scope.keys = self._still_open(scope.keys)
                scope.by_name = self._still_open(scope.by_name)
                scope.done = 0

    def forget_scope(self, number: int) -> None:
        """Forget a scope that has no substream left; its number will be used again."""
        self._scopes.pop(number, None)

    def _scope(self, number: int) -> _Scope:
        scope = self._scopes.get(number)
        if scope is None:
            name = self._accounts.scope_names[number]
            scope = self._scopes[number] = _Scope(name, self._group.watermark(name))
        else:
            self._apply(scope, self._group.watermark(scope.name))
        return scope

    def _still_open(self, keys: list[int]) -> list[int]:
        if not keys:
            return keys
        rows = self._accounts.rows_of(np.array([key & _ID_MASK for key in keys], np.uint64))
        is_open = (rows >= 0) & self._accounts.life.is_open(rows)
        return [key for key, kept in zip(keys, is_open.tolist(), strict=True) if kept]

    def _rows(self, keys: list[int]) -> Rows:
        """Return the rows of those keys that are still open."""
        if not keys:
            return np.empty(0, np.int64)
        rows = self._accounts.rows_of(np.array([key & _ID_MASK for key in keys], np.uint64))
        rows = rows[rows >= 0]
        still_open: Rows = rows[self._accounts.life.is_open(rows)]
        return still_open

    # ------------------------------------------------------------ times

    def rise(self, scope: str | None, before: int, after: int, scoped: set[str]) -> None:
        """Handle the rise of a front's time, for a scope or for every scope."""
        # A promise for every scope moves the scopes that have promises of their own, each in its way, and the others
        # all alike.
        for name in scoped if scope is None else (scope,):
            number = self._accounts.scope_number.get(name)
            if number is not None and number in self._scopes:
                self._reach(self._scopes[number], before, after)
        if scope is not None:
            return
        watermark = self._group.watermark(None)
        passed: list[int] = []  # of all scopes together: many have only one substream to close
        while self._lowest and self._lowest[0][0] - _BIAS <= watermark:
            _, number = heapq.heappop(self._lowest)
            if (each := self._scopes.get(number)) is not None:
                passed += self._move(each, self._group.watermark(each.name))
                self._push_lowest(number, each)
        self._passed(self._rows(passed))

    def rise_named(self, before: int, after: int) -> None:
        """Look at what is watched after a front's time for every scope has grown."""
        for each in self._scopes.values():
            if each.by_name:
                self._reach(each, before, after)

    def _reach(self, scope: _Scope, before: int, after: int) -> None:
        """Look at what one front's time for a scope, which has grown, has reached."""
        self._apply(scope, self._group.watermark(scope.name))
        if scope.by_name:
            start, stop = bisect_right(scope.by_name, _last_key(before)), bisect_right(scope.by_name, _last_key(after))
            for row in self._rows(scope.by_name[start:stop]).tolist():
                self._review(row)

    def _push_lowest(self, number: int, scope: _Scope) -> None:
        key = scope.lowest()
        if key is None:
            return
        if len(self._lowest) > 2 * len(self._scopes) + 64:
            # Entries that lag behind have piled up, as they do while only scopes are promised.
            self._lowest = [
                (low >> _ID_BITS, n) for n, each in self._scopes.items() if (low := each.lowest()) is not None
            ]
            heapq.heapify(self._lowest)
        heapq.heappush(self._lowest, (key >> _ID_BITS, number))

    def _apply(self, scope: _Scope, watermark: int) -> None:
        """Pass the rows up to a scope's new watermark, or review those above it."""
        self._passed(self._rows(self._move(scope, watermark)))

    def _move(self, scope: _Scope, watermark: int) -> list[int]:
        """Set a scope's new watermark, and look again at what lies above it; the keys that it has passed."""
        if watermark == scope.watermark:
            return []
        low, high = sorted((scope.watermark, watermark))
        closing = watermark > scope.watermark
        scope.watermark = watermark
        start, stop = bisect_right(scope.keys, _last_key(low)), bisect_right(scope.keys, _last_key(high))
        if closing:
            return scope.keys[start:stop]
        for row in self._rows(scope.keys[start:stop]).tolist():
            self._review(row)
        return []

    def look_anew(self) -> None:
        """Look again: fronts have finished, turned idle or awake, or had promises withdrawn."""
        self._lowest.clear()
        for number, scope in self._scopes.items():
            self._apply(scope, self._group.watermark(scope.name))
            self._push_lowest(number, scope)
