"""Evaluation: which closed substreams have ended on which segments, and in what order these ends are announced.

A substream has ended on a segment when it is closed and its accumulators balance there and on everything upstream.
Only rows that have changed are looked at; the caller passes them. Rows that balance, but wait for others by the job's
ordering, stay in heaps until the least open end time reaches them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tracker.contract.events import Advanced, Body, Ended
from tracker.contract.values import NO_END_TIME, Ordering, Reason

from .accounts import BY_DRAIN, Accounts
from .cells import Rows
from .closed import ClosedSet
from .fronts import UNSET
from .graph import Graph
from .lifecycle import AWAITING_RECOMMIT, CLOSED, ENDED, KNOWN, PARTLY_ENDED
from .log import EndColumns

NONE_OPEN = 2**63  #: above every end time

_LONG = 2000  # a list of so many times is cut in two


class _Sorted:
    """Distinct numbers in order, in lists of moderate length."""

    __slots__ = ("_firsts", "_lists")

    def __init__(self) -> None:
        self._lists: list[list[int]] = []
        self._firsts: list[int] = []  # the lists' first numbers, or lower ones

    def add(self, number: int) -> None:
        """Add a number that is not there."""
        if not self._lists:
            self._lists.append([number])
            self._firsts.append(number)
            return
        at = max(0, bisect_right(self._firsts, number) - 1)
        numbers = self._lists[at]
        insort(numbers, number)
        self._firsts[at] = min(self._firsts[at], number)
        if len(numbers) > _LONG:
            half = len(numbers) // 2
            self._lists.insert(at + 1, numbers[half:])
            self._firsts.insert(at + 1, numbers[half])
            del numbers[half:]

    def remove(self, number: int) -> None:
        """Remove a number that is there."""
        at = bisect_right(self._firsts, number) - 1
        numbers = self._lists[at]
        del numbers[bisect_left(numbers, number)]
        if not numbers:
            del self._lists[at], self._firsts[at]

    def least_above(self, number: int) -> int | None:
        """Return the least that is higher than a number."""
        at = max(0, bisect_right(self._firsts, number) - 1)
        for numbers in self._lists[at : at + 2]:
            place = bisect_right(numbers, number)
            if place < len(numbers):
                return numbers[place]
        return None


class OpenTimes:
    """A multiset of end times for each segment, asked only for its least.

    Substreams join with their end time on all segments at once and leave segment by segment. A time is kept once,
    whatever the number of segments, and what has left it by segment; so what is kept depends on what has ended.

    >>> times = OpenTimes(2)
    >>> times.join(20); times.join(10)
    >>> times.leave(0, 10)
    >>> times.least(0), times.least(1)
    (20, 10)
    """

    __slots__ = ("_departed", "_gone", "_joined", "_joins", "_left", "_owed", "_segments", "_times")

    def __init__(self, segments: int) -> None:
        self._segments = segments
        self._joined: defaultdict[int, int] = defaultdict(int)  # by end time: how many have joined
        self._owed: dict[int, int] = {}  # by end time: how often somebody has to leave yet, over all segments
        # By segment and end time: how many have left.
        self._left: defaultdict[int, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._gone: dict[int, int] = {}  # by segment: a time up to which all have left
        self._times = _Sorted()
        self._joins = 0  # how many have ever joined
        self._departed: defaultdict[int, int] = defaultdict(int)  # by segment: how many have ever left

    def __bool__(self) -> bool:
        return bool(self._joined)

    def join(self, end_time: int) -> None:
        """Add a substream, open on every segment."""
        self._joins += 1
        if end_time not in self._joined:
            self._times.add(end_time)
        self._joined[end_time] += 1
        self._owed[end_time] = self._owed.get(end_time, 0) + self._segments
        for segment, gone in self._gone.items():
            if end_time <= gone:
                self._gone[segment] = end_time - 1

    def leave(self, segment: int, end_time: int) -> None:
        """Remove a substream from a segment on which it has ended."""
        self._left[segment][end_time] += 1
        self._departed[segment] += 1
        self._owed[end_time] -= 1
        if not self._owed[end_time]:
            del self._owed[end_time], self._joined[end_time]
            self._times.remove(end_time)
            for counts in self._left.values():
                del counts[end_time]

    def open_on(self, segment: int) -> int:
        """Return how many are open on a segment."""
        return self._joins - self._departed.get(segment, 0)

    def least(self, segment: int) -> int:
        """Return the least open end time; ``NONE_OPEN`` if there is none."""
        left: dict[int, int] = self._left.get(segment, {})
        time = self._times.least_above(self._gone.get(segment, -NONE_OPEN - 1))
        while time is not None and left.get(time) == self._joined[time]:
            self._gone[segment] = time
            time = self._times.least_above(time)
        return NONE_OPEN if time is None else time


_FIRST_TIME, _LAST_TIME = -(2**63), 2**63 - 1
_ALL = -1  # in the place of a scope's number
_COMPLETE = Reason.COMPLETE.number
_FEW = 8  # up to so many rows are ended quicker one by one than by whole columns


class Completion:
    """Finder and announcer of the ends of a job's substreams.

    Args:
        announce: takes each event in its turn.
        announce_ends: takes ends on one segment as columns, in their turn, as the log does.
    """

    def __init__(
        self,
        graph: Graph,
        accounts: Accounts,
        closing: ClosedSet,
        ordering: Ordering,
        progress: bool,
        announce: Callable[[Body], None],
        announce_ends: Callable[[str, EndColumns], None],
    ) -> None:
        self._graph = graph
        self._accounts = accounts
        self._closing = closing
        self._ordering = ordering
        self._progress = progress
        self._announce = announce
        self._announce_ends = announce_ends
        self._drains = False  # whether ends may carry the mark that only a drain closed the substream
        self.advanced: dict[str, int] = {}  #: the last time announced, by segment; also of those that are no more
        self._times: dict[int, OpenTimes] = {}
        self._waiting: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # by segment and scope
        self._groups_changed: set[int] = set()  # scopes in which something ended out of order since the last evaluation
        open_rows = accounts.open_rows()
        self.join(open_rows)
        if self._keeps_times:
            some = open_rows[accounts.life.are(open_rows, PARTLY_ENDED)]
            places, segments = np.nonzero(accounts.cells.has_ended(some))
            for row, segment in zip(some[places].tolist(), segments.tolist(), strict=True):
                self._leave(row, segment)
            self._groups_changed.clear()

    # ------------------------------------------------------------ open end times

    @property
    def _keeps_times(self) -> bool:
        return self._progress or self._ordering is not Ordering.NONE

    def _groups(self, row: int) -> list[int]:
        """Return the multisets of end times in which a row counts."""
        groups = []
        if self._ordering is Ordering.SCOPE:
            groups.append(int(self._accounts.scope[row]))
        if self._progress or self._ordering is Ordering.GLOBAL:
            groups.append(_ALL)
        return groups

    def join(self, rows: Rows) -> None:
        """Add rows that have just opened."""
        if not self._keeps_times:
            return
        for row, end_time in zip(rows.tolist(), self._accounts.end_time[rows].tolist(), strict=True):
            if end_time == NO_END_TIME:
                continue
            for group in self._groups(row):
                if group not in self._times:
                    self._times[group] = OpenTimes(len(self._graph))
                self._times[group].join(end_time)

    def _leave(self, row: int, segment: int) -> None:
        if not self._keeps_times:
            return
        end_time = int(self._accounts.end_time[row])
        if end_time == NO_END_TIME:
            return
        for group in self._groups(row):
            times = self._times[group]
            times.leave(segment, end_time)
            self._groups_changed.add(group)
            if not times and group != _ALL:
                del self._times[group]

    def _leave_each(self, rows: Rows, left: NDArray[np.bool_]) -> None:
        """Remove rows from the segments chosen for each; nothing waits for these rows."""
        if not self._keeps_times:
            return
        timed = np.flatnonzero(self._accounts.end_time[rows] != NO_END_TIME)
        end_times = self._accounts.end_time[rows[timed]].tolist()
        groups: list[list[int]] = []
        if self._ordering is Ordering.SCOPE:
            groups.append(self._accounts.scope[rows[timed]].tolist())
        if self._progress or self._ordering is Ordering.GLOBAL:
            groups.append([_ALL] * len(timed))
        for segment in range(len(self._graph)):
            places = np.flatnonzero(left[timed, segment]).tolist()
            for of in groups:
                for place in places:
                    self._times[of[place]].leave(segment, end_times[place])
        for group in {group for of in groups for group in of}:
            if group != _ALL and not self._times[group]:
                del self._times[group]

    # ------------------------------------------------------------ what waits for others

    def earlier(self, row: int) -> Rows:
        """Find the open rows for which a row's end waits by the job's ordering, and by nothing else.

        A scan of the end times that are in use, not for reports; and only if the row waits.

        Returns:
            by end time, and then by creation.
        """
        accounts = self._accounts
        if self._ordering is Ordering.NONE or not self._eligible(np.array([row])).size:
            return np.empty(0, np.int64)
        group = _ALL if self._ordering is Ordering.GLOBAL else int(accounts.scope[row])
        end_time = int(accounts.end_time[row])
        rows, endable = self._endable(np.array([row]))
        segments = [
            segment
            for segment in (np.flatnonzero(endable[0]).tolist() if rows.size and end_time != NO_END_TIME else ())
            if end_time > self._times[group].least(segment)
        ]
        if not segments:
            return np.empty(0, np.int64)
        rows = accounts.open_rows()
        rows = rows[accounts.end_time[rows] < end_time]  # a row without one has the highest there is
        if self._ordering is Ordering.SCOPE:
            rows = rows[accounts.scope[rows] == group]
        rows = rows[~accounts.cells.has_ended(rows)[:, segments].all(axis=1)]
        in_order: Rows = rows[np.lexsort((accounts.ids_of(rows), accounts.end_time[rows]))]
        return in_order

    # ------------------------------------------------------------ evaluation

    def _eligible(self, rows: Rows) -> Rows:
        flags = self._accounts.flags[rows]
        eligible: Rows = rows[(flags & (KNOWN | CLOSED | ENDED | AWAITING_RECOMMIT)) == (KNOWN | CLOSED)]
        return eligible

    def _endable(self, rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
        """Find which of some rows, closed for some segment, can end on which segments."""
        rows, endable = self._accounts.cells.endable(rows, self._graph)
        closed = self._closing.closed_somewhere_only(rows)
        if closed is None:
            return rows, endable
        endable &= closed
        some = endable.any(axis=1)
        return rows[some], endable[some]

    def evaluate(self, rows: Rows) -> list[int]:
        """Announce the ends among `rows`, each given once, and those that waited for them by the job's ordering.

        Returns:
            the rows that have ended on every segment by it.
        """
        rows = self._eligible(rows)
        if not rows.size and not self._groups_changed:
            return []
        rows, endable = self._endable(rows)
        if rows.size > 1:
            order = np.lexsort((self._accounts.ids_of(rows), self._accounts.end_time[rows]))
            rows, endable = rows[order], endable[order]
        self._drains = self._closing.waiting.drains
        if rows.size > _FEW and self._can_be_at_once(rows) and not self._any_waits(rows, endable):
            return self._evaluate_at_once(rows, endable)
        if self._ordering is not Ordering.NONE:
            return self._evaluate_in_order(rows, endable)
        pairs = ((int(rows[place]), segment) for segment, place in np.argwhere(endable.T).tolist())
        return [row for row, segment in pairs if self._end(row, segment)]

    def _can_be_at_once(self, rows: Rows) -> bool:
        """Return whether a row's `Ended` event is independent of how the row ended elsewhere just before."""
        given_up = self._closing.waiting.given_up
        if given_up and not given_up.keys().isdisjoint(self._accounts.ids_of(rows).tolist()):
            return False
        return not (self._drains and self._closing.expectations and self._closing.expectations.among(rows))

    def _any_waits(self, rows: Rows, endable: NDArray[np.bool_]) -> bool:
        """Return whether any row may have to wait for others by the job's ordering, or already waits.

        No row waits on a segment where all open rows end: then they end in the order in which they are given.
        """
        if self._ordering is Ordering.NONE:
            return False
        if self._waiting:
            return True
        accounts = self._accounts
        timed = np.flatnonzero(accounts.end_time[rows] != NO_END_TIME)
        groups = accounts.scope[rows[timed]] if self._ordering is Ordering.SCOPE else np.full(len(timed), _ALL)
        numbers, which = np.unique(groups, return_inverse=True)
        for segment in range(len(self._graph)):
            ending = np.bincount(which, endable[timed, segment], len(numbers)).tolist()
            for group, count in zip(numbers.tolist(), ending, strict=True):
                if 0 < count < self._times[group].open_on(segment):
                    return True
        return False

    def _evaluate_at_once(self, rows: Rows, endable: NDArray[np.bool_]) -> list[int]:
        accounts, closing = self._accounts, self._closing
        scopes = [accounts.scope_names[number] for number in accounts.scope[rows].tolist()]
        names = [accounts.names[row] for row in rows.tolist()]
        end_times = [None if time == NO_END_TIME else time for time in accounts.end_time[rows].tolist()]
        ids = accounts.ids_of(rows).tolist() if closing.expectations else []
        by_drain = closing.closed_by_drain_each(rows) if self._drains else None
        for number, segment in enumerate(self._graph.names):
            chosen = np.flatnonzero(endable[:, number])
            places = chosen.tolist()
            columns = EndColumns(
                [scopes[i] for i in places],
                [names[i] for i in places],
                [end_times[i] for i in places],
                accounts.cells.sent_each(rows[chosen], np.full(len(chosen), number)).tolist(),
                [False] * len(places) if by_drain is None else by_drain[chosen, number].tolist(),
                closing.expectations.totals([ids[i] for i in places], number) if ids else [None] * len(places),
            )
            self._announce_ends(segment, columns)
        if by_drain is None:
            everywhere = accounts.cells.mark_each(rows, endable, _COMPLETE)
        else:
            everywhere = np.zeros(len(rows), np.bool_)
            for how, reason in ((~by_drain, _COMPLETE), (by_drain, _COMPLETE | BY_DRAIN)):
                marked = endable & how
                some = np.flatnonzero(marked.any(axis=1))
                everywhere[some] |= accounts.cells.mark_each(rows[some], marked[some], reason)
        accounts.life.mark(rows, PARTLY_ENDED)
        if closing.expectations:
            closing.expectations.touched(rows)
        self._leave_each(rows, endable)
        done = rows[everywhere]
        accounts.life.end(done)
        ended: list[int] = done.tolist()
        return ended

    def _evaluate_in_order(self, rows: Rows, endable: NDArray[np.bool_]) -> list[int]:
        accounts, ended = self._accounts, []
        groups_changed, self._groups_changed = self._groups_changed, set()
        ids = accounts.ids_of(rows).tolist() if rows.size else []
        candidates = list(zip(accounts.end_time[rows].tolist(), ids, rows.tolist(), strict=True))
        for segment in range(len(self._graph)):
            # Sorted, so it is a heap.
            queue = [each for each, may in zip(candidates, endable[:, segment].tolist(), strict=True) if may]
            for group in groups_changed:
                self._release_waiting(segment, group, queue)
            while queue:
                end_time, id_, row = heapq.heappop(queue)
                if accounts.reason(row, segment):
                    continue
                group = _ALL if self._ordering is Ordering.GLOBAL else int(accounts.scope[row])
                if end_time != NO_END_TIME and end_time > self._times[group].least(segment):
                    heapq.heappush(self._waiting[segment, group], (end_time, id_))
                    continue
                if self._end(row, segment):
                    ended.append(row)
                self._release_waiting(segment, group, queue)
        self._groups_changed.clear()
        return ended

    def _release_waiting(self, segment: int, group: int, queue: list[tuple[int, int, int]]) -> None:
        """Move rows that no longer wait on a segment to `queue`."""
        waiting = self._waiting.get((segment, group))
        if not waiting:
            return
        times = self._times.get(group)
        while waiting and (times is None or waiting[0][0] <= times.least(segment)):
            end_time, id_ = heapq.heappop(waiting)
            row = self._accounts.row_of(id_)
            # While it waited, it may have changed, opened again, ended by force or been forgotten.
            if row >= 0 and self._can_end(row, segment):
                heapq.heappush(queue, (end_time, id_, row))
        if not waiting:
            del self._waiting[segment, group]

    def _can_end(self, row: int, segment: int) -> bool:
        rows, endable = self._endable(self._eligible(np.array([row])))
        return bool(rows.size) and bool(endable[0, segment])

    def _by_drain(self, row: int, segment: int) -> bool:
        """Return whether only a drain has closed a row for a segment; to be found before the row ends there."""
        return self._drains and self._closing.closed_by_drain(row, segment)

    def _reason(self, row: int, segment: int) -> Reason:
        """Return why a closed row ends on a segment once it balances there and upstream."""
        given_up = self._closing.waiting.given_up.get(self._accounts.id_of(row))
        if given_up is None:
            return Reason.COMPLETE
        if not self._closing.closed_by_promises(row, segment):
            return given_up
        # Elements that came too late upstream are missing here, too.
        upstream = np.flatnonzero(self._graph.upstream[segment])
        reasons = self._accounts.cells.reasons(np.full(len(upstream), row), upstream)
        return given_up if (reasons == given_up.number).any() else Reason.COMPLETE

    def _end(self, row: int, segment: int, forced: tuple[Reason, bool] | None = None) -> bool:
        """Announce that a row has ended on a segment; return whether it has now ended on all.

        Args:
            forced: the reason, and whether only a drain has closed the row; None: the row is closed and balances.
        """
        accounts = self._accounts
        reason, by_drain = forced or (self._reason(row, segment), self._by_drain(row, segment))
        end_time = int(accounts.end_time[row])
        expected = None
        if self._closing.expectations:
            expected = self._closing.expectations.total(accounts.id_of(row), segment)
            if expected is not None:
                self._closing.expectations.touched(np.array([row]))
        self._announce(
            Ended(
                self._graph.names[segment],
                accounts.scope_names[int(accounts.scope[row])],
                accounts.names[row],
                None if end_time == NO_END_TIME else end_time,
                accounts.sent(row, segment),
                reason,
                max(0, accounts.in_flight(row, segment)) if reason is not Reason.COMPLETE else 0,
                by_drain,
                expected,
            )
        )
        everywhere = accounts.cells.mark(row, segment, reason.number | BY_DRAIN if by_drain else reason.number)
        accounts.life.mark(row, PARTLY_ENDED)
        self._leave(row, segment)
        if everywhere:
            accounts.life.end(np.array([row]))
        return everywhere

    def force(self, rows: Sequence[int], reason: Reason) -> None:
        """End rows, in this order, at once on all their remaining segments, whatever is in flight."""
        self._drains = self._closing.waiting.drains
        cells = self._accounts.cells
        for part in cells.parts(np.array(rows, np.int64)):
            for row, has_ended in zip(part.tolist(), cells.has_ended(part).tolist(), strict=True):
                segments = [segment for segment, ended in enumerate(has_ended) if not ended]
                # Found before the first end: where a segment has ended, nothing is missing there any more.
                by_drain = [self._by_drain(row, segment) for segment in segments]
                for segment, only_drain in zip(segments, by_drain, strict=True):
                    self._end(row, segment, (reason, only_drain))
            cells.write_off(part)

    def announce_progress(self, watermarks: Sequence[int]) -> None:
        """Announce how far each segment has come.

        Args:
            watermarks: by segment, up to which end time all fronts that reach it have closed every scope.
        """
        if not self._progress:
            return
        times = self._times.get(_ALL)
        for segment, name in enumerate(self._graph.names):
            if watermarks[segment] == UNSET:
                continue
            watermark = min(watermarks[segment], _LAST_TIME)
            time = watermark if times is None else min(watermark, times.least(segment) - 1)
            last = self.advanced.get(name)
            # An event cannot name the time before the first, which an end time of INT64_MIN leaves.
            if time >= _FIRST_TIME and (last is None or time > last):
                self.advanced[name] = time
                self._announce(Advanced(name, time))
