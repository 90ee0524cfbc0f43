"""Closed substreams: what the fronts' promises mean for the substreams that are known.

A substream is closed for a group of segments, those that wait for the same fronts; most jobs have one group. What the
fronts' times close is found by an index for each group (`timeindex`). Only what a few promises by name, or numbers,
close is kept one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tracker.contract.values import NO_END_TIME

from .accounts import Accounts, Changes, Rows
from .fronts import EVERYTHING, UNSET, Front, FrontGroup, Fronts
from .lifecycle import CLOSED, ENDED, KNOWN, SOLE
from .producers import ExpectOf
from .timeindex import TimeIndex
from .waiting import Waiting

SOLE_OWNER = ""  #: in the place of a front: closed by the caller as the only source


class ClosedSet:
    """Set of a job's rows that are closed, as the fronts have it.

    A row has the flag ``CLOSED`` if it is closed for any group; which ones is kept beside where there are several.
    What becomes closed, or is again not, is looked at by the next evaluation; it counts as a
    change of the substream once `note` finds it so.

    Args:
        fronts: the job's, in their groups.
        changes: the job's, for the next evaluation.
    """

    def __init__(self, accounts: Accounts, fronts: Fronts, changes: Changes) -> None:
        self._accounts = accounts
        self._fronts = fronts
        self._changes = changes
        self._closed_changed: list[
            Rows
        ] = []  # (row, group) closed, or opened again, since `note`; none twice in a part
        self.waiting = Waiting(accounts, fronts)
        self.expectations = self.waiting.expectations
        self._index()

    def _index(self) -> None:
        """Begin with the groups as they are now, and no rows."""
        count = len(self._fronts.groups)
        self._several: NDArray[np.bool_] = np.zeros((0, count), np.bool_)  # by row and group, where there are several
        self._all_finished = [False] * count  # all fronts have, and everything known has been closed for it
        self._times = [
            TimeIndex(self._accounts, group, lambda rows, place=place: self._pass(rows, place), self._review)  # type: ignore[misc]
            for place, group in enumerate(self._fronts.groups)
        ]

    # ------------------------------------------------------------ asking

    def is_closed(self, scope: str, end_time: int, segment: int) -> bool:
        """Return whether the fronts have closed a substream that is not known for a segment, or it lies at or below the
        committed watermark."""
        return self._is_closed(scope, end_time, self._fronts.group(segment))

    def _is_closed(self, scope: str, end_time: int, group: FrontGroup) -> bool:
        watermark = group.watermark(scope)
        if end_time == NO_END_TIME:
            return watermark == EVERYTHING
        return end_time <= watermark or end_time <= group.committed_watermarks.read(scope)

    def closed_groups(self, scope: str, end_time: int) -> list[bool]:
        """Return the same for each group."""
        return [self._is_closed(scope, end_time, group) for group in self._fronts.groups]

    def groups_of(self, front: str) -> list[int]:
        """Return the groups that wait for a front; the sole owner closes for all."""
        return list(range(len(self._fronts.groups))) if front == SOLE_OWNER else self._fronts.by_name[front].groups

    def closed_on(self, rows: Rows) -> NDArray[np.bool_]:
        """For each row and segment, whether it is closed."""
        closed: NDArray[np.bool_] = self._closed(rows)[:, self._fronts.group_of]
        return closed

    def closed_groups_of(self, rows: Rows) -> NDArray[np.bool_]:
        """For each row and group, whether it is closed."""
        return self._closed(rows)

    def closed_somewhere_only(self, rows: Rows) -> NDArray[np.bool_] | None:
        """Return the same where it depends on the segment; None: what is closed is closed for all of them."""
        return None if len(self._times) == 1 else self.closed_on(rows)

    def _closed(self, rows: Rows) -> NDArray[np.bool_]:
        """For each row and group."""
        if len(self._times) == 1:
            one: NDArray[np.bool_] = (self._accounts.flags[rows] & CLOSED).astype(np.bool_).reshape(-1, 1)
            return one
        self._make_room()
        closed: NDArray[np.bool_] = self._several[rows]
        return closed

    def _stands_closed(self, row: int, place: int) -> bool:
        """Return the same for one row and one group."""
        if len(self._times) == 1:
            return bool(self._accounts.flags[row] & CLOSED)
        self._make_room()
        return self._several.item(row, place)

    def _make_room(self) -> None:
        more = len(self._accounts.flags) - len(self._several)
        if more > 0:
            self._several = np.concatenate([self._several, np.zeros((more, len(self._times)), np.bool_)])

    def closed_by_drain(self, row: int, segment: int) -> bool:
        """Return whether only fronts that finished in the drain under way have closed a row for a segment."""
        if self._accounts.flags[row] & SOLE or not self._stands_closed(row, self._fronts.group_of[segment]):
            return False
        return self.waiting.cut_short(row, segment)

    def closed_by_drain_each(self, rows: Rows) -> NDArray[np.bool_]:
        """Return the same for each of some rows of which no number is expected, and each segment."""
        groups = np.stack([self.waiting.drained(rows, group) for group in self._fronts.groups], axis=1)
        by_drain: NDArray[np.bool_] = groups[:, self._fronts.group_of] & self.closed_on(rows)
        by_drain[self._accounts.life.are(rows, SOLE)] = False
        return by_drain

    def _closed_by_times(self, rows: Rows, group: FrontGroup) -> NDArray[np.bool_]:
        """Return which rows the times that the fronts of a group have promised close, or their finishes."""
        return self.waiting.passed(rows, group.watermark)

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
        """Forget rows that have ended on every segment."""
        if self.waiting.closes:
            for id_ in self._accounts.ids_of(rows).tolist():
                self.waiting.closes.pop(id_, None)
        numbers = self._accounts.scope[rows].tolist()
        for times in self._times:
            times.leave(numbers)

    def forget_scope(self, number: int) -> None:
        """Forget a scope that has no substream left; its number will be used again."""
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
            self.waiting.closes.setdefault(accounts.id_of(row), {})[front] = None
            self._watch(row)
        self._review(row)

    def reopen(self, row: int, front: str) -> None:
        """A close by name is taken back."""
        id_ = self._accounts.id_of(row)
        if front == SOLE_OWNER:
            self._accounts.life.reopen_by_sole_owner(row)
        else:
            self.waiting.closes[id_].pop(front, None)
            if not self.waiting.closes[id_]:
                del self.waiting.closes[id_]
        self._review(row)

    def _watch(self, row: int) -> None:
        for times in self._times:
            times.watch(row)

    def expect(self, pledge: ExpectOf) -> bool:
        """Return a front expects so many elements of a known row on a segment.

        Returns:
            whether the number has changed.
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
                self.waiting.counted.add(self._accounts.id_of(row))

    def _review(self, row: int) -> None:
        """Find again for which groups a row is closed."""
        for place, closed in enumerate(self._closed_for(row)):
            if closed != self._stands_closed(row, place):
                self._mark(np.array([row]), place, closed)

    def _closed_for(self, row: int) -> list[bool]:
        if self._accounts.flags[row] & SOLE:
            return [True] * len(self._times)
        return [bool(group.members) and not self.waiting.fronts_of(row, group) for group in self._fronts.groups]

    def _mark(self, rows: Rows, place: int, closed: bool) -> None:
        self._set(rows, place, closed)
        self._changes.look_at(rows)
        self._closed_changed.append(rows * len(self._times) + place)

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
        if not self._closed_changed:
            return
        changed = self._closed_changed[0]
        if len(self._closed_changed) > 1:
            changed, times = np.unique(np.concatenate(self._closed_changed), return_counts=True)
            changed = changed[times % 2 == 1]
        self._closed_changed.clear()
        self._date(changed // len(self._times) if len(self._times) > 1 else changed)

    def _date(self, rows: Rows) -> None:
        # It may stall from now on, however long ago its last entry was.
        self._accounts.changed[rows] = self._changes.now
        self._accounts.life.touch(rows)

    def raise_frontier(self, front: Front, scope: str | None, time: int) -> None:
        """A front has promised a frontier, for a scope or for every one."""
        before, after = self._fronts.promise(front, scope, time)
        if after <= before:
            return
        for place in front.groups:
            self._times[place].rise(scope, before, after, self._fronts.scoped)
            several = len(self._fronts.groups[place].members) > 1
            if scope is None and several and (self.waiting.closes or self.expectations):
                self._times[place].rise_named(before, after)

    def commit_frontier(self, front: Front, scope: str | None, time: int) -> None:
        """Nobody can take that back any more."""
        front.committed[scope] = max(time, front.committed.get(scope, UNSET))
        for place in front.groups:
            self._fronts.groups[place].raise_committed([scope])

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
            if group.watermark(None) == EVERYTHING:
                self._close_all(place)
            self._times[place].rise(None, 0, 0, self._fronts.scoped)
        self._review_named()

    def commit_finish(self, front: Front) -> None:
        """Nobody can take that back any more."""
        if not front.finish_committed:
            front.finish_committed = True
            for place in front.groups:
                self._fronts.groups[place].raise_committed([None])

    def _close_all(self, place: int) -> None:
        """All fronts of a group have finished: the untimed ones are closed, too, which stand in no index."""
        self._all_finished[place] = True
        rows = self._accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
        rows = rows[~self._closed(rows)[:, place]]
        if rows.size:
            self._mark(rows, place, True)

    def fronts_changed(self) -> None:
        """Fronts have finished, turned idle or awake, or had promises withdrawn: look at everything again."""
        self._fronts.changed()
        self._fronts.raise_committed()
        for place, group in enumerate(self._fronts.groups):
            if group.watermark(None) == EVERYTHING:
                if not self._all_finished[place]:
                    self._close_all(place)
            elif self._all_finished[place]:
                self._all_finished[place] = False
                for row in self._accounts.in_use(int(KNOWN), int(KNOWN | ENDED)).tolist():
                    self._review(row)
            self._times[place].look_anew()
        self._review_named()

    def _review_named(self) -> None:
        """Look again at what was closed by name, or is expected."""
        if self.expectations:
            self.look_at(self.waiting.counted_rows().tolist())
        if self.waiting.closes:
            ids = np.array(list(self.waiting.closes), np.uint64)
            for row in self._accounts.rows_of(ids).tolist():
                self._review(row)

    # ------------------------------------------------------------ other fronts, or other segments that they feed

    def closed_now(self) -> tuple[Rows, NDArray[np.bool_]]:
        """Return the open rows, and for each and each segment whether it is closed: what `regroup` compares with."""
        rows = self._accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
        return rows, self.closed_on(rows)

    def regroup(self, before: tuple[Rows, NDArray[np.bool_]] | None = None) -> None:
        """Fronts have come or gone, or feed other segments, and their groups are others: find everything again.

        Args:
            before: what `closed_now` gave before that; None: nothing is news.
        """
        self._index()
        accounts = self._accounts
        rows = accounts.in_use(int(KNOWN), int(KNOWN | ENDED))
        self._closed_changed.clear()
        ids = np.array(sorted({*self.waiting.closes, *self.expectations.ids()}), np.uint64)
        named = accounts.rows_of(ids)
        named = named[np.isin(named, rows)]
        one_by_one = np.union1d(named, rows[accounts.life.are(rows, SOLE)])
        for place, group in enumerate(self._fronts.groups):
            self._all_finished[place] = bool(group.members) and group.watermark(None) == EVERYTHING
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
        self.waiting.counted |= {accounts.id_of(row) for row in self.waiting.counted_rows().tolist()}
        if before is not None and rows.size:
            changed = rows[(self.closed_on(rows) != before[1]).any(axis=1)]
            self._changes.look_at(changed)
            self._date(changed)
