"""Evaluation: which closed substreams have ended on which segments, and in what order that is said.

A substream has ended on a segment when it is closed and its accumulators balance there and on everything upstream.
Only rows that something has happened to are looked at: they are given. Those that balance but wait for others by the
job's ordering stand in heaps until the least open end time reaches them.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .accounts import CLOSED, DONE, ENDING, HELD, KNOWN, SENT, Accounts, Rows
from .commands import NO_END_TIME, Ordering
from .events import Advanced, Body, Ended, Reason
from .fronts import EVERYTHING, UNSET
from .graph import Graph
from .opentimes import OpenTimes

_LAST_TIME = 2**63 - 1
_ALL = -1  # in the place of a scope's number
_FEW = 8  # up to so many rows are ended quicker one by one than by whole columns


class Ends:
    """Finds and announces the ends of a job's substreams.

    Args:
        graph: the job's segments.
        accounts: the job's substreams.
        ordering: which ends wait for others.
        progress: whether to announce how far each segment has come.
        announce: takes each event in its turn.
    """

    def __init__(
        self, graph: Graph, accounts: Accounts, ordering: Ordering, progress: bool, announce: Callable[[Body], None]
    ) -> None:
        self._graph = graph
        self._accounts = accounts
        self._ordering = ordering
        self._progress = progress
        self._announce = announce
        self.advanced: dict[str, int] = {}  #: the last time announced, by segment; also of those that are no more
        self.finished: list[int] = []  #: rows that have ended everywhere since somebody took them from here
        self._times: dict[int, OpenTimes] = {}
        self._waiting: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # by segment and scope
        self._loosened: set[int] = set()  # scopes in which something ended out of order since the last evaluation
        open_rows = accounts.in_use(int(KNOWN), int(KNOWN | DONE))
        self.join(open_rows)
        if self._keeps_times:
            some = open_rows[(accounts.flags[open_rows] & ENDING) != 0]
            for place, segment in zip(*(axis.tolist() for axis in accounts.has_ended(some).nonzero()), strict=True):
                self._leave(int(some[place]), segment)
            self._loosened.clear()

    # ------------------------------------------------------------ open end times

    @property
    def _keeps_times(self) -> bool:
        return self._progress or self._ordering is not Ordering.NONE

    def _groups(self, row: int) -> list[int]:
        """Which multisets of end times a row counts in."""
        groups = []
        if self._ordering is Ordering.SCOPE:
            groups.append(int(self._accounts.scope[row]))
        if self._progress or self._ordering is Ordering.GLOBAL:
            groups.append(_ALL)
        return groups

    def join(self, rows: Rows) -> None:
        """Rows have come to be known."""
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
            self._loosened.add(group)
            if not times and group != _ALL:
                del self._times[group]

    # ------------------------------------------------------------ evaluation

    def endable(self, rows: Rows) -> NDArray[np.bool_]:
        """For each closed row and segment, whether it balances on all that is upstream and has not ended."""
        blocked = self._accounts.unbalanced(rows).astype(np.float32) @ self._graph.upstream.T > 0
        may: NDArray[np.bool_] = ~(blocked | self._accounts.has_ended(rows))
        return may

    def _eligible(self, rows: Rows) -> Rows:
        flags = self._accounts.flags[rows]
        eligible: Rows = rows[(flags & (KNOWN | CLOSED | DONE | HELD)) == (KNOWN | CLOSED)]
        return eligible

    def evaluate(self, rows: Rows) -> None:
        """Announce what has ended among `rows`, each given once, and what ordering lets go after it."""
        rows = self._eligible(rows)
        if not rows.size and not self._loosened:
            return
        endable = self.endable(rows)
        some = endable.any(axis=1)
        rows, endable = rows[some], endable[some]
        if rows.size > 1:
            order = np.lexsort((self._accounts.ids_of(rows), self._accounts.end_time[rows]))
            rows, endable = rows[order], endable[order]
        if self._ordering is not Ordering.NONE:
            self._evaluate_in_order(rows, endable)
        elif rows.size > _FEW:
            self._evaluate_at_once(rows, endable)
        else:
            for segment, place in np.argwhere(endable.T).tolist():
                self._end(int(rows[place]), segment, Reason.COMPLETE)

    def _evaluate_at_once(self, rows: Rows, endable: NDArray[np.bool_]) -> None:
        accounts = self._accounts
        scopes = [accounts.scope_names[number] for number in accounts.scope[rows].tolist()]
        names = [accounts.names[row] for row in rows.tolist()]
        end_times = [None if time == NO_END_TIME else time for time in accounts.end_time[rows].tolist()]
        sent = accounts.cells.reshape(-1, len(self._graph), 4)[rows, :, SENT]
        announce = self._announce
        for number, segment in enumerate(self._graph.names):
            chosen = np.flatnonzero(endable[:, number])
            for i, elements in zip(chosen.tolist(), sent[chosen, number].tolist(), strict=True):
                announce(Ended(segment, scopes[i], names[i], end_times[i], elements, Reason.COMPLETE, 0))
        ended = accounts.ended.reshape(-1, len(self._graph))
        after = ended[rows]
        after[endable] = Reason.COMPLETE
        ended[rows] = after
        accounts.flags[rows] |= ENDING
        if self._keeps_times:
            for i, row in enumerate(rows.tolist()):
                for segment_number in np.flatnonzero(endable[i]).tolist():
                    self._leave(row, segment_number)
        done = rows[after.all(axis=1)]
        accounts.finish(done)
        self.finished += done.tolist()

    def _evaluate_in_order(self, rows: Rows, endable: NDArray[np.bool_]) -> None:
        accounts = self._accounts
        loosened, self._loosened = self._loosened, set()
        ids = accounts.ids_of(rows).tolist() if rows.size else []
        candidates = list(zip(accounts.end_time[rows].tolist(), ids, rows.tolist(), strict=True))
        for segment in range(len(self._graph)):
            # Sorted, so it is a heap.
            queue = [each for each, may in zip(candidates, endable[:, segment].tolist(), strict=True) if may]
            for group in loosened:
                self._let_go(segment, group, queue)
            while queue:
                end_time, id_, row = heapq.heappop(queue)
                if accounts.ended[row * len(self._graph) + segment]:
                    continue
                group = _ALL if self._ordering is Ordering.GLOBAL else int(accounts.scope[row])
                if end_time != NO_END_TIME and end_time > self._times[group].least(segment):
                    heapq.heappush(self._waiting[segment, group], (end_time, id_))
                    continue
                self._end(row, segment, Reason.COMPLETE)
                self._let_go(segment, group, queue)
        self._loosened.clear()

    def _let_go(self, segment: int, group: int, queue: list[tuple[int, int, int]]) -> None:
        """Move to `queue` what no longer waits for anything on a segment."""
        waiting = self._waiting.get((segment, group))
        if not waiting:
            return
        times = self._times.get(group)
        while waiting and (times is None or waiting[0][0] <= times.least(segment)):
            end_time, id_ = heapq.heappop(waiting)
            row = self._accounts.row_of(id_)
            # Since it came here it may have been folded into, opened again, held, ended otherwise or forgotten.
            if row >= 0 and (rows := self._eligible(np.array([row]))).size and self.endable(rows)[0, segment]:
                heapq.heappush(queue, (end_time, id_, row))
        if not waiting:
            del self._waiting[segment, group]

    def _end(self, row: int, segment: int, reason: Reason) -> None:
        accounts = self._accounts
        end_time = int(accounts.end_time[row])
        self._announce(
            Ended(
                self._graph.names[segment],
                accounts.scope_names[int(accounts.scope[row])],
                accounts.names[row],
                None if end_time == NO_END_TIME else end_time,
                accounts.sent(row, segment),
                reason,
                max(0, accounts.in_flight(row, segment)) if reason is not Reason.COMPLETE else 0,
            )
        )
        ended = accounts.ended.reshape(-1, len(self._graph))[row]
        ended[segment] = reason
        accounts.flags[row] |= ENDING
        self._leave(row, segment)
        if ended.all():
            accounts.finish(np.array([row]))
            self.finished.append(row)

    def force(self, row: int, reason: Reason) -> None:
        """End a row at once on every segment on which it has not, whatever is in flight."""
        for segment in np.flatnonzero(~self._accounts.has_ended(np.array([row]))[0]).tolist():
            self._end(row, segment, reason)

    def advance(self, limit: int) -> None:
        """Announce how far each segment has come.

        Args:
            limit: up to which end time all fronts have closed every scope.
        """
        if not self._progress or limit == UNSET:
            return
        limit = _LAST_TIME if limit == EVERYTHING else limit
        times = self._times.get(_ALL)
        for segment, name in enumerate(self._graph.names):
            time = limit if times is None else min(limit, times.least(segment) - 1)
            last = self.advanced.get(name)
            if last is None or time > last:
                self.advanced[name] = time
                self._announce(Advanced(name, time))
