"""Rows of a history in the batches in which a query would have read them, and the windows that they fall into.

The rules:

- A query is triggered at whole multiples of `trigger`. Its batch at a time *t* has the rows that arrived after the
  trigger before, up to *t*; what a batch brings or ends is released at *t*. So no delay is finer than a trigger, and
  the time that a batch itself takes is left out.
- A window is one scope's stretch of event time. It ends with a batch, whose own rows still count; its rows in later
  batches are late, and the window was wrong.
- A history ends. Rows that arrived after it are unknown, so its last windows may lack some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracker.contract.values import I8

_MOST: Final = 50_000_000  #: rows in windows: some 5 GB
NEVER: Final = 2**63 - 1  #: as the time of a release: not within the history


class ReplayError(ValueError):
    """A history that cannot be replayed, or a promise that is none; the message names the remedy."""


@dataclass(frozen=True)
class Windows:
    """Windows of event time, as Spark's ``window`` cuts them.

    Attributes:
        length: from the start of a window to its end, in microseconds.
        slide: from the start of a window to that of the next, in microseconds; 0: the length.
    """

    length: int
    slide: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.slide <= self.length or not self.length:
            raise ReplayError("a window has a length above zero, and slides by no more than that")

    def ends(self, times: I8) -> tuple[I8, I8]:
        """Return the place of a time and the end of a window that it is in, for each window that each time is in.

        >>> Windows(4, 2).ends(np.array([5]))
        (array([0, 0]), array([8, 6]))
        """
        slide = self.slide or self.length
        newest = times - times % slide + self.length
        number = (newest - times - 1) // slide + 1
        places = np.repeat(np.arange(len(times)), number)
        before = np.arange(len(places)) - np.repeat(np.cumsum(number) - number, number)
        return places, newest[places] - before * slide


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a history, as they were read.

    Attributes:
        event: times of rows, in microseconds since 1970: int64[rows].
        arrived: when each came, likewise.
        scope: places in `scopes`: int64[rows]; None: rows have no scope.
        scopes: the names of scopes.
        time_name: of the column with the times.
        scope_name: of the column with the scopes; empty: there is none.
        nulls: how many rows were left out, since one of their columns is null.
    """

    event: I8
    arrived: I8
    scope: I8 | None
    scopes: Sequence[str]
    time_name: str
    scope_name: str = ""
    nulls: int = 0


class Groups:
    """Rows that have one key: where each group begins when rows are in the order of their keys.

    Args:
        keys: of each row, the number of its key: int64[rows].

    Attributes:
        of: of each row, the number of its group: int64[rows].
        first: a row of each group: int64[groups].
    """

    def __init__(self, keys: I8) -> None:
        self._order = np.argsort(keys, kind="stable")
        inner = keys[self._order]
        self._starts = np.flatnonzero(np.concatenate([[True], inner[1:] != inner[:-1]]))
        self.first: I8 = self._order[self._starts]
        self.of: I8 = np.empty(len(keys), np.int64)
        self.of[self._order] = np.repeat(np.arange(len(self._starts)), self.sizes)

    @property
    def sizes(self) -> I8:
        """The number of rows of each group: int64[groups]."""
        return np.diff(self._starts, append=len(self._order))

    def most(self, values: I8) -> I8:
        """Return the largest value of each group."""
        return np.maximum.reduceat(values[self._order], self._starts)

    def least(self, values: I8) -> I8:
        """Return the smallest value of each group."""
        return np.minimum.reduceat(values[self._order], self._starts)


