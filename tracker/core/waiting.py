"""The closes by name and the numbers of fronts, and so which fronts a substream still waits for.

This module looks at one substream at a time; `closing` decides what follows when its last front has closed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tracker.contract.values import NO_END_TIME

from .accounts import Accounts, Rows
from .expecting import Expectations
from .fronts import EVERYTHING, Front, FrontGroup, Fronts
from .lifecycle import SOLE


class Waiting:
    """Fronts for which a job's substreams wait.

    Attributes:
        closes: by id, the fronts that closed it by name, in order.
        expectations: the numbers of elements that fronts have given.
        counted: ids of which more may have been sent than expected, since `exceeded` was asked.
    """

    def __init__(self, accounts: Accounts, fronts: Fronts) -> None:
        self._accounts = accounts
        self._fronts = fronts
        self.closes: dict[int, dict[str, None]] = {}
        self.expectations = Expectations(accounts)
        self.counted: set[int] = set()

    # ------------------------------------------------------------ which fronts

    def is_closed_by_name(self, id_: int, front: str) -> bool:
        """Return whether a front has closed a substream by name."""
        return front in self.closes.get(id_, ())

    def waiting_for(self, row: int, ended: Sequence[bool]) -> list[str]:
        """Return the fronts that have not closed a row for a segment on which it has not ended.

        Args:
            ended: for each segment, whether it has ended there; to be looked up for many rows at once (`server.lanes`
                says why).
        """
        if self._accounts.flags[row] & SOLE:
            return []
        places = {place for segment, place in enumerate(self._fronts.group_of) if not ended[segment]}
        waiting = {name for place in places for name in self.fronts_of(row, self._fronts.groups[place])}
        return [front.name for front in self._fronts if front.name in waiting]

    def fronts_of(self, row: int, group: FrontGroup) -> list[str]:
        waited = group.waited()
        if self.expectations and (numbers := self.expectations.of(self._accounts.id_of(row))):
            # A front that expects some of it is waited for even if it is idle.
            expecting = {front for _, front in numbers}
            waited = [front for front in group.unfinished() if front in waited or front.name in expecting]
        return [front.name for front in waited if not self.closes_without_finish(front, row)]

    def closes_without_finish(self, front: Front, row: int) -> bool:
        """Return whether a front has closed a row by a promise for it, or for its end time."""
        accounts = self._accounts
        id_ = accounts.id_of(row)
        if self.expectations:
            segments = [segment for segment, name in self.expectations.of(id_) if name == front.name]
            if segments:
                return all(self._met(row, segment) for segment in segments)
        if front.name in self.closes.get(id_, ()):
            return True
        end_time = int(accounts.end_time[row])
        if end_time == NO_END_TIME:
            return False
        return end_time <= front.time(accounts.scope_names[int(accounts.scope[row])])

    def _met(self, row: int, segment: int) -> bool:
        """Return whether all that the fronts expect of a row on a segment was sent."""
        accounts = self._accounts
        if accounts.reason(row, segment):
            return True
        expected = self.expectations.total(accounts.id_of(row), segment) or 0
        return self.complete(row, segment) and accounts.sent(row, segment) >= expected

    def complete(self, row: int, segment: int) -> bool:
        """Return whether each front that feeds the segment has given a number, or has finished."""
        numbers = self.expectations.of(self._accounts.id_of(row))
        waited = self._fronts.group(segment).waited()
        return all((segment, front.name) in numbers for front in waited if front.feeds(segment))

    def passed(self, rows: Rows, watermark_of: Callable[[str], int]) -> NDArray[np.bool_]:
        """Return which rows end no later than a watermark that depends on their scope."""
        accounts = self._accounts
        scopes, which = np.unique(accounts.scope[rows], return_inverse=True)
        watermarks = [watermark_of(accounts.scope_names[scope]) for scope in scopes.tolist()]
        # Numpy has no number below, or above, every time.
        everything = np.array([watermark == EVERYTHING for watermark in watermarks], np.bool_)[which]
        unset = np.array([watermark < -(2**63) for watermark in watermarks], np.bool_)[which]
        times = np.array([min(max(watermark, -(2**63)), 2**63 - 1) for watermark in watermarks], np.int64)[which]
        end_times = accounts.end_time[rows]
        closed: NDArray[np.bool_] = everything | (~unset & (end_times != NO_END_TIME) & (end_times <= times))
        return closed

    # ------------------------------------------------------------ what a drain has cut short

    @property
    def drains(self) -> bool:
        """Return whether a front has finished in the drain under way."""
        return any(front.drained_in for front in self._fronts)

    def cut_short(self, row: int, segment: int) -> bool:
        """Return whether a front that finished in the drain under way had not closed a row before, or owes it
        elements."""
        return any(
            front.drained_in and (not self.closes_without_finish(front, row) or self.is_short(front, row))
            for front in self._fronts.group(segment).members
        )

    def is_short(self, front: Front, row: int) -> bool:
        """Return whether fewer were sent than a front and the others expect, also where the row has ended."""
        id_ = self._accounts.id_of(row)
        return any(
            self._accounts.sent(row, segment) < (self.expectations.total(id_, segment) or 0)
            for segment, name in self.expectations.of(id_)
            if name == front.name
        )

    def drained(self, rows: Rows, group: FrontGroup) -> NDArray[np.bool_]:
        """Return which rows a front of a group that finished in the drain had not closed before."""
        found = np.zeros(len(rows), np.bool_)
        ids = self._accounts.ids_of(rows).tolist() if self.closes else []
        named = np.zeros(len(rows), np.bool_)
        named[[place for place, id_ in enumerate(ids) if id_ in self.closes]] = True
        for front in group.members:
            if not front.drained_in:
                continue
            left = np.flatnonzero(~found)
            if not left.size:
                break
            still = left[~self.passed(rows[left], front.time)]
            found[still] = True
            for place in still[named[still]].tolist():
                found[place] = front.name not in self.closes[ids[place]]
        return found

    # ------------------------------------------------------------ numbers

    def counted_rows(self) -> Rows:
        """Return the open rows of which any front expects elements."""
        if not self.expectations:
            return np.empty(0, np.int64)
        rows = self._accounts.rows_of(np.array(self.expectations.ids(), np.uint64))
        found: Rows = rows[self._accounts.life.is_open(rows)]
        return found

    def exceeded(self) -> list[tuple[int, int, int]]:
        """News of (row, segment, number expected), in evaluation order, where more was sent than expected."""
        if not self.counted:
            return []
        accounts = self._accounts
        rows = accounts.rows_of(np.array(sorted(self.counted), np.uint64))
        self.counted.clear()
        rows = rows[rows >= 0]
        rows = accounts.in_order(rows[accounts.life.is_open(rows)])
        found = []
        for row in rows.tolist():
            id_ = accounts.id_of(row)
            for segment in sorted({segment for segment, _ in self.expectations.of(id_)}):
                expected = self.expectations.total(id_, segment) or 0
                if accounts.reason(row, segment) or accounts.sent(row, segment) <= expected:
                    continue
                if self.complete(row, segment) and self.expectations.announces(id_, segment, expected):
                    found.append((row, segment, expected))
        return found

    # ------------------------------------------------------------ other fronts

    def closed_by_name_by_all(self, segments: Iterable[int]) -> list[int]:
        """Return the ids that every unfinished front that reaches any of some segments has closed by name; none, if no
        unfinished front reaches one of them."""
        places = {self._fronts.group_of[segment] for segment in segments}
        waited = [[front.name for front in self._fronts.groups[place].unfinished()] for place in places]
        if not waited or not all(waited):
            return []
        names = {name for some in waited for name in some}
        return [id_ for id_, closes in self.closes.items() if names <= closes.keys()]

    def met_by_all(self) -> list[tuple[int, int]]:
        """(row, segment) of what every unfinished front that feeds the segment expects, if there is such a front, and
        was sent."""
        found = []
        for row in self.counted_rows().tolist():
            id_ = self._accounts.id_of(row)
            for segment in {segment for segment, _ in self.expectations.of(id_)}:
                feeding = {front.name for front in self._fronts.unfinished() if front.feeds(segment)}
                if (
                    feeding
                    and feeding <= self.expectations.on(id_, segment).keys()
                    and not self._accounts.reason(row, segment)
                    and self._met(row, segment)
                ):
                    found.append((row, segment))
        return found

    def adopt_close(self, id_: int, name: str) -> None:
        """Have an added front close what all the others have closed; `regroup` follows."""
        self.closes.setdefault(id_, {})[name] = None

    def remove_front(self, name: str) -> None:
        """Drop a removed front; `regroup` follows."""
        for closes in self.closes.values():
            closes.pop(name, None)
        self.closes = {id_: closes for id_, closes in self.closes.items() if closes}
