"""Which substreams are closed: what the fronts' promises mean for the substreams that are known.

Known substreams with an end time stand sorted in their scope, so a frontier that rises visits those between the old
time and the new, and no others. A heap of the scopes' lowest open end times says which scopes a promise for every
scope reaches. Only what a few promises by name closed is kept one by one.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import Any

import numpy as np

from .accounts import CLOSED, DONE, KNOWN, SOLE, STALLED, Accounts, Rows
from .commands import NO_END_TIME
from .fronts import EVERYTHING, FIRM, Front, Fronts, Supporter

_ID_BITS = 64
_ID_MASK = (1 << _ID_BITS) - 1
_BIAS = 2**63

SOLE_OWNER = ""  #: in the place of a front: closed by the caller as the only source


def _key(end_time: int, substream_id: int) -> int:
    """Sorts by end time, then by creation."""
    return ((end_time + _BIAS) << _ID_BITS) | substream_id


def _last_key(time: int) -> int:
    """Above the keys of all end times up to `time`, below all later ones."""
    return ((time + _BIAS) << _ID_BITS) | _ID_MASK


class _Scope:
    """The known substreams of a scope that have an end time, and up to which end time the fronts closed them."""

    __slots__ = ("by_name", "done", "keys", "limit", "name")

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.keys: list[int] = []
        self.done = 0  # how many of them have ended everywhere, roughly: they are dropped when half have
        self.by_name: list[int] = []  # keys of those that some front closed by name

    def lowest(self) -> int | None:
        """The lowest key that the fronts have not closed."""
        at = bisect_right(self.keys, _last_key(self.limit))
        return self.keys[at] if at < len(self.keys) else None


class Closing:
    """Keeps the ``CLOSED`` flags of a job's accounts as the fronts have it.

    What becomes closed, or is again not, is added to `dirty`, a list of rows for the next evaluation; it counts as a
    change of the substream once `note` finds it so.

    Args:
        accounts: the job's.
        fronts: the job's.
        dirty: the job's list of rows to evaluate.
    """

    def __init__(self, accounts: Accounts, fronts: Fronts, dirty: list[Rows]) -> None:
        self._accounts = accounts
        self._fronts = fronts
        self._dirty = dirty
        self._scopes: dict[int, _Scope] = {}
        self._lowest: list[tuple[int, int]] = []  # (lowest open end time, scope number); may lag behind
        self._closes: dict[int, dict[str, set[Supporter]]] = {}  # by id: the fronts that closed it by name
        self._turned: list[Rows] = []  # closed, or opened again, since `note`; no part has a row twice
        self._finished = False  # all fronts have, and everything known has been closed for it
        self.now = 0  #: when the command at hand was taken (ns)

    # ------------------------------------------------------------ asking

    def shut(self, scope: str, end_time: int) -> bool:
        """Whether the fronts have closed a substream that is not known, or it lies at or below the floor."""
        limit = self._fronts.limit(scope)
        if end_time == NO_END_TIME:
            return limit == EVERYTHING
        return end_time <= limit or end_time <= self._fronts.floor(scope)

    def waiting_for(self, row: int) -> list[str]:
        """The fronts that have not closed a row."""
        accounts = self._accounts
        if accounts.flags[row] & SOLE:
            return []
        scope = accounts.scope_names[int(accounts.scope[row])]
        end_time = int(accounts.end_time[row])
        closes = self._closes.get(accounts.id_of(row), {})
        return [
            front.name
            for front in self._fronts.waited()
            if front.name not in closes and (end_time == NO_END_TIME or end_time > front.time(scope))
        ]

    def _is_closed(self, row: int) -> bool:
        if self._accounts.flags[row] & SOLE:
            return True
        return bool(self._fronts) and not self.waiting_for(row)

    # ------------------------------------------------------------ substreams come and go

    def join(self, rows: Rows) -> None:
        """Rows have come to be known, which the fronts have not closed."""
        accounts = self._accounts
        if not self._fronts:
            return
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

    def _scope(self, number: int) -> _Scope:
        scope = self._scopes.get(number)
        if scope is None:
            name = self._accounts.scope_names[number]
            scope = self._scopes[number] = _Scope(name, self._fronts.limit(name))
        else:
            self._apply(scope, self._fronts.limit(scope.name))
        return scope

    def leave(self, rows: Rows) -> None:
        """Rows have ended on every segment."""
        accounts = self._accounts
        if self._closes:
            for id_ in accounts.ids_of(rows).tolist():
                self._closes.pop(id_, None)
        for number in accounts.scope[rows].tolist():
            scope = self._scopes.get(number)
            if scope is None:
                continue
            scope.done += 1
            if scope.done * 2 > len(scope.keys) + 16:
                scope.keys = self._still_open(scope.keys)
                scope.by_name = self._still_open(scope.by_name)
                scope.done = 0

    def forget_scope(self, number: int) -> None:
        """A scope has no substream left; its number will stand for another."""
        self._scopes.pop(number, None)

    def _still_open(self, keys: list[int]) -> list[int]:
        if not keys:
            return keys
        rows = self._accounts.rows_of(np.array([key & _ID_MASK for key in keys], np.uint64))
        flags = self._accounts.flags[rows]
        is_open = (rows >= 0) & ((flags & (KNOWN | DONE)) == KNOWN)
        return [key for key, kept in zip(keys, is_open.tolist(), strict=True) if kept]

    def _rows(self, keys: list[int]) -> Rows:
        """The rows of those keys that are still open."""
        if not keys:
            return np.empty(0, np.int64)
        rows = self._accounts.rows_of(np.array([key & _ID_MASK for key in keys], np.uint64))
        rows = rows[rows >= 0]
        still_open: Rows = rows[(self._accounts.flags[rows] & (KNOWN | DONE)) == KNOWN]
        return still_open

    # ------------------------------------------------------------ promises

    def close(self, row: int, front: str, supporter: Supporter) -> None:
        """A front (or the sole owner) closes a known row by name."""
        accounts = self._accounts
        if accounts.flags[row] & DONE:
            return
        id_ = accounts.id_of(row)
        if front == SOLE_OWNER:
            firmly = bool(accounts.flags[row] & SOLE) and SOLE_OWNER not in self._closes.get(id_, ())
            accounts.flags[row] |= SOLE
            if not firmly and (supporter is not FIRM or id_ in self._closes):
                self._closes.setdefault(id_, {}).setdefault(SOLE_OWNER, set()).add(supporter)
        else:
            closes = self._closes.setdefault(id_, {})
            closes.setdefault(front, set()).add(supporter)
            end_time = int(accounts.end_time[row])
            if end_time != NO_END_TIME and len(self._fronts.by_name) > 1:
                by_name = self._scope(int(accounts.scope[row])).by_name
                key = _key(end_time, id_)
                at = bisect_right(by_name, key)
                if not at or by_name[at - 1] != key:
                    by_name.insert(at, key)
        self._review(row)

    def _review(self, row: int) -> None:
        """Set one row's flag anew."""
        flags = self._accounts.flags
        closed = self._is_closed(row)
        if closed != bool(flags[row] & CLOSED):
            self._mark(np.array([row]), closed)

    def _mark(self, rows: Rows, closed: bool) -> None:
        flags = self._accounts.flags
        if closed:
            flags[rows] |= CLOSED
        else:
            flags[rows] &= ~CLOSED
        self._dirty.append(rows)
        self._turned.append(rows)

    def note(self) -> None:
        """Date what has been closed, and take back the stalls of what is open again.

        Asked after each thing that happens at once: the promises of an epoch, a front's turn, an epoch's revocation.
        What one promise of an epoch closes and the next opens again has not changed.
        """
        if not self._turned:
            return
        rows = self._turned[0]
        if len(self._turned) > 1:
            rows, times = np.unique(np.concatenate(self._turned), return_counts=True)
            rows = rows[times % 2 == 1]
        self._turned.clear()
        accounts = self._accounts
        closed = (accounts.flags[rows] & CLOSED) != 0
        # It may stall from now on, however long ago its last entry was.
        accounts.changed[rows[closed]] = self.now
        accounts.flags[rows[~closed]] &= ~STALLED

    def advance(self, front: Front, scope: str | None, time: int, supporter: Supporter) -> None:
        """A front has promised a frontier, for a scope or for every one."""
        before, after = self._fronts.advance(front, scope, time, supporter)
        if supporter is FIRM:
            self._fronts.raise_floors([scope])
        if after <= before:
            return
        if scope is not None:
            number = self._accounts.scope_number.get(scope)
            if number is not None and number in self._scopes:
                self._reach(self._scopes[number], before, after)
            return
        # A promise for every scope moves the scopes that have promises of their own, each in its way, and the others
        # all alike.
        for name in self._fronts.scoped:
            number = self._accounts.scope_number.get(name)
            if number is not None and number in self._scopes:
                self._reach(self._scopes[number], before, after)
        limit = self._fronts.limit(None)
        passed: list[int] = []  # of all scopes together: many have only one substream to close
        while self._lowest and self._lowest[0][0] - _BIAS <= limit:
            _, number = heapq.heappop(self._lowest)
            if (each := self._scopes.get(number)) is not None:
                passed += self._move(each, self._fronts.limit(each.name))
                self._push_lowest(number, each)
        self._pass(passed)
        if self._closes and len(self._fronts.by_name) > 1:
            for each in self._scopes.values():
                if each.by_name:
                    self._reach(each, before, after)

    def _reach(self, scope: _Scope, before: int, after: int) -> None:
        """One front's time for a scope has grown."""
        self._apply(scope, self._fronts.limit(scope.name))
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

    def _apply(self, scope: _Scope, limit: int) -> None:
        """Close what lies up to a scope's new limit; or open again what lies above it."""
        self._pass(self._move(scope, limit))

    def _move(self, scope: _Scope, limit: int) -> list[int]:
        """Set a scope's new limit, and open again what lies above it; the keys that it has passed are to be closed."""
        if limit == scope.limit:
            return []
        low, high = sorted((scope.limit, limit))
        closing = limit > scope.limit
        scope.limit = limit
        start, stop = bisect_right(scope.keys, _last_key(low)), bisect_right(scope.keys, _last_key(high))
        if closing:
            return scope.keys[start:stop]
        for row in self._rows(scope.keys[start:stop]).tolist():
            self._review(row)
        return []

    def _pass(self, keys: list[int]) -> None:
        """Close those that are still open."""
        rows = self._rows(keys)
        rows = rows[(self._accounts.flags[rows] & CLOSED) == 0]
        if rows.size:
            self._mark(rows, True)

    def finish(self, front: Front, supporter: Supporter) -> None:
        """A front has finished."""
        finished_before = front.finished
        firmly_before = FIRM in front.finishers
        front.finishers.add(supporter)
        if not finished_before or (supporter is FIRM and not firmly_before):
            self.fronts_changed()

    def fronts_changed(self) -> None:
        """Fronts have come, gone, finished, turned idle or awake, or had promises withdrawn: look at all anew."""
        self._fronts.changed()
        self._fronts.raise_floors()
        accounts = self._accounts
        finished = self._fronts.limit(None) == EVERYTHING
        if finished or self._finished:
            # All is closed now, or was: then the untimed ones too, which stand in no index.
            self._finished = finished
            rows = accounts.in_use(int(KNOWN), int(KNOWN | DONE))
            if finished:
                rows = rows[(accounts.flags[rows] & CLOSED) == 0]
                if rows.size:
                    self._mark(rows, True)
            else:
                for row in rows.tolist():
                    self._review(row)
        self._lowest.clear()
        for number, scope in self._scopes.items():
            self._apply(scope, self._fronts.limit(scope.name))
            self._push_lowest(number, scope)
        self._review_named()

    def _review_named(self) -> None:
        """Look anew at what was closed by name."""
        if self._closes:
            ids = np.array(list(self._closes), np.uint64)
            for row in self._accounts.rows_of(ids).tolist():
                self._review(row)

    # ------------------------------------------------------------ taking promises back, making them firm

    def withdraw(self, supporter: Supporter, ids: Iterable[int]) -> None:
        """Take back the promises of an epoch that was revoked.

        Args:
            supporter: the epoch.
            ids: of the substreams that it closed by name.
        """
        for front in self._fronts:
            front.soft = [promise for promise in front.soft if promise[0] != supporter]
            front.finishers.discard(supporter)
            if not front.finished:
                front.drained_in = False
        for id_ in ids:
            self._unsupport(id_, supporter)
        self.fronts_changed()
        self.note()

    def _unsupport(self, id_: int, supporter: Supporter) -> None:
        closes = self._closes.get(id_)
        if closes is None:
            return
        row = self._accounts.row_of(id_)
        for front, supporters in list(closes.items()):
            supporters.discard(supporter)
            if not supporters:
                del closes[front]
                if front == SOLE_OWNER:
                    self._accounts.flags[row] &= ~SOLE
        if not closes:
            del self._closes[id_]
        self._review(row)

    def settle(self, supporter: Supporter, ids: Iterable[int]) -> None:
        """An epoch was committed, and its frontiers and finishes are firm by now: so are its closes.

        Args:
            supporter: the epoch.
            ids: of the substreams that it closed by name.
        """
        for front in self._fronts:
            front.soft = [promise for promise in front.soft if promise[0] != supporter]
            front.finishers.discard(supporter)
        for id_ in ids:
            for supporters in self._closes.get(id_, {}).values():
                if supporter in supporters:
                    supporters.discard(supporter)
                    supporters.add(FIRM)

    # ------------------------------------------------------------ other fronts

    def closed_by_name_by_all(self) -> list[int]:
        """The ids that every unfinished front has closed by name, if there is such a front."""
        unfinished = [front.name for front in self._fronts.unfinished()]
        if not unfinished:
            return []
        return [id_ for id_, closes in self._closes.items() if all(front in closes for front in unfinished)]

    def remove_front(self, name: str) -> None:
        """A front is waited for no more."""
        for closes in self._closes.values():
            closes.pop(name, None)

    # ------------------------------------------------------------ dump and load

    def dump(self) -> list[Any]:
        """What was closed by name."""
        return [
            (id_, [(front, list(supporters)) for front, supporters in closes.items()])
            for id_, closes in self._closes.items()
        ]

    def load(self, dump: list[Any]) -> None:
        """Take over what `dump` gave; the accounts' flags and the fronts are in place."""
        accounts = self._accounts
        for id_, closes in dump:
            self._closes[id_] = {
                front: {FIRM if by is None else (by[0], by[1]) for by in supporters} for front, supporters in closes
            }
        self._finished = bool(self._fronts) and self._fronts.limit(None) == EVERYTHING
        rows = accounts.in_use(int(KNOWN), int(KNOWN | DONE))
        self.join(rows)
        for id_, named in self._closes.items():
            row = accounts.row_of(id_)
            end_time = int(accounts.end_time[row])
            if end_time != NO_END_TIME and len(self._fronts.by_name) > 1 and set(named) != {SOLE_OWNER}:
                insort(self._scope(int(accounts.scope[row])).by_name, _key(end_time, id_))