class History:
    """Rows, their batches and their windows. Arrays of rows have an element for each window that a row is in.

    Args:
        columns: the rows' times of events and of arrival in microseconds, and their scopes.
        cut: the windows that rows fall into, one or several each.
        trigger: the time from one trigger to the next, in microseconds.
        ahead: how far beyond its trigger a row's time may be to move a frontier, in microseconds; None: at will.

    Attributes:
        event, batch, window: of each row its time, the trigger that read it, and the place of its window.
        near: of each row whether it moves a frontier.
        scope, end, rows, first, last, last_arrived: of each window its scope and end, the number of its rows, the
            triggers that read the first and the last of them, and when the last one arrived.

    Raises:
        ReplayError: there are no rows, or they are in too many windows.
    """

    def __init__(self, columns: Columns, cut: Windows, trigger: int, ahead: int | None = None) -> None:
        if trigger <= 0:
            raise ReplayError("the trigger is above zero: '1min' reads what has arrived once a minute")
        rows = len(columns.event)
        if not rows:
            raise ReplayError("the history has no rows with both times: there is nothing to replay")
        if rows * cut.length > _MOST * (cut.slide or cut.length):
            raise ReplayError("rows are in too many windows to be held: give a longer slide, or a part of the history")
        self.scoped = columns.scope is not None
        self.scopes = tuple(columns.scopes) if self.scoped else ("",)
        self.cut, self.trigger, self.ahead = cut, trigger, ahead
        self._newest: dict[tuple[bool, bool], Newest] = {}
        places, ends = cut.ends(columns.event)
        arrived, self.event = columns.arrived[places], columns.event[places]
        self.batch: I8 = self.at_trigger(arrived)
        self.near = np.ones(len(places), np.bool_) if ahead is None else self.event - self.batch <= ahead
        scope = np.zeros(rows, np.int64) if columns.scope is None else columns.scope
        self._scope_of_row: I8 = scope[places]
        different, place = np.unique(ends, return_inverse=True)
        groups = Groups(self._scope_of_row * len(different) + place)
        self.window = groups.of
        self.scope, self.end = self._scope_of_row[groups.first], ends[groups.first]
        self.rows = groups.sizes
        self.first, self.last = groups.least(self.batch), groups.most(self.batch)
        self.last_arrived = groups.most(arrived)

    def at_trigger(self, times: I8) -> I8:
        """Return the first trigger at or after each time."""
        return -(-times // self.trigger) * self.trigger

    def newest(self, per_scope: bool, near: bool = True) -> Newest:
        """Return the newest times of rows, batch by batch; they are made once for promises with several delays.

        Args:
            near: of the rows that move a frontier; else of all.
        """
        if (per_scope, near) not in self._newest:
            self._newest[per_scope, near] = Newest(self, per_scope, near)
        return self._newest[per_scope, near]

    def of_scopes(self, per_scope: bool) -> tuple[I8, I8]:
        """Return the scopes of rows and of windows; zeros if all scopes are as one."""
        if per_scope:
            return self._scope_of_row, self.scope
        return np.zeros(len(self.event), np.int64), np.zeros(len(self.end), np.int64)


class Newest:
    """The newest time of all rows up to a batch, for all scopes together or for each.

    The times of a scope never decrease, so that the first batch at which they have reached some time is found by
    bisection, in all scopes at once: scopes follow one another, each with the ranks of its times above those before.
    """

    def __init__(self, history: History, per_scope: bool, near: bool) -> None:
        row_scope, self._window_scope = history.of_scopes(per_scope)
        self._end = history.end
        self._history = history
        batches, batch = np.unique(history.batch, return_inverse=True)
        self._groups = Groups(row_scope * len(batches) + batch)
        self._batch = history.batch[self._groups.first]
        self._scope = row_scope[self._groups.first]
        # The first of all times passes the end of no window.
        times = np.where(history.near, history.event, history.event.min()) if near else history.event
        self._times, rank = np.unique(times, return_inverse=True)
        self._above = len(self._times) + 1
        self._reached = np.maximum.accumulate(self._groups.most(rank) + self._scope * self._above)

    def passes(self, delay: int, step: int = 1) -> I8:
        """Return, for each window, the trigger whose batch brings a row that is newer than the window's end by a delay.

        Args:
            delay: microseconds by which the row has to be newer.
            step: of the clock that reads times, in microseconds: a time counts as the step that it is in.

        Returns:
            int64[windows], with `NEVER` for windows that no batch passes.
        """
        wanted = -(-(self._end + delay) // step) * step
        key = np.searchsorted(self._times, wanted) + self._window_scope * self._above
        place = np.searchsorted(self._reached, key)
        there = np.minimum(place, len(self._reached) - 1)
        found = (place < len(self._reached)) & (self._scope[there] == self._window_scope)
        return np.where(found, self._batch[there], NEVER)

    def delays_needed(self, up_to: int) -> I8:
        """Return the least delay by which none of a window's rows would have been late, for each window with rows.

        Args:
            up_to: the last batch that is looked at, as its trigger.

        Returns:
            Microseconds, zero and above: int64[windows that have a row by then].
        """
        newest = self._times[self._reached - self._scope * self._above]
        before = np.concatenate([[0], newest[:-1]])
        is_first = np.concatenate([[True], self._scope[1:] != self._scope[:-1]])
        window, group = self._history.window, self._groups.of
        needed = np.where(is_first[group], 0, before[group] - self._end[window] + 1)
        seen = np.flatnonzero(self._history.batch <= up_to)
        return np.maximum(Groups(window[seen]).most(needed[seen]), 0)
