"""The accumulators: what is known of each substream, as columns. The rest of the core has its names, states, times and
cells from here alone, and passes a report's entries to one method (`Accounts.fold`).

A substream has a *row*; a row has *cells*, its accumulators by segment (`cells`). Ids count up for as long as the log
lasts, rows are used again: ids are cut into pages, each of which has a slot of rows while any of its substreams is
remembered.

This module names and remembers. It does not know when a substream may end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from .cells import AT_ONCE, SENT, U8, Cells, Entries, Mask, Rows, all_of, any_of, distinct, extended
from .lifecycle import CLOSED, ENDED, KNOWN, NAMED, NO_MARK, PARTLY_ENDED, STALLED, Lifecycle
from .names import NameTable
from .sparsecells import SparseCells

DENSE = 8  #: up to so many segments each row has all its cells

PAGE_BITS = 10
PAGE = 1 << PAGE_BITS

BY_DRAIN = 16  #: beside the number of an end's Reason: only a front's finish in a drain closed the substream

_NONE: Rows = np.empty(0, np.int64)
_MANY = 100_000  # from so many rows on, marking them is quicker than sorting them


def cells_for(segments: int) -> Cells:
    """Return empty cells in the layout for so many segments."""
    return Cells(segments) if segments <= DENSE else SparseCells(segments)


def relaid(
    old: Cells, rows: Rows, reasons: NDArray[np.uint8], capacity: int, segments: int, kept: Sequence[tuple[int, int]]
) -> Cells:
    """Return the cells for another graph.

    Args:
        reasons: for each the number of the reason why it has ended on segments that are new; 0: it has not.
        capacity: how many rows to have room for.
        kept: (old number, new number) of the segments that stay.
    """
    cells = cells_for(segments)
    cells.grow(capacity)
    for column in ("changed", "end_time", "created", "scope"):
        getattr(cells, column)[:] = getattr(old, column)
    number = np.full(old.segments, -1, np.int64)
    for before, after in kept:
        number[before] = after
    step = max(1, AT_ONCE // max(segments, old.segments))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        index, at, words = old.touched(part)
        stays = number[at] >= 0
        cells.put(part[index[stays]], number[at[stays]], words[stays])
        ended = np.repeat(reasons[start : start + step], segments).reshape(-1, segments)
        for before, after in kept:
            ended[:, after] = old.reasons(part, np.full(len(part), before))
        cells.set_reasons(part, ended)
    return cells


class Changes:
    """The rows that the current command has changed, for the next evaluation: the one place where parts of a job meet.

    Attributes:
        now: when the command at hand was taken (ns).

    >>> changes = Changes(7)
    >>> changes.look_at(np.array([3, 1]))
    >>> changes.look_at(np.array([1, 2]))
    >>> changes.pop_rows().tolist(), changes.pop_rows().tolist()
    ([1, 2, 3], [])
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self._rows: list[Rows] = []

    def look_at(self, rows: Rows) -> None:
        """Add rows for the next evaluation."""
        self._rows.append(rows)

    @property
    def pending(self) -> bool:
        """Return whether there are rows to look at."""
        return bool(self._rows)

    def pop_rows(self) -> Rows:
        """Return each row to look at once, and forget them."""
        if not self._rows:
            return _NONE
        rows = self._rows[0] if len(self._rows) == 1 else np.concatenate(self._rows)
        self._rows.clear()
        if rows.size < _MANY:
            return distinct(rows)
        mark = np.zeros(int(rows.max()) + 1, np.bool_)  # rows are used again, so this is no longer than what is kept
        mark[rows] = True
        return np.flatnonzero(mark)

    def clear(self) -> None:
        """Forget all rows, because others take their place."""
        self._rows.clear()


