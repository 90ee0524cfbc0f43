"""Which substreams are closed: what the fronts' promises mean for the substreams that are known.

A substream is closed for a group of segments, those that wait for the same fronts; most jobs have one group. What the
fronts' times close is found by an index for each group (`timeindex`). Only what a few promises by name, or numbers,
close is kept one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from tracker.contract.values import NO_END_TIME

from .accounts import Accounts, Rows
from .expecting import Expectations
from .frontgroups import EVERYTHING, UNSET, Front, FrontGroup
from .fronts import Fronts
from .lifecycle import CLOSED, ENDED, KNOWN, SOLE
from .producers import ExpectOf
from .timeindex import TimeIndex

SOLE_OWNER = ""  #: in the place of a front: closed by the caller as the only source


class Closing:
    """Keeps which of a job's rows are closed, as the fronts have it.

    A row has the flag ``CLOSED`` if it is closed for any group; which ones is kept beside where there are several.
    What becomes closed, or is again not, is added to `dirty`, a list of rows for the next evaluation; it counts as a
    change of the substream once `note` finds it so.

    Args:
        accounts: the job's.
        fronts: the job's, in their groups.
        dirty: the job's list of rows to evaluate.
    """

    def __init__(self, accounts: Accounts, fronts: Fronts, dirty: list[Rows]) -> None:
        self._accounts = accounts
        self._fronts = fronts
        self._dirty = dirty
        self._closes: dict[int, dict[str, None]] = {}  # by id: the fronts that closed it by name, the first first
        self._turned: list[Rows] = []  # (row, group) closed, or opened again, since `note`; none twice in a part
        self.expectations = Expectations(accounts)
        self._counted: set[int] = set()  # ids of which more may have been sent than expected, since `exceeded`
        self.now = 0  #: when the command at hand was taken (ns)
        self._index()

    def _index(self) -> None:
        """Begin with the groups as they are now, and no rows."""
        count = len(self._fronts.groups)
        self._several: NDArray[np.bool_] = np.zeros((0, count), np.bool_)  # by row and group, where there are several
        self._finished = [False] * count  # all fronts have, and everything known has been closed for it
        self._times = [
            TimeIndex(self._accounts, group, lambda rows, place=place: self._pass(rows, place), self._review)  # type: ignore[misc]
            for place, group in enumerate(self._fronts.groups)
        ]

    # ------------------------------------------------------------ asking

    @property
    def drains(self) -> bool:
        """Whether a front has finished in the drain under way."""
        return any(front.drained_in for front in self._fronts)

    def shut(self, scope: str, end_time: int, segment: int) -> bool:
        """Whether the fronts have closed a substream that is not known for a segment, or it lies at or below the
        floor."""
        return self._shut(scope, end_time, self._fronts.group(segment))

    def _shut(self, scope: str, end_time: int, group: FrontGroup) -> bool:
        limit = group.limit(scope)
        if end_time == NO_END_TIME:
            return limit == EVERYTHING
        return end_time <= limit or end_time <= group.floors.read(scope)

    def shut_groups(self, scope: str, end_time: int) -> list[bool]:
        """The same for each group."""
        return [self._shut(scope, end_time, group) for group in self._fronts.groups]

    def groups_of(self, front: str) -> list[int]:
        """The groups that wait for a front; the sole owner closes for all."""
        return list(range(len(self._fronts.groups))) if front == SOLE_OWNER else self._fronts.by_name[front].groups

    def closed_on(self, rows: Rows) -> NDArray[np.bool_]:
        """For each row and segment, whether it is closed."""
        closed: NDArray[np.bool_] = self._closed(rows)[:, self._fronts.group_of]
        return closed

    def closed_somewhere_only(self, rows: Rows) -> NDArray[np.bool_] | None:
        """The same where it depends on the segment; None: what is closed is closed for all of them."""
        return None if len(self._times) == 1 else self.closed_on(rows)

    def _closed(self, rows: Rows) -> NDArray[np.bool_]:
        """For each row and group."""
        if len(self._times) == 1:
            one: NDArray[np.bool_] = (self._accounts.flags[rows] & CLOSED).astype(np.bool_).reshape(-1, 1)
            return one
        self._make_room()
        closed: NDArray[np.bool_] = self._several[rows]
        return closed

    def _make_room(self) -> None:
        more = len(self._accounts.flags) - len(self._several)
        if more > 0:
            self._several = np.concatenate([self._several, np.zeros((more, len(self._times)), np.bool_)])

    def waiting_for(self, row: int) -> list[str]:
        """The fronts that have not closed a row for a segment on which it has not ended."""
        if self._accounts.flags[row] & SOLE:
            return []
        ended = self._accounts.cells.has_ended(np.array([row]))[0]
        places = {place for segment, place in enumerate(self._fronts.group_of) if not ended[segment]}
        waiting = {name for place in places for name in self._waiting_for(row, self._fronts.groups[place])}
        return [front.name for front in self._fronts if front.name in waiting]

    def _waiting_for(self, row: int, group: FrontGroup) -> list[str]:
        waited = group.waited()
        if self.expectations and (numbers := self.expectations.of(self._accounts.id_of(row))):
            # A front that expects some of it is waited for even if it is idle.
            expecting = {front for _, front in numbers}
            waited = [front for front in group.unfinished() if front in waited or front.name in expecting]
        return [front.name for front in waited if not self._closes_without_finish(front, row)]

    def _closes_without_finish(self, front: Front, row: int) -> bool:
        """Whether a front has closed a row by a promise for it, or for its end time."""
        accounts = self._accounts
        id_ = accounts.id_of(row)
        if self.expectations:
            segments = [segment for segment, name in self.expectations.of(id_) if name == front.name]
            if segments:
                return all(self._met(row, segment) for segment in segments)
        if front.name in self._closes.get(id_, ()):
            return True
        end_time = int(accounts.end_time[row])
        if end_time == NO_END_TIME:
            return False
        return end_time <= front.time(accounts.scope_names[int(accounts.scope[row])])

    def _met(self, row: int, segment: int) -> bool:
        """Whether all that the fronts expect of a row on a segment was sent."""
        accounts = self._accounts
        if accounts.reason(row, segment):
            return True
        expected = self.expectations.total(accounts.id_of(row), segment) or 0
        return self._complete(row, segment) and accounts.sent(row, segment) >= expected

    def _complete(self, row: int, segment: int) -> bool:
        """Whether each front that feeds the segment has given a number, or has finished."""
        numbers = self.expectations.of(self._accounts.id_of(row))
        waited = self._fronts.group(segment).waited()
        return all((segment, front.name) in numbers for front in waited if front.feeds(segment))

    def closed_by_drain(self, row: int, segment: int) -> bool:
        """Whether only fronts that finished in the drain under way have closed a row for a segment."""
        if self._accounts.flags[row] & SOLE or not self.closed_on(np.array([row]))[0, segment]:
            return False
        return any(
            front.drained_in and (not self._closes_without_finish(front, row) or self._is_short(front, row))
            for front in self._fronts.group(segment).members
        )

    def _is_short(self, front: Front, row: int) -> bool:
        """Whether fewer were sent than a front and the others expect, also where the row has ended."""
        id_ = self._accounts.id_of(row)
        return any(
            self._accounts.sent(row, segment) < (self.expectations.total(id_, segment) or 0)
            for segment, name in self.expectations.of(id_)
            if name == front.name
        )

    def closed_by_drain_each(self, rows: Rows) -> NDArray[np.bool_]:
        """The same for each of some rows of which no number is expected, and each segment."""
        groups = np.stack([self._drained(rows, group) for group in self._fronts.groups], axis=1)
        by_drain: NDArray[np.bool_] = groups[:, self._fronts.group_of] & self.closed_on(rows)
        by_drain[self._accounts.life.are(rows, SOLE)] = False
        return by_drain

    def _drained(self, rows: Rows, group: FrontGroup) -> NDArray[np.bool_]:
        """Which rows a front of a group that finished in the drain had not closed before."""
        found = np.zeros(len(rows), np.bool_)
        ids = self._accounts.ids_of(rows).tolist() if self._closes else []
        named = np.zeros(len(rows), np.bool_)
        named[[place for place, id_ in enumerate(ids) if id_ in self._closes]] = True
        for front in group.members:
            if not front.drained_in:
                continue
            left = np.flatnonzero(~found)
            if not left.size:
                break
            still = left[~self._passed(rows[left], front.time)]
            found[still] = True
            for place in still[named[still]].tolist():
                found[place] = front.name not in self._closes[ids[place]]
        return found

    def _closed_by_times(self, rows: Rows, group: FrontGroup) -> NDArray[np.bool_]:
        """Which rows the times that the fronts of a group have promised close, or their finishes."""
        return self._passed(rows, group.limit)

    def _passed(self, rows: Rows, limit_of: Callable[[str], int]) -> NDArray[np.bool_]:
        """Which rows end no later than a limit that depends on their scope."""
        accounts = self._accounts
        scopes, which = np.unique(accounts.scope[rows], return_inverse=True)
        limits = [limit_of(accounts.scope_names[scope]) for scope in scopes.tolist()]
        # Numpy has no number below, or above, every time.
        everything = np.array([limit == EVERYTHING for limit in limits], np.bool_)[which]
        unset = np.array([limit < -(2**63) for limit in limits], np.bool_)[which]
        times = np.array([min(max(limit, -(2**63)), 2**63 - 1) for limit in limits], np.int64)[which]
        end_times = accounts.end_time[rows]
        closed: NDArray[np.bool_] = everything | (~unset & (end_times != NO_END_TIME) & (end_times <= times))
        return closed

    # ------------------------------------------------------------ substreams come and go

    def join(self, rows: Rows) -> None:
        """Rows have come to be known, which the fronts have not closed for all groups."""
        if len(self._times) > 1:
            self._make_room()
            self._several[rows] = False
        if not self._fronts:
            return
        for place, times in enumerate(self._times):
            times.join(rows)
            if len(self._times) > 1:
                self._pass(rows[self._closed_by_times(rows, self._fronts.groups[place])], place)

    def leave(self, rows: Rows) -> None:
        """Rows have ended on every segment."""
        if self._closes:
            for id_ in self._accounts.ids_of(rows).tolist():
                self._closes.pop(id_, None)
        numbers = self._accounts.scope[rows].tolist()
        for times in self._times:
            times.leave(numbers)

    def forget_scope(self, number: int) -> None:
        """A scope has no substream left; its number will stand for another."""
        for times in self._times:
            times.forget_scope(number)

    # ------------------------------------------------------------ promises

    def close(self, row: int, front: str) -> None:
        """A front (or the sole owner) closes a known row by name."""
        accounts = self._accounts
        if accounts.flags[row] & ENDED:
            return
        if front == SOLE_OWNER:
            accounts.life.close_by_sole_owner(row)
        else:
            self._closes.setdefault(accounts.id_of(row), {})[front] = None
            self._watch(row)
        self._review(row)

    def is_closed_by_name(self, id_: int, front: str) -> bool:
        """Whether a front has closed a substream by name."""
        return front in self._closes.get(id_, ())

    def reopen(self, row: int, front: str) -> None:
        """A close by name is taken back."""
        id_ = self._accounts.id_of(row)
        if front == SOLE_OWNER:
            self._accounts.life.reopen_by_sole_owner(row)
        else:
            self._closes[id_].pop(front, None)
            if not self._closes[id_]:
                del self._closes[id_]
        self._review(row)

    def _watch(self, row: int) -> None:
        for times in self._times:
            times.watch(row)

    def expect(self, pledge: ExpectOf) -> bool:
        """A front expects so many elements of a known row on a segment.

        Returns:
            whether another number stands now than before.
        """
        changed = self.expectations.give(pledge)
        if changed:
            self._watch(pledge.row)
            self.look_at([pledge.row])
        return changed

    def look_at(self, rows: Iterable[int]) -> None:
        """Elements of rows of which some are expected were added or taken out, or other numbers stand."""
        for row in rows:
            if not self._accounts.flags[row] & ENDED:
                self._review(row)
                self._counted.add(self._accounts.id_of(row))

    def exceeded(self) -> list[tuple[int, int, int]]:
        """News of (row, segment, number expected), in evaluation order, where more was sent than expected."""
        if not self._counted:
            return []
        accounts = self._accounts
        rows = accounts.rows_of(np.array(sorted(self._counted), np.uint64))
        self._counted.clear()
        rows = rows[rows >= 0]
        rows = accounts.in_order(rows[accounts.life.is_open(rows)])
        found = []
        for row in rows.tolist():
            id_ = accounts.id_of(row)
            for segment in sorted({segment for segment, _ in self.expectations.of(id_)}):
                expected = self.expectations.total(id_, segment) or 0
                if accounts.reason(row, segment) or accounts.sent(row, segment) <= expected:
                    continue
                if self._complete(row, segment) and self.expectations.announces(id_, segment, expected):
                    found.append((row, segment, expected))
        return found

    def _review(self, row: int) -> None:
        """Find anew for which groups a row is closed."""
        before = self._closed(np.array([row]))[0]
        for place, closed in enumerate(self._closed_for(row)):
            if closed != before[place]:
                self._mark(np.array([row]), place, closed)

    def _closed_for(self, row: int) -> list[bool]:
        if self._accounts.flags[row] & SOLE:
            return [True] * len(self._times)
        return [bool(group.members) and not self._waiting_for(row, group) for group in self._fronts.groups]

    def _mark(self, rows: Rows, place: int, closed: bool) -> None:
        self._set(rows, place, closed)
        self._dirty.append(rows)
        self._turned.append(rows * len(self._times) + place)

    def _set(self, rows: Rows, place: int, closed: bool) -> None:
        life = self._accounts.life
        if len(self._times) > 1:
            self._make_room()
            self._several[rows, place] = closed
            some = self._several[rows].any(axis=1)
            life.close(rows[some])
            life.reopen(rows[~some])
        elif closed:
            life.close(rows)
        else:
            life.reopen(rows)

    def note(self) -> None:
        """Date what has been closed or is open again, and take back its stalls.

        Asked after each thing that happens at once: the promises of an epoch, a front's turn, an epoch's revocation.
        What one promise of an epoch closes and the next opens again has not changed.
        """
        if not self._turned:
            return
        turned = self._turned[0]
        if len(self._turned) > 1:
            turned, times = np.unique(np.concatenate(self._turned), return_counts=True)
            turned = turned[times % 2 == 1]
        self._turned.clear()
        self._date(turned // len(self._times) if len(self._times) > 1 else turned)

    def _date(self, rows: Rows) -> None:
        # It may stall from now on, however long ago its last entry was.
        self._accounts.changed[rows] = self.now
        self._accounts.life.touch(rows)

    def raise_frontier(self, front: Front, scope: str | None, time: int) -> None:
        """A front has promised a frontier, for a scope or for every one."""
        before, after = self._fronts.promise(front, scope, time)
        if after <= before:
            return
        for place in front.groups:
            self._times[place].advance(scope, before, after, self._fronts.scoped)
            several = len(self._fronts.groups[place].members) > 1
            if scope is None and several and (self._closes or self.expectations):
                self._times[place].advance_named(before, after)

    def commit_frontier(self, front: Front, scope: str | None, time: int) -> None:
        """Nobody can take that back any more."""
        front.committed[scope] = max(time, front.committed.get(scope, UNSET))
        for place in front.groups:
            self._fronts.groups[place].raise_floors([scope])

    def _pass(self, rows: Rows, place: int) -> None:
        """Close for a group those of open rows that are not yet, since all of its fronts' times have passed them."""
        rows = rows[~self._closed(rows)[:, place]] if rows.size else rows
        if rows.size and self.expectations:
            counted = np.array([id_ in self.expectations for id_ in self._accounts.ids_of(rows).tolist()], np.bool_)
            for row in rows[counted].tolist():
                self._review(row)
            rows = rows[~counted]
        if rows.size:
            self._mark(rows, place, True)

    def finish(self, front: Front) -> None:
        """A front has finished."""
        if front.finished:
            return
        front.finished = True
        groups = [self._fronts.groups[place] for place in front.groups]
        if any(group.has_idle for group in groups):
            self.fronts_changed()  # the last that is awake may have finished: then the idle ones are waited for
            return
        for place, group in zip(front.groups, groups, strict=True):
            if group.limit(None) == EVERYTHING:
                self._close_all(place)
            self._times[place].advance(None, 0, 0, self._fronts.scoped)
        self._review_named()

    def commit_finish(self, front: Front) -> None:
        """Nobody can take that back any more."""
        if not front.finish_committed:
            front.finish_committed = True
            for place in front.groups:
                self._fronts.groups[place].raise_floors([None])

    def _close_all(self, place: int) -> None:
        """All fronts of a group have finished: the untimed ones are closed, too, which stand in no index."""
        self._finished[place] = True
        rows = self._accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
        rows = rows[~self._closed(rows)[:, place]]
        if rows.size:
            self._mark(rows, place, True)

    def fronts_changed(self) -> None:
        """Fronts have finished, turned idle or awake, or had promises withdrawn: look at all anew."""
        self._fronts.changed()
        self._fronts.raise_floors()
        for place, group in enumerate(self._fronts.groups):
            if group.limit(None) == EVERYTHING:
                if not self._finished[place]:
                    self._close_all(place)
            elif self._finished[place]:
                self._finished[place] = False
                for row in self._accounts.in_use(int(KNOWN), int(KNOWN | ENDED)).tolist():
                    self._review(row)
            self._times[place].look_anew()
        self._review_named()

    def _review_named(self) -> None:
        """Look anew at what was closed by name, or is expected."""
        if self.expectations:
            self.look_at(self.counted_rows().tolist())
        if self._closes:
            ids = np.array(list(self._closes), np.uint64)
            for row in self._accounts.rows_of(ids).tolist():
                self._review(row)

    def counted_rows(self) -> Rows:
        """The open rows of which any front expects elements."""
        if not self.expectations:
            return np.empty(0, np.int64)
        rows = self._accounts.rows_of(np.array(self.expectations.ids(), np.uint64))
        found: Rows = rows[self._accounts.life.is_open(rows)]
        return found

    # ------------------------------------------------------------ other fronts, or other segments that they feed

    def closed_by_name_by_all(self, segments: Iterable[int]) -> list[int]:
        """The ids that every unfinished front that reaches any of some segments has closed by name; none, if no
        unfinished front reaches one of them."""
        places = {self._fronts.group_of[segment] for segment in segments}
        waited = [[front.name for front in self._fronts.groups[place].unfinished()] for place in places]
        if not waited or not all(waited):
            return []
        names = {name for some in waited for name in some}
        return [id_ for id_, closes in self._closes.items() if names <= closes.keys()]

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

    def closed_now(self) -> tuple[Rows, NDArray[np.bool_]]:
        """The open rows, and for each and each segment whether it is closed: what `regroup` compares with."""
        rows = self._accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
        return rows, self.closed_on(rows)

    def adopt_close(self, id_: int, name: str) -> None:
        """An added front has closed what all the others had; `regroup` follows."""
        self._closes.setdefault(id_, {})[name] = None

    def remove_front(self, name: str) -> None:
        """A front is waited for no more; `regroup` follows."""
        for closes in self._closes.values():
            closes.pop(name, None)

    def regroup(self, before: tuple[Rows, NDArray[np.bool_]] | None = None) -> None:
        """Fronts have come or gone, or feed other segments, and their groups are others: find all anew.

        Args:
            before: what `closed_now` gave before that; None: nothing is news.
        """
        self._index()
        accounts = self._accounts
        rows = accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
        self._turned.clear()
        ids = np.array(sorted({*self._closes, *self.expectations.ids()}), np.uint64)
        named = accounts.rows_of(ids)
        named = named[np.isin(named, rows)]
        one_by_one = np.union1d(named, rows[accounts.life.are(rows, SOLE)])
        for place, group in enumerate(self._fronts.groups):
            self._finished[place] = bool(group.members) and group.limit(None) == EVERYTHING
            closed = (
                self._closed_by_times(rows, group) if group.members and rows.size else np.zeros(len(rows), np.bool_)
            )
            self._set(rows[closed], place, True)
            self._set(rows[~closed], place, False)
            if self._fronts:
                self._times[place].join(rows)
        for row in one_by_one.tolist():
            for place, is_closed in enumerate(self._closed_for(row)):
                self._set(np.array([row]), place, is_closed)
        for row in named.tolist():
            self._watch(row)
        self._counted |= {accounts.id_of(row) for row in self.counted_rows().tolist()}
        if before is not None and rows.size:
            turned = rows[(self.closed_on(rows) != before[1]).any(axis=1)]
            self._dirty.append(turned)
            self._date(turned)
