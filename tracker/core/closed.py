"""Closed substreams: what the fronts' promises mean for the substreams that are known, and whom each waits for.

A substream is closed for a group of segments, those that wait for the same fronts; most jobs have one group. An index
for each group (`timeindex`) finds the substreams that the fronts' times close. Only those that a few promises by name,
or numbers, close are kept one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tracker.contract.status import SOLE_OWNER
from tracker.contract.values import NO_END_TIME, Reason

from .accounts import Accounts, Changes
from .cells import Rows, extended
from .expectations import Expectations, Key
from .fronts import EVERYTHING, UNSET, Front, FrontGroup, Fronts
from .lifecycle import CLOSED, ENDED, SOLE, STALLED
from .producers import ExpectOf
from .timeindex import TimeIndex


class Waiting:
    """Fronts for which a job's substreams wait.

    Attributes:
        closes: by id, the fronts that closed it by name, in order.
        given_up: by id, the reason for which no front is asked any more (`timers`).
        expectations: the numbers of elements that fronts have given.
        counted: ids of which more may have been sent than expected, since `exceeded` was asked.
    """

    def __init__(self, accounts: Accounts, fronts: Fronts) -> None:
        self._accounts = accounts
        self._fronts = fronts
        self.closes: dict[int, dict[str, None]] = {}
        self.given_up: dict[int, Reason] = {}
        self.expectations = Expectations(accounts)
        self.counted: set[int] = set()

    # ------------------------------------------------------------ which fronts

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
        enough = self.complete(row, segment) and accounts.sent(row, segment) >= expected
        return enough and not self.expectations.differs(accounts.id_of(row), segment)

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
        """Return whether fewer or others were sent than a front and the others expect, also where the row has ended."""
        id_ = self._accounts.id_of(row)
        return any(
            self._accounts.sent(row, segment) < (self.expectations.total(id_, segment) or 0)
            or self.expectations.differs(id_, segment)
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
        """Return new (row, segment, number expected), in evaluation order, where more was sent than expected."""
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
        """Return (row, segment) where what all unfinished fronts that feed the segment expect was sent.

        There is none where no such front is left.
        """
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


class ClosedSet:
    """Set of a job's rows that are closed, as the fronts have it.

    A row has the flag ``CLOSED`` if it is closed for any group; which ones is kept beside where there are several.
    The next evaluation looks at rows that become closed, or are again not; this counts as a change of the substream
    once `note` finds it so.
    """

    def __init__(self, accounts: Accounts, fronts: Fronts, changes: Changes) -> None:
        self._accounts = accounts
        self._fronts = fronts
        self._changes = changes
        #: (row, group) closed, or opened again, since `note`; none twice in a part
        self._closed_changed: list[Rows] = []
        self.reopened = False  #: something was closed and is not any more, since that was set back
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
        """Return, for each row and segment, whether it is closed."""
        closed: NDArray[np.bool_] = self.closed_groups_of(rows)[:, self._fronts.group_of]
        return closed

    def closed_somewhere_only(self, rows: Rows) -> NDArray[np.bool_] | None:
        """Return the same where it depends on the segment; None: what is closed is closed for all of them."""
        return None if len(self._times) == 1 else self.closed_on(rows)

    def closed_groups_of(self, rows: Rows) -> NDArray[np.bool_]:
        """Return, for each row and group, whether it is closed."""
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
        if len(self._several) < len(self._accounts.flags):
            self._several = extended(self._several, len(self._accounts.flags))

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

    # ------------------------------------------------------------ substreams come and go

    def join(self, rows: Rows) -> None:
        """Add rows that have come to be known, which the fronts have not closed for all groups."""
        if len(self._times) > 1:
            self._make_room()
            self._several[rows] = False
        if not self._fronts:
            return
        for place, times in enumerate(self._times):
            times.join(rows)
            if len(self._times) > 1:
                self._pass(rows[self.waiting.passed(rows, self._fronts.groups[place].watermark)], place)

    def leave(self, rows: Rows) -> None:
        """Forget rows that have ended on every segment."""
        if self.waiting.closes or self.waiting.given_up:
            for id_ in self._accounts.ids_of(rows).tolist():
                self.waiting.closes.pop(id_, None)
                self.waiting.given_up.pop(id_, None)
        numbers = self._accounts.scope[rows].tolist()
        for times in self._times:
            times.leave(numbers)

    def forget_scope(self, number: int) -> None:
        """Forget a scope that has no substream left; its number will be used again."""
        for times in self._times:
            times.forget_scope(number)

    # ------------------------------------------------------------ promises

    def close(self, row: int, front: str) -> None:
        """Close a known row by name, for a front or the sole owner."""
        accounts = self._accounts
        if accounts.flags[row] & ENDED:
            return
        if front == SOLE_OWNER:
            accounts.life.mark(row, SOLE)
        else:
            self.waiting.closes.setdefault(accounts.id_of(row), {})[front] = None
            self._watch(row)
        self._review(row)

    def give_up(self, rows: Rows, reason: Reason) -> None:
        """Close open rows in place of all fronts."""
        self._accounts.life.mark(rows, SOLE)
        self.waiting.given_up |= dict.fromkeys(self._accounts.ids_of(rows).tolist(), reason)
        for place in range(len(self._times)):
            self._close(rows, place)

    def closed_by_promises(self, row: int, segment: int) -> bool:
        """Return whether the fronts have closed a row for a segment, and not only because a drain stopped them."""
        if not self._closed_by_fronts(row, self._fronts.group(segment)):
            return False
        return not (self.waiting.drains and self.waiting.cut_short(row, segment))

    def reopen(self, row: int, front: str) -> None:
        """Take a close by name back."""
        id_ = self._accounts.id_of(row)
        if front == SOLE_OWNER:
            if id_ not in self.waiting.given_up:
                self._accounts.life.unmark(row, SOLE)
        else:
            self.waiting.closes[id_].pop(front, None)
            if not self.waiting.closes[id_]:
                del self.waiting.closes[id_]
        self._review(row)

    def _watch(self, row: int) -> None:
        for times in self._times:
            times.watch(row)

    def expect(self, pledge: ExpectOf) -> bool:
        """Note that a front expects so many elements of a known row on a segment.

        Returns:
            whether the number has changed.
        """
        changed = self.expectations.give(pledge)
        if changed:
            self._watch(pledge.row)
            self.look_at([pledge.row])
        return changed

    def identify(self, row: int, key: Key, xor: int) -> None:
        """Add the identities of elements that a front has sent of a known row, or take them out again."""
        id_ = self._accounts.id_of(row)
        self.expectations.identify(id_, key, xor)
        if id_ in self.expectations:
            self.look_at([row])

    def look_at(self, rows: Iterable[int]) -> None:
        """Look again at expected rows of which elements were added or taken out, or other numbers stand."""
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
        return [self._closed_by_fronts(row, group) for group in self._fronts.groups]

    def _closed_by_fronts(self, row: int, group: FrontGroup) -> bool:
        return bool(group.members) and not self.waiting.fronts_of(row, group)

    def _close(self, rows: Rows, place: int) -> None:
        """Close for a group those of open rows that are not yet."""
        rows = rows[~self.closed_groups_of(rows)[:, place]]
        if rows.size:
            self._mark(rows, place, True)

    def _mark(self, rows: Rows, place: int, closed: bool) -> None:
        self._set(rows, place, closed)
        self._changes.look_at(rows)
        self._closed_changed.append(rows * len(self._times) + place)

    def _set(self, rows: Rows, place: int, closed: bool) -> None:
        life = self._accounts.life
        self.reopened |= not closed
        if len(self._times) > 1:
            self._make_room()
            self._several[rows, place] = closed
            some = self._several[rows].any(axis=1)
            life.mark(rows[some], CLOSED)
            life.unmark(rows[~some], CLOSED)
        elif closed:
            life.mark(rows, CLOSED)
        else:
            life.unmark(rows, CLOSED)

    def note(self) -> None:
        """Date what has been closed or is open again, and take back its stalls.

        Asked after each thing that happens at once: the promises of an epoch, a front's turn, an epoch's revocation.
        A row that one promise of an epoch closes and the next opens again has not changed.
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
        self._accounts.life.unmark(rows, STALLED)

    def raise_frontier(self, front: Front, scope: str | None, time: int) -> None:
        """Raise a front's promised frontier, for a scope or for every one."""
        before, after = self._fronts.promise(front, scope, time)
        if after <= before:
            return
        for place in front.groups:
            self._times[place].rise(scope, before, after, self._fronts.scoped)
            several = len(self._fronts.groups[place].members) > 1
            if scope is None and several and (self.waiting.closes or self.expectations):
                self._times[place].rise_named(before, after)

    def commit_frontier(self, front: Front, scope: str | None, time: int) -> None:
        """Commit a frontier: nobody can take that back any more."""
        front.committed[scope] = max(time, front.committed.get(scope, UNSET))
        for place in front.groups:
            self._fronts.groups[place].raise_committed([scope])

    def _pass(self, rows: Rows, place: int) -> None:
        """Close for a group those of open rows that are not yet, since all of its fronts' times have passed them."""
        rows = rows[~self.closed_groups_of(rows)[:, place]] if rows.size else rows
        if rows.size and self.expectations:
            counted = np.array([id_ in self.expectations for id_ in self._accounts.ids_of(rows).tolist()], np.bool_)
            for row in rows[counted].tolist():
                self._review(row)
            rows = rows[~counted]
        if rows.size:
            self._mark(rows, place, True)

    def finish(self, front: Front) -> None:
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
        """Commit a front's finish: nobody can take that back any more."""
        if not front.finish_committed:
            front.finish_committed = True
            for place in front.groups:
                self._fronts.groups[place].raise_committed([None])

    def _close_all(self, place: int) -> None:
        """Close what is left of a group whose fronts have all finished: untimed rows, too, which stand in no index."""
        self._all_finished[place] = True
        self._close(self._accounts.open_rows(), place)

    def fronts_changed(self) -> None:
        """Look at everything again: fronts have finished, turned idle or awake, or had promises withdrawn."""
        self._fronts.changed()
        self._fronts.raise_committed()
        for place, group in enumerate(self._fronts.groups):
            if group.watermark(None) == EVERYTHING:
                if not self._all_finished[place]:
                    self._close_all(place)
            elif self._all_finished[place]:
                self._all_finished[place] = False
                for row in self._accounts.open_rows().tolist():
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
        rows = self._accounts.open_rows()
        return rows, self.closed_on(rows)

    def regroup(self, before: tuple[Rows, NDArray[np.bool_]] | None = None) -> None:
        """Find everything again: fronts have come or gone, or feed other segments, and their groups are others.

        Args:
            before: what `closed_now` gave before that; None: nothing is news.
        """
        self._index()
        accounts = self._accounts
        rows = accounts.open_rows()
        self._closed_changed.clear()
        ids = np.array(sorted({*self.waiting.closes, *self.expectations.ids()}), np.uint64)
        named = accounts.rows_of(ids)
        named = named[np.isin(named, rows)]
        one_by_one = np.union1d(named, rows[accounts.life.are(rows, SOLE)])
        for place, group in enumerate(self._fronts.groups):
            self._all_finished[place] = bool(group.members) and group.watermark(None) == EVERYTHING
            closed = np.zeros(len(rows), np.bool_)
            if group.members and rows.size:
                closed = self.waiting.passed(rows, group.watermark)
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