class Accounts:
    """The substreams of a job.

    Args:
        first_id: the id that the next new substream gets.
    """

    def __init__(self, segments: int, first_id: int = 0) -> None:
        self.segments = segments
        self.next_id = first_id
        self.scope_names: list[str] = []  #: by number; numbers of scopes without substreams are used again
        self.scope_number: dict[str, int] = {}
        self._rows_of_scope: list[int] = []  # how many, by number
        self._free_scopes: list[int] = []
        self.names: list[str] = []
        self.table = NameTable(self.names)
        self.version = 0  #: rises whenever a name is given a row, or loses it
        self._first_page = first_id >> PAGE_BITS
        self._slot_of_page: NDArray[np.int32] = np.full(16, -1, np.int32)  # from _first_page on
        self._page_of_slot: Rows = np.zeros(0, np.int64)
        self._in_use: list[int] = []  # rows in use, by slot
        self._free_slots: list[int] = []
        self._emptied: set[int] = set()  # the current page's slot, once nothing in it was left
        self._capacity = 0
        self.life = Lifecycle()
        self._use(cells_for(segments))

    @property
    def flags(self) -> NDArray[np.uint8]:
        """The states of the rows, to be read (`lifecycle`)."""
        return self.life.flags

    # ------------------------------------------------------------ ids, names, rows

    def rows_of(self, ids: U8) -> Rows:
        """Return the rows of ids; -1 for one that was never given or is forgotten."""
        rows = np.full(len(ids), -1, np.int64)
        given = ids < np.uint64(self.next_id)
        signed = ids.astype(np.int64)
        pages = (signed >> PAGE_BITS) - self._first_page
        given &= (pages >= 0) & (pages < len(self._slot_of_page))
        slots = self._slot_of_page[np.where(given, pages, 0)].astype(np.int64)
        found = (slots << PAGE_BITS) | (signed & (PAGE - 1))
        given &= slots >= 0
        found[~given] = 0
        if len(self.flags):
            given &= self.life.are(found, NAMED)
            rows[given] = found[given]
        return rows

    def row_of(self, substream_id: int) -> int:
        """Return the row of one id, -1 if there is none."""
        return int(self.rows_of(np.array([substream_id], np.uint64))[0])

    def ids_of(self, rows: Rows) -> Rows:
        ids: Rows = (self._page_of_slot[rows >> PAGE_BITS] << PAGE_BITS) | (rows & (PAGE - 1))
        return ids

    def id_of(self, row: int) -> int:
        return (int(self._page_of_slot[row >> PAGE_BITS]) << PAGE_BITS) | (row & (PAGE - 1))

    def find(self, scopes: Sequence[str], scope_index: NDArray[np.uint32], names: Sequence[str]) -> Rows:
        """Return the row of each (scope, name), or -1."""
        if not len(names):
            return np.empty(0, np.int64)
        numbers = np.array([self.scope_number.get(scope, -1) for scope in scopes], np.int64)[scope_index]
        return self.table.find(numbers, names)

    def find_one(self, scope: str, name: str) -> int:
        """Return the row of one substream, -1 if it has none."""
        number = self.scope_number.get(scope)
        if number is None:
            return -1
        return self.table.find_one(number, name)

    def named(self, rows: Rows) -> Iterator[tuple[str, str]]:
        """Yield the scopes and names of rows."""
        scopes, names = self.scope_names, self.names
        for row, scope in zip(rows.tolist(), self.scope[rows].tolist(), strict=True):
            yield scopes[scope], names[row]

    def add(self, scopes: Sequence[str], names: Sequence[str], end_times: NDArray[np.int64], now: int) -> Rows:
        """Give rows to new substreams, in order of first mention; each must be new and distinct."""
        count = len(names)
        self.version += 1
        rows = np.empty(count, np.int64)
        numbers = np.fromiter(map(self._scope, scopes), np.int64, count)
        done = 0
        while done < count:
            offset = self.next_id & (PAGE - 1)
            slot = self._current_slot()
            take = min(count - done, PAGE - offset)
            start = (slot << PAGE_BITS) + offset
            here, part = slice(start, start + take), slice(done, done + take)
            rows[part] = np.arange(start, start + take)
            self.names[here] = names[part]
            self.end_time[here] = end_times[part]
            self.scope[here] = numbers[part]
            self.created[here] = now
            self.changed[here] = now
            self._in_use[slot] += take
            self.next_id += take
            done += take
        self._count_scopes(numbers, 1)
        self.table.add(numbers, names, rows)
        self.life.name(rows)
        return rows

    def _scope(self, scope: str) -> int:
        number = self.scope_number.get(scope)
        if number is None:
            if self._free_scopes:
                number = self._free_scopes.pop()
                self.scope_names[number] = scope
            else:
                number = len(self.scope_names)
                self.scope_names.append(scope)
                self._rows_of_scope.append(0)
            self.scope_number[scope] = number
        return number

    def _current_slot(self) -> int:
        """Return the slot of the page that ids are being given from."""
        at = (self.next_id >> PAGE_BITS) - self._first_page
        slot = int(self._slot_of_page[at]) if at < len(self._slot_of_page) else -1
        return slot if slot >= 0 else self._open_page()

    def _open_page(self) -> int:
        page = self.next_id >> PAGE_BITS
        for slot in [slot for slot in self._emptied if not self._in_use[slot]]:
            self._free(slot)
        self._emptied.clear()
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = len(self._in_use)
            self._in_use.append(0)
            if (slot + 1) << PAGE_BITS > self._capacity:
                self._grow()
        self._page_of_slot[slot] = page
        self._enter_page(page, slot)
        return slot

    def _enter_page(self, page: int, slot: int) -> None:
        at = page - self._first_page
        if at >= len(self._slot_of_page):
            # Drop what lies before the oldest page in use, then double.
            used = np.flatnonzero(self._slot_of_page >= 0)
            skip = int(used[0]) if used.size else at
            kept = self._slot_of_page[skip:]
            self._first_page += skip
            at -= skip
            self._slot_of_page = np.full(max(16, 2 * (at + 1)), -1, np.int32)
            self._slot_of_page[: len(kept)] = kept
        self._slot_of_page[at] = slot

    def _grow(self, capacity: int = 0) -> None:
        # By half: a doubling would leave more unused than used at the worst moment.
        capacity = max(capacity, (self._capacity * 3 // 2) >> PAGE_BITS << PAGE_BITS, self._capacity + PAGE)
        self._page_of_slot = extended(self._page_of_slot, capacity >> PAGE_BITS)
        self.life.grow(capacity)
        self.cells.grow(capacity)
        self._use(self.cells)
        self.names.extend([""] * (capacity - len(self.names)))
        self._capacity = capacity

    def _use(self, cells: Cells) -> None:
        """Have accumulators and columns in these cells, or where their columns have moved to."""
        self.cells = cells
        self.changed, self.end_time = cells.changed, cells.end_time
        self.created, self.scope = cells.created, cells.scope

    def _count_scopes(self, numbers: Rows, by: int) -> list[int]:
        """Count rows of scopes up or down; return the scopes that have none left."""
        emptied = []
        for number, count in Counter(numbers.tolist()).items():
            self._rows_of_scope[number] += by * count
            if not self._rows_of_scope[number]:
                emptied.append(number)
        return emptied

    def forget(self, rows: Rows) -> list[int]:
        """Forget substreams: their ids become unknown, and their rows are used again once their page is empty.

        Returns:
            the numbers of the scopes that have no substream left, and will be used again.
        """
        if not rows.size:
            return []
        scopes = self.scope[rows].astype(np.int64)
        self.version += 1
        self.table.remove(scopes, rows)
        emptied = self._count_scopes(scopes, -1)
        for number in emptied:
            del self.scope_number[self.scope_names[number]]
            self.scope_names[number] = ""
            self._free_scopes.append(number)
        self.life.forget(rows)
        self.cells.clear(rows)
        for row in rows.tolist():
            self.names[row] = ""
        slots, counts = np.unique(rows >> PAGE_BITS, return_counts=True)
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            self._in_use[slot] -= count
            if not self._in_use[slot]:
                if self._page_of_slot[slot] == self.next_id >> PAGE_BITS:
                    self._emptied.add(slot)  # more ids will come from it
                else:
                    self._emptied.discard(slot)  # or it would be freed again, and two pages would share it
                    self._free(slot)
        return emptied

    def _free(self, slot: int) -> None:
        self._slot_of_page[int(self._page_of_slot[slot]) - self._first_page] = -1
        self._free_slots.append(slot)

    def in_use(self, every: int, of: int | None = None) -> Rows:
        """Return the rows whose flags `of` (default: `every`) are exactly `every`. A scan, not for reports."""
        mask = np.uint8(every if of is None else of) | NAMED
        return np.flatnonzero((self.flags & mask) == (np.uint8(every) | NAMED))

    def open_rows(self, mark: np.uint8 = NO_MARK) -> Rows:
        """Return the open rows, or those that have a mark. A scan, not for reports."""
        return self.in_use(int(KNOWN | mark), int(KNOWN | ENDED | mark))

    def by_creation(self, after: int, every: int, of: int) -> Iterator[tuple[int, Rows]]:
        """Yield the rows of ids above `after` whose flags `of` are exactly `every`, by creation, a page of ids at once.

        Yields:
            the last id that the page could have, and its rows.
        """
        first = min(max(0, (after + 1 >> PAGE_BITS) - self._first_page), len(self._slot_of_page))
        for at in np.flatnonzero(self._slot_of_page[first:] >= 0).tolist():
            page, slot = self._first_page + first + at, int(self._slot_of_page[first + at])
            flags = self.flags[slot << PAGE_BITS : slot + 1 << PAGE_BITS]
            places = np.flatnonzero((flags & np.uint8(of | NAMED)) == np.uint8(every | NAMED))
            places = places[places > after - (page << PAGE_BITS)]
            yield (page + 1 << PAGE_BITS) - 1, (slot << PAGE_BITS) + places

    def in_order(self, rows: Rows) -> Rows:
        """Return the rows sorted by end time (those without one last), then by creation."""
        return rows[np.lexsort((self.ids_of(rows), self.end_time[rows]))]

    # ------------------------------------------------------------ cells

    def fold(
        self, entries: Entries, producer: int, now: int, already_closed: Mask | None, stalls: bool
    ) -> tuple[Entries, Entries | None, Rows]:
        """Fold the entries of a report in, but for those that are late: the one pass over all that it has.

        Args:
            producer: the number of the one who reported them.
            now: when they take effect (ns).
            already_closed: the entries on whose segments nothing is waited for any more; None: there are none.
            stalls: rows may have marks of stalls, which a change takes back.

        Returns:
            the entries that were folded in, those that were late, and the rows among the first that are closed.
        """
        late = None
        if already_closed is not None or self._may_be_late(entries.rows):
            is_late = self.cells.reasons(entries.rows, entries.segments) != 0
            is_late |= ~self.life.are(entries.rows, KNOWN)
            if already_closed is not None:
                is_late |= already_closed
            if is_late.any():
                late, entries = entries.where(is_late), entries.where(~is_late)
        return entries, late, self._fold(entries, producer, now, stalls)

    def _may_be_late(self, rows: Rows) -> bool:
        """Return whether any row is not known, or has ended on some segment."""
        return bool(((self.flags[rows] & (KNOWN | PARTLY_ENDED)) != KNOWN).any())

    def _fold(self, entries: Entries, producer: int, now: int, stalls: bool) -> Rows:
        """Fold in entries that are not late, as `fold` does; return the rows among them that are closed."""
        self.cells.fold(entries, producer)
        self.changed[entries.rows] = now
        if stalls:
            self.life.unmark(entries.rows, STALLED)
        return entries.rows[self.life.are(entries.rows, CLOSED)]

    def unknown(self, rows: Rows) -> Rows:
        """Return those of some rows of which nothing has taken effect."""
        return rows[~self.life.are(rows, KNOWN)]

    def sent(self, row: int, segment: int) -> int:
        """Return how many elements were sent in all."""
        return self.cells.cell(row, segment)[SENT]

    def in_flight(self, row: int, segment: int) -> int:
        """Return how many were sent and not yet received; negative where the receiver's epoch was committed first."""
        _, sent, received, _ = self.cells.cell(row, segment)
        return sent - received

    def reason(self, row: int, segment: int) -> int:
        """Return the reason for which a row has ended on a segment, or 0."""
        return self.cells.reason(row, segment)

    def relaid(self, segments: int, reason: int, kept: Sequence[tuple[int, int]]) -> Rows:
        """Move to another graph. Rows that have ended stay ended, on every segment.

        Args:
            reason: the number of the Reason why what has ended has done so on segments that are new.
            kept: (old number, new number) of the segments that stay.

        Returns:
            the rows that have ended by it: on every segment that they have left.
        """
        rows = np.flatnonzero((self.flags & KNOWN) != 0)
        is_open = self.life.is_open(rows)
        reasons = np.where(is_open, 0, reason).astype(np.uint8)
        self._use(relaid(self.cells, rows, reasons, self._capacity, segments, kept))
        self.segments = segments
        partly = rows[is_open & self.life.are(rows, PARTLY_ENDED)]
        ended = self.cells.has_ended(partly)
        self.life.unmark(partly[~any_of(ended)], PARTLY_ENDED)
        done: Rows = partly[all_of(ended)]
        self.life.end(done)
        self.cells.count_in_flight(self.open_rows())
        return done

    # ------------------------------------------------------------ to and from a snapshot

    def copied(self) -> Accounts:
        """Return a copy that a dump can read while these accounts change."""
        other = copy(self)
        other.life = copy(self.life)
        used = len(self._in_use) << PAGE_BITS
        other.life.flags = self.life.flags[:used].copy()
        other.names = self.names[:used]
        for name in ("_page_of_slot", "scope_names", "_free_scopes"):
            setattr(other, name, getattr(self, name).copy())
        other._use(self.cells.copied(used))
        return other

    def restore(
        self, ids: Rows, next_id: int, names: Sequence[str], scope_names: Sequence[str], free_scopes: Sequence[int]
    ) -> Rows:
        """Give rows to substreams by the ids that they had; the accounts are empty, and `enter` follows.

        Args:
            names: one for each of `ids`.
            scope_names: of each scope's number, from 0, the name.
            free_scopes: the numbers that stand for no scope.

        Returns:
            their rows.
        """
        self.scope_names = list(scope_names)
        self._free_scopes = list(free_scopes)
        free = set(free_scopes)
        self.scope_number = {name: number for number, name in enumerate(scope_names) if number not in free}
        self._rows_of_scope = [0] * len(self.scope_names)
        pages, counts = np.unique(ids >> PAGE_BITS, return_counts=True)
        self._grow(len(pages) << PAGE_BITS)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            self.next_id = page << PAGE_BITS
            self._in_use[self._open_page()] = count
        self.next_id = next_id
        rows: Rows = (np.repeat(np.arange(len(pages)), counts) << PAGE_BITS) | (ids & (PAGE - 1))
        for row, name in zip(rows.tolist(), names, strict=True):
            self.names[row] = name
        return rows

    def enter(self, rows: Rows) -> None:
        """Make rows findable by their names and scopes, which are in place."""
        scopes = self.scope[rows].astype(np.int64)
        self._count_scopes(scopes, 1)
        self.table.add(scopes, [self.names[row] for row in rows.tolist()], rows)


#: The implementation of jobs that are made or loaded from now on. Their answers and dumps are the same with each.
chosen: type[Accounts] = Accounts


def new_accounts(segments: int, first_id: int = 0) -> Accounts:
    """Return accounts without substreams, of the chosen implementation."""
    return chosen(segments, first_id)
