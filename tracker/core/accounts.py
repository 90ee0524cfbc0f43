"""The accumulators: what is known of each substream, as columns.

A substream has a *row*; a row has a *cell* for each segment, four 64-bit words side by side (xor, sent, received, and
who last sent and received), so that folding an entry touches one place in memory. Ids count up for as long as the
log lasts, rows are used again: ids are cut into pages, each of which has a slot of rows while any of its
substreams is remembered.

This module folds, compares and remembers. It does not know when a substream may end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .commands import NO_END_TIME
from .names import NameTable

Rows = NDArray[np.int64]
U8 = NDArray[np.uint64]

_FEW = 4  # up to so many are quicker one by one than by whole columns

PAGE_BITS = 10
PAGE = 1 << PAGE_BITS

# What a row is, in its flags.
NAMED = np.uint8(1)  #: an accepted report has named it: the row is in use
KNOWN = np.uint8(2)  #: an applied entry or promise has named it while it was not closed
CLOSED = np.uint8(4)  #: its fronts, or its sole owner, will send no more
SOLE = np.uint8(8)  #: closed by its sole owner
ENDING = np.uint8(16)  #: ended on some segment
DONE = np.uint8(32)  #: ended on every segment
HELD = np.uint8(64)  #: a producer owes a commit for a revoked epoch
STALLED = np.uint8(128)  #: announced as stalled, and not changed since

XOR, SENT, RECEIVED, WHO = range(4)  # the words of a cell
_SENDER = np.uint64(0xFFFFFFFF)
_RECEIVER = np.uint64(0xFFFFFFFF << 32)
_SHIFT = np.uint64(32)


class Entries(NamedTuple):
    """Columns of one entry for each (substream, segment) that a report changes; substreams by row."""

    rows: Rows
    segments: Rows
    xor: U8
    sent: U8
    received: U8

    def where(self, mask: NDArray[np.bool_]) -> Entries:
        """The entries that `mask` selects."""
        rows, segments, xor, sent, received = self
        return Entries(rows[mask], segments[mask], xor[mask], sent[mask], received[mask])

    @classmethod
    def concatenate(cls, parts: Sequence[Entries]) -> Entries:
        """All entries, in order."""
        if len(parts) == 1:
            return parts[0]
        rows, segments, xor, sent, received = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return cls(rows, segments, xor, sent, received)


class Accounts:
    """The substreams of a job.

    Args:
        segments: how many segments each row has.
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
        self.open = 0  #: known, and not ended on every segment
        self.done = 0
        self._first_page = first_id >> PAGE_BITS
        self._slot_of_page: NDArray[np.int32] = np.full(16, -1, np.int32)  # from _first_page on
        self._page_of_slot: Rows = np.zeros(0, np.int64)
        self._in_use: list[int] = []  # rows in use, by slot
        self._free_slots: list[int] = []
        self._emptied: set[int] = set()  # the current page's slot, once nothing in it was left
        self._capacity = 0
        self.flags: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.end_time: NDArray[np.int64] = np.zeros(0, np.int64)
        self.scope: NDArray[np.int32] = np.zeros(0, np.int32)
        self.created: NDArray[np.int64] = np.zeros(0, np.int64)
        self.changed: NDArray[np.int64] = np.zeros(0, np.int64)
        self.cells: NDArray[np.uint64] = np.zeros((0, 4), np.uint64)
        self.ended: NDArray[np.uint8] = np.zeros(0, np.uint8)  #: by cell: 0, or the Reason
        self._stamp: NDArray[np.uint32] = np.zeros(0, np.uint32)

    # ------------------------------------------------------------ ids, names, rows

    def rows_of(self, ids: U8) -> Rows:
        """The rows of ids; -1 for one that was never given or is forgotten."""
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
            given &= (self.flags[found] & NAMED) != 0
            rows[given] = found[given]
        return rows

    def row_of(self, substream_id: int) -> int:
        """The row of one id, -1 if there is none."""
        return int(self.rows_of(np.array([substream_id], np.uint64))[0])

    def ids_of(self, rows: Rows) -> Rows:
        """The ids of rows."""
        ids: Rows = (self._page_of_slot[rows >> PAGE_BITS] << PAGE_BITS) | (rows & (PAGE - 1))
        return ids

    def id_of(self, row: int) -> int:
        """The id of one row."""
        return (int(self._page_of_slot[row >> PAGE_BITS]) << PAGE_BITS) | (row & (PAGE - 1))

    def find(self, scopes: Sequence[str], scope_index: NDArray[np.uint32], names: Sequence[str]) -> Rows:
        """The row of each (scope, name), -1 where there is none."""
        if not len(names):
            return np.empty(0, np.int64)
        numbers = np.array([self.scope_number.get(scope, -1) for scope in scopes], np.int64)[scope_index]
        return self.table.find(numbers, names)

    def find_one(self, scope: str, name: str) -> int:
        """The row of one substream, -1 if it has none."""
        number = self.scope_number.get(scope)
        if number is None:
            return -1
        return self.table.find_one(number, name)

    def add(self, scopes: Sequence[str], names: Sequence[str], end_times: NDArray[np.int64], now: int) -> Rows:
        """Rows for new substreams, in order of first mention; none may have one yet, none be twice."""
        count = len(names)
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
            self.flags[here] = NAMED
            self.end_time[here] = end_times[part]
            self.scope[here] = numbers[part]
            self.created[here] = now
            self.changed[here] = now
            self._in_use[slot] += take
            self.next_id += take
            done += take
        self._count_scopes(numbers, 1)
        self.table.add(numbers, names, rows)
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
        """The slot of the page that ids are being given from."""
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
        grow: Callable[[NDArray[Any], int], NDArray[Any]] = _extended
        self._page_of_slot = grow(self._page_of_slot, capacity >> PAGE_BITS)
        self.flags = grow(self.flags, capacity)
        self.end_time = grow(self.end_time, capacity)
        self.scope = grow(self.scope, capacity)
        self.created = grow(self.created, capacity)
        self.changed = grow(self.changed, capacity)
        self.cells = grow(self.cells, capacity * self.segments)
        self.ended = grow(self.ended, capacity * self.segments)
        self._stamp = grow(self._stamp, capacity * self.segments)
        self.names.extend([""] * (capacity - len(self.names)))
        self._capacity = capacity

    def _count_scopes(self, numbers: Rows, by: int) -> list[int]:
        """Count rows of scopes up or down; the scopes that have none left."""
        emptied = []
        for number, count in Counter(numbers.tolist()).items():
            self._rows_of_scope[number] += by * count
            if not self._rows_of_scope[number]:
                emptied.append(number)
        return emptied

    def forget(self, rows: Rows) -> list[int]:
        """Forget substreams; their ids will be unknown, their rows used again once their page is empty.

        Returns:
            the numbers of the scopes that have no substream left, and will be used again.
        """
        if not rows.size:
            return []
        scopes = self.scope[rows].astype(np.int64)
        self.table.remove(scopes, rows)
        emptied = self._count_scopes(scopes, -1)
        for number in emptied:
            del self.scope_number[self.scope_names[number]]
            self.scope_names[number] = ""
            self._free_scopes.append(number)
        self.done -= int(((self.flags[rows] & DONE) != 0).sum())
        self.flags[rows] = 0
        cells = self._cells_of(rows)
        self.cells.reshape(-1, self.segments, 4)[rows] = 0
        self.ended[cells] = 0
        for row in rows.tolist():
            self.names[row] = ""
        slots, counts = np.unique(rows >> PAGE_BITS, return_counts=True)
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            self._in_use[slot] -= count
            if not self._in_use[slot]:
                if self._page_of_slot[slot] == self.next_id >> PAGE_BITS:
                    self._emptied.add(slot)  # more ids will come from it
                else:
                    self._free(slot)
        return emptied

    def _free(self, slot: int) -> None:
        self._slot_of_page[int(self._page_of_slot[slot]) - self._first_page] = -1
        self._free_slots.append(slot)

    def in_use(self, every: int, of: int | None = None) -> Rows:
        """The rows whose flags `of` (default: `every`) are exactly `every`: a scan, not for the way of a report."""
        mask = np.uint8(every if of is None else of) | NAMED
        return np.flatnonzero((self.flags & mask) == (np.uint8(every) | NAMED))

    def in_order(self, rows: Rows) -> Rows:
        """Rows sorted by end time (those without one last), then by creation."""
        return rows[np.lexsort((self.ids_of(rows), self.end_time[rows]))]

    # ------------------------------------------------------------ accumulators

    def fold(self, entries: Entries, producer: int) -> None:
        """Fold entries in; `producer` is the number of the one who reported them."""
        cells = entries.rows * self.segments + entries.segments
        if len(cells) <= _FEW:
            self._fold_one_by_one(cells, entries, producer)
            return
        # The last of those that want the same cell leaves its mark; it goes the short way, the others one by one.
        order = np.arange(len(cells), dtype=np.uint32)
        self._stamp[cells] = order
        first = self._stamp[cells] == order
        if first.all():
            self._fold_distinct(cells, entries.xor, entries.sent, entries.received, producer)
            return
        won = entries.where(first)
        self._fold_distinct(cells[first], won.xor, won.sent, won.received, producer)
        rest = ~first
        cells, lost = cells[rest], entries.where(rest)
        np.bitwise_xor.at(self.cells[:, XOR], cells, lost.xor)
        np.add.at(self.cells[:, SENT], cells, lost.sent)
        np.add.at(self.cells[:, RECEIVED], cells, lost.received)
        self._sign(cells, lost.sent, lost.received, producer)

    def _fold_one_by_one(self, cells: Rows, entries: Entries, producer: int) -> None:
        mark = producer + 1
        for cell, x, s, r in zip(
            cells.tolist(), entries.xor.tolist(), entries.sent.tolist(), entries.received.tolist(), strict=True
        ):
            xor, sent, received, who = self.cells[cell].tolist()
            sender = mark if s else who & 0xFFFFFFFF
            receiver = mark if r else who >> 32
            self.cells[cell] = (xor ^ x, sent + s, received + r, receiver << 32 | sender)

    def _fold_distinct(self, cells: Rows, xor: U8, sent: U8, received: U8, producer: int) -> None:
        block = self.cells.take(cells, axis=0)
        block[:, XOR] ^= xor
        block[:, SENT] += sent
        block[:, RECEIVED] += received
        block[:, WHO] = _signed(block[:, WHO], sent, received, producer)
        self.cells[cells] = block

    def _sign(self, cells: Rows, sent: U8, received: U8, producer: int) -> None:
        # In two passes: a cell that occurs twice, once as sent and once as received, gets both.
        mark = np.uint64(producer + 1)
        at = cells[sent > 0]
        self.cells[at, WHO] = (self.cells[at, WHO] & _RECEIVER) | mark
        at = cells[received > 0]
        self.cells[at, WHO] = (self.cells[at, WHO] & _SENDER) | (mark << _SHIFT)

    def unfold(self, entries: Entries) -> None:
        """Take out what was folded in."""
        cells = entries.rows * self.segments + entries.segments
        np.bitwise_xor.at(self.cells[:, XOR], cells, entries.xor)
        np.subtract.at(self.cells[:, SENT], cells, entries.sent)
        np.subtract.at(self.cells[:, RECEIVED], cells, entries.received)

    def unbalanced(self, rows: Rows) -> NDArray[np.bool_]:
        """For each row and segment, whether the accumulator is not balanced."""
        block = self.cells.reshape(-1, self.segments, 4)[rows]
        unequal: NDArray[np.bool_] = block[:, :, SENT] != block[:, :, RECEIVED]
        unequal |= block[:, :, XOR] != 0
        return unequal

    def has_ended(self, rows: Rows) -> NDArray[np.bool_]:
        """For each row and segment, whether the substream has ended on it."""
        mask: NDArray[np.bool_] = self.ended.reshape(-1, self.segments)[rows] != 0
        return mask

    def sent(self, row: int, segment: int) -> int:
        """How many elements were sent in all."""
        return int(self.cells[row * self.segments + segment, SENT])

    def in_flight(self, row: int, segment: int) -> int:
        """Sent and not yet received; negative where the receiver's epoch was committed first."""
        cell = self.cells[row * self.segments + segment]
        return int(cell[SENT]) - int(cell[RECEIVED])

    def in_flight_each(self, rows: Rows) -> NDArray[np.int64]:
        """The same for each row and segment."""
        block = self.cells.reshape(-1, self.segments, 4)[rows]
        difference: NDArray[np.int64] = (block[:, :, SENT] - block[:, :, RECEIVED]).view(np.int64)
        return difference

    def in_flight_in_all(self, rows: Rows) -> int:
        """Over rows and segments, where more was sent than received."""
        return int(np.maximum(self.in_flight_each(rows), 0).sum())

    def cell(self, row: int, segment: int) -> tuple[int, int, int, int, int]:
        """(xor, sent, received, last sender, last receiver) of a cell; a producer's number, -1 for none."""
        xor, sent, received, who = self.cells[row * self.segments + segment].tolist()
        return xor, sent, received, (who & 0xFFFFFFFF) - 1, (who >> 32) - 1

    def _cells_of(self, rows: Rows) -> Rows:
        return (rows[:, None] * self.segments + np.arange(self.segments)).ravel()

    def finish(self, rows: Rows) -> None:
        """Rows have ended on every segment."""
        self.flags[rows] |= DONE
        self.open -= len(rows)
        self.done += len(rows)

    def relaid(self, segments: int, reason: int, kept: Sequence[tuple[int, int]]) -> None:
        """Go over to another graph: every known row has ended on all of its segments.

        Args:
            segments: how many there are now.
            reason: the Reason for segments that are new.
            kept: (old number, new number) of the segments that stay.
        """
        old_cells = self.cells.reshape(-1, self.segments, 4)
        old_ended = self.ended.reshape(-1, self.segments)
        cells = np.zeros((self._capacity, segments, 4), np.uint64)
        ended = np.zeros((self._capacity, segments), np.uint8)
        ended[(self.flags & KNOWN) != 0] = reason
        for old, new in kept:
            cells[:, new] = old_cells[:, old]
            ended[:, new] = old_ended[:, old]
        self.segments = segments
        self.cells = cells.reshape(-1, 4)
        self.ended = ended.reshape(-1)
        self._stamp = np.zeros(self._capacity * segments, np.uint32)

    # ------------------------------------------------------------ dump and load

    def dump(self) -> dict[str, Any]:
        """The substreams as plain values and columns, in the order of their ids."""
        rows = self.in_use(0)
        rows = rows[np.argsort(self.ids_of(rows), kind="stable")]
        return {
            "segments": self.segments,
            "next_id": self.next_id,
            "ids": self.ids_of(rows) if rows.size else np.empty(0, np.int64),
            "names": [self.names[row] for row in rows.tolist()],
            "scope_names": list(self.scope_names),
            "free_scopes": list(self._free_scopes),
            "scope": self.scope[rows],
            "flags": self.flags[rows],
            "end_time": self.end_time[rows],
            "created": self.created[rows],
            "changed": self.changed[rows],
            "cells": self.cells.reshape(-1, self.segments * 4)[rows].ravel(),
            "ended": self.ended.reshape(-1, self.segments)[rows].ravel(),
        }

    @classmethod
    def load(cls, dump: dict[str, Any]) -> Accounts:
        """The accounts that gave `dump`."""
        ids: NDArray[np.int64] = dump["ids"]
        segments: int = dump["segments"]
        accounts = cls(segments, int(ids[0]) if len(ids) else dump["next_id"])
        accounts.scope_names = list(dump["scope_names"])
        accounts._free_scopes = list(dump["free_scopes"])
        free = set(accounts._free_scopes)
        accounts.scope_number = {name: i for i, name in enumerate(accounts.scope_names) if i not in free}
        accounts._rows_of_scope = [0] * len(accounts.scope_names)
        pages, counts = np.unique(ids >> PAGE_BITS, return_counts=True)
        accounts._grow(len(pages) << PAGE_BITS)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            accounts.next_id = page << PAGE_BITS
            accounts._in_use[accounts._open_page()] = count
        accounts.next_id = dump["next_id"]
        slots = np.repeat(np.arange(len(pages)), counts)
        rows = (slots << PAGE_BITS) | (ids & (PAGE - 1))
        for row, name in zip(rows.tolist(), dump["names"], strict=True):
            accounts.names[row] = name
        for column in ("scope", "flags", "end_time", "created", "changed"):
            getattr(accounts, column)[rows] = dump[column]
        if len(rows):
            accounts.cells.reshape(-1, segments * 4)[rows] = dump["cells"].reshape(-1, segments * 4)
            accounts.ended.reshape(-1, segments)[rows] = dump["ended"].reshape(-1, segments)
            scopes = accounts.scope[rows].astype(np.int64)
            accounts._count_scopes(scopes, 1)
            accounts.table.add(scopes, dump["names"], rows)
        known = (accounts.flags & KNOWN) != 0
        accounts.done = int(((accounts.flags & DONE) != 0).sum())
        accounts.open = int(known.sum()) - accounts.done
        return accounts


def _extended(column: NDArray[Any], length: int) -> NDArray[Any]:
    longer = np.zeros((length, *column.shape[1:]), column.dtype)
    longer[: len(column)] = column
    return longer


def _signed(who: U8, sent: U8, received: U8, producer: int) -> U8:
    """The words that say who last sent and received, `producer` put where the counts say so."""
    # As words of ones and zeros: cheaper than choosing element by element.
    change = (sent > 0) * _SENDER | (received > 0) * _RECEIVER
    mark = np.uint64(producer + 1)
    changed: U8 = (who & ~change) | (change & (mark | mark << _SHIFT))
    return changed


__all__ = ["NO_END_TIME", "Accounts", "Entries"]
