"""The accumulators of a job's substreams, and on which segments they have ended, by row and segment.

A *cell* is the accumulator of one (row, segment): four 64-bit words side by side (xor, sent, received, and who last
sent and received), so that folding an entry touches one place in memory. A row's dates and scope are four words, too:
its *record*. Where the cells and records lie depends on how many segments the job has:

- `Cells`, for few: a row has its record and then a cell for each segment, at a place that is computed. Nothing is
  looked up, and with one segment all that an entry touches is one cache line.
- `SparseCells`, for more: a row has a block of cells for each group of segments that was touched. So memory depends on
  what was reported and announced, and not on segments that nobody has touched.

`accounts` chooses. This module folds, compares and remembers. It knows nothing of names, ids or flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from .graph import Graph

Rows = NDArray[np.int64]
U8 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_FEW = 4  # up to so many entries are quicker one by one than by whole columns
AT_ONCE = 1 << 22  # cells of a matrix of rows and segments that is made at once

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

    def where(self, mask: Mask) -> Entries:
        """Return the entries that `mask` selects."""
        rows, segments, xor, sent, received = self
        return Entries(rows[mask], segments[mask], xor[mask], sent[mask], received[mask])

    @classmethod
    def concatenate(cls, parts: Sequence[Entries]) -> Entries:
        """Return all entries, in order."""
        if len(parts) == 1:
            return parts[0]
        rows, segments, xor, sent, received = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return cls(rows, segments, xor, sent, received)


class Touched(NamedTuple):
    """Cells that are not empty."""

    at: Rows  #: places in the rows that were asked for
    segments: Rows
    words: U8  #: four for each


class Cells:
    """Cells where each row has one for each segment, at a place that is computed."""

    def __init__(self, segments: int) -> None:
        self.segments = segments
        self.words: U8 = np.zeros((0, 4), np.uint64)
        self._blocks: U8 = np.zeros((0, segments, 4), np.uint64)  # a row's cells
        self._place_records(self.words)
        # Over all cells of open rows: by how much more was sent than received, or less; and the parts that are less.
        self._balance = self._surplus = 0
        self._stamp: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._ended: NDArray[np.uint8] = np.zeros((0, segments), np.uint8)  # 0, or the reason

    # ------------------------------------------------------------ the layout

    @property
    def count(self) -> int:
        """Return how many cells take up memory."""
        return len(self._ended) * self.segments

    def grow(self, capacity: int) -> None:
        """Make room for so many rows."""
        self.words = _aligned(self.words, capacity * (1 + self.segments))
        self._stamp = extended(self._stamp, len(self.words))
        self._ended = extended(self._ended, capacity)
        self._place()

    def copied(self, rows: int) -> Self:
        """Return a copy of the first `rows` rows, which `dump` can read while these cells change: a few blocks of
        memory, so it is quick.
        """
        other = copy(self)
        other.words = self.words[: rows * (1 + self.segments)].copy()
        other._ended = self._ended[:rows].copy()
        other._place()
        return other

    def _place(self) -> None:
        """Find the parts of a row in the words."""
        rows = self.words.reshape(-1, 1 + self.segments, 4)
        self._blocks = rows[:, 1:]
        self._place_records(rows[:, 0])

    def _place_records(self, records: U8) -> None:
        """Read and write the rows' dates and scopes there: uint64[capacity, 4], one after another or between cells."""
        self._records = records
        self.changed, self.end_time, self.created = records.view(np.int64).T[:3]
        self.scope = records.view(np.int32)[:, 6]

    def clear(self, rows: Rows) -> None:
        """Reset these rows."""
        self._records[rows] = 0
        self._blocks[rows] = 0
        self._ended[rows] = 0

    def places(self, rows: Rows, segments: Rows) -> Rows:
        """Return the places of the cells of (row, segment) pairs, and allocate those that have none."""
        return rows * (1 + self.segments) + (1 + segments)

    def touched(self, rows: Rows) -> Touched:
        """Return the cells of rows that are not empty."""
        blocks = self._blocks[rows]
        at, segments = np.nonzero(blocks.any(axis=2))
        return Touched(at, segments, blocks[at, segments])

    def cell(self, row: int, segment: int) -> tuple[int, int, int, int]:
        xor, sent, received, who = self.words[row * (1 + self.segments) + 1 + segment].tolist()
        return xor, sent, received, who

    def sent_each(self, rows: Rows, segments: Rows) -> U8:
        """Return how many elements were sent in all, for each (row, segment)."""
        sent: U8 = self._blocks[rows, segments, SENT]
        return sent

    def unbalanced(self, rows: Rows) -> Mask:
        """Return, for each row and segment, whether the accumulator is not balanced."""
        return do_not_balance(self._blocks[rows])

    def in_flight_each(self, rows: Rows) -> NDArray[np.int64]:
        """Return, for each row and segment, how many were sent and not received; negative if the reverse."""
        return flight_of(self._blocks[rows])

    def reasons(self, rows: Rows, segments: Rows) -> NDArray[np.uint8]:
        """Return for each (row, segment) the number of the reason for its end, or 0."""
        return self._ended[rows, segments]

    def reason(self, row: int, segment: int) -> int:
        """Return the reason for which a row has ended on a segment, or 0."""
        return self._ended.item(row, segment)

    def has_ended(self, rows: Rows) -> Mask:
        """Return for each row and segment whether it has ended."""
        ended: Mask = self._ended[rows] != 0
        return ended

    def mark(self, row: int, segment: int, reason: int) -> bool:
        """Mark a row as ended on a segment; return whether it has now ended on all."""
        ended = self._ended[row]
        ended[segment] = reason
        return bool(ended.all())

    def mark_each(self, rows: Rows, segments: Mask, reason: int) -> Mask:
        """Mark rows as ended on the segments chosen for each; return which have now ended on all."""
        after = self._ended[rows]
        after[segments] = reason
        self._ended[rows] = after
        return all_of(after)

    def set_reasons(self, rows: Rows, reasons: NDArray[np.uint8]) -> None:
        """Mark rows that have no mark yet as ended, by the reasons for each row and segment."""
        self._ended[rows] = reasons

    def endable(self, rows: Rows, graph: Graph) -> tuple[Rows, Mask]:
        """Find which of some closed rows can end on which segments: balanced there and upstream, and not ended.

        Returns:
            the rows that can end on any segment, and for each of them and each segment whether it can.
        """
        blocked = self.unbalanced(rows).astype(np.float32) @ graph.weights.T > 0
        may: Mask = ~(blocked | self.has_ended(rows))
        some = any_of(may)
        return rows[some], may[some]

    def owing(self, rows: Rows) -> Mask:
        """Find the rows that do not balance on a segment on which they have not ended."""
        return any_of(self.unbalanced(rows) & ~self.has_ended(rows))

    def dump(self, rows: Rows) -> dict[str, Any]:
        """Return the state of rows, as columns."""
        return {"cells": self._blocks[rows].ravel(), "ended": self._ended[rows].ravel()}

    def load(self, rows: Rows, dump: dict[str, Any]) -> None:
        """Load what the `dump` of either layout gave for as many rows."""
        self._blocks[rows] = dump["cells"].reshape(-1, self.segments, 4)
        self._ended[rows] = dump["ended"].reshape(-1, self.segments)

    # ------------------------------------------------------------ folding

    def fold(self, entries: Entries, producer: int) -> None:
        """Fold entries in; `producer` is the number of the one who reported them."""
        places = self.places(entries.rows, entries.segments)
        if len(places) <= _FEW:
            self._fold_one_by_one(places, entries, producer)
            return
        # The last of those that want the same cell leaves its mark; it goes the short way, the others one by one.
        order = np.arange(len(places), dtype=np.uint32)
        self._stamp[places] = order
        first = self._stamp[places] == order
        if first.all():
            self._fold_distinct(places, entries.xor, entries.sent, entries.received, producer)
            return
        won = entries.where(first)
        self._fold_distinct(places[first], won.xor, won.sent, won.received, producer)
        rest = ~first
        places, lost = places[rest], entries.where(rest)
        self._change(places, lost, np.add)
        self._balance += int(lost.sent.sum()) - int(lost.received.sum())
        self._sign(places, lost.sent, lost.received, producer)

    def _fold_one_by_one(self, places: Rows, entries: Entries, producer: int) -> None:
        mark = producer + 1
        for place, x, s, r in zip(
            places.tolist(), entries.xor.tolist(), entries.sent.tolist(), entries.received.tolist(), strict=True
        ):
            xor, sent, received, who = self.words[place].tolist()
            sender = mark if s else who & 0xFFFFFFFF
            receiver = mark if r else who >> 32
            self.words[place] = (xor ^ x, sent + s, received + r, receiver << 32 | sender)
            self._balance += s - r
            self._surplus += max(0, received + r - sent - s) - max(0, received - sent)

    def _fold_distinct(self, places: Rows, xor: U8, sent: U8, received: U8, producer: int) -> None:
        block = self.words.take(places, axis=0)
        before = surplus_of(block) if self._surplus else 0
        block[:, XOR] ^= xor
        block[:, SENT] += sent
        block[:, RECEIVED] += received
        taken_off = int(received.sum())
        self._balance += int(sent.sum()) - taken_off
        # Receivers are rarely ahead of senders: then one look at all shows that there is no surplus to count.
        if self._surplus or (taken_off and flight_of(block).min() < 0):
            self._surplus += surplus_of(block) - before
        block[:, WHO] = _signed(block[:, WHO], sent, received, producer)
        self.words[places] = block

    def _sign(self, places: Rows, sent: U8, received: U8, producer: int) -> None:
        # In two passes: a cell that occurs twice, once as sent and once as received, gets both.
        mark = np.uint64(producer + 1)
        at = places[sent > 0]
        self.words[at, WHO] = (self.words[at, WHO] & _RECEIVER) | mark
        at = places[received > 0]
        self.words[at, WHO] = (self.words[at, WHO] & _SENDER) | (mark << _SHIFT)

    def unfold(self, entries: Entries) -> None:
        """Take out entries that were folded in."""
        places = self.places(entries.rows, entries.segments)
        self._change(places, entries, np.subtract)
        self._balance -= int(entries.sent.sum()) - int(entries.received.sum())

    def _change(self, places: Rows, entries: Entries, by: np.ufunc) -> None:
        """Add entries to cells, or subtract them; a cell may occur several times."""
        changed = distinct(places)
        before = surplus_of(self.words[changed])
        np.bitwise_xor.at(self.words[:, XOR], places, entries.xor)
        by.at(self.words[:, SENT], places, entries.sent)
        by.at(self.words[:, RECEIVED], places, entries.received)
        self._surplus += surplus_of(self.words[changed]) - before

    def count_folded(self, balance: int, surplus: int) -> None:
        """Count what was folded into `words` by another way: by how much the two sums over all cells have grown."""
        self._balance += balance
        self._surplus += surplus

    def put(self, rows: Rows, segments: Rows, words: U8) -> None:
        """Put cells as another layout, or another graph, had them."""
        places = self.places(rows, segments)  # which may make room in `words`
        self.words[places] = words

    # ------------------------------------------------------------ elements in flight

    @property
    def in_flight(self) -> int:
        """Return how many elements of open rows were sent and not received, over all their cells."""
        return self._balance + self._surplus

    def write_off(self, rows: Rows) -> None:
        """Stop counting elements in flight of rows that ended by force; any other end balances."""
        words = self.touched(rows).words
        self._balance -= int(flight_of(words).sum())
        self._surplus -= surplus_of(words)

    def count_in_flight(self, rows: Rows) -> None:
        """Count the elements in flight of open rows whose cells were just put in place."""
        self._balance = self._surplus = 0
        for part in self.parts(rows):
            words = self.touched(part).words
            self._balance += int(flight_of(words).sum())
            self._surplus += surplus_of(words)

    # ------------------------------------------------------------ reading

    def unbalanced_segments(self, rows: Rows) -> Mask:
        """Return, for each segment, whether any of some rows neither balances nor has ended there."""
        found = np.zeros(self.segments, np.bool_)
        for part in self.parts(rows):
            found |= np.logical_or.reduce(self.unbalanced(part) & ~self.has_ended(part), axis=0)
        return found

    def used_producers(self, rows: Rows) -> set[int]:
        """Return the numbers of the producers that cells of rows name."""
        used: set[int] = set()
        for part in self.parts(rows):
            who = self.touched(part).words[:, WHO]
            used.update(np.union1d(who & _SENDER, who >> _SHIFT).tolist())
        return {mark - 1 for mark in used if mark}

    def parts(self, rows: Rows) -> Iterator[Rows]:
        """Yield rows, so many at a time as matrices of rows and segments are made of."""
        step = max(1, AT_ONCE // self.segments)
        for start in range(0, len(rows), step):
            yield rows[start : start + step]


def _aligned(words: U8, length: int) -> U8:
    """Return words with room for more, which are 0, and none of which lies on two cache lines of 64 bytes."""
    room = np.zeros(4 * length + 7, np.uint64)
    start = -(room.ctypes.data >> 3) % 8
    longer = room[start : start + 4 * length].reshape(length, 4)
    longer[: len(words)] = words
    return longer


def extended(column: NDArray[Any], length: int) -> NDArray[Any]:
    """Return a column with room for more, which is 0."""
    longer = np.zeros((length, *column.shape[1:]), column.dtype)
    longer[: len(column)] = column
    return longer


def distinct(rows: Rows) -> Rows:
    """Return each of some numbers once, ascending; numpy's own `unique` takes several times as long."""
    if rows.size < 2:
        return rows
    ordered = np.sort(rows)
    first = np.empty(len(ordered), np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def any_of(matrix: NDArray[Any]) -> Mask:
    found: Mask = np.logical_or.reduce(matrix, axis=1)
    return found


def all_of(matrix: NDArray[Any]) -> Mask:
    found: Mask = np.logical_and.reduce(matrix, axis=1)
    return found


def surplus_of(words: U8) -> int:
    """Return how many elements more were received than sent, over those of some cells where that is so."""
    flight = flight_of(words)
    return -int(flight[flight < 0].sum())


def flight_of(words: U8) -> NDArray[np.int64]:
    """Return how many elements more were sent than received, for each of some cells."""
    flight: NDArray[np.int64] = (words[..., SENT] - words[..., RECEIVED]).view(np.int64)
    return flight


def do_not_balance(words: U8) -> Mask:
    unequal: Mask = words[..., SENT] != words[..., RECEIVED]
    unequal |= words[..., XOR] != 0
    return unequal


def _signed(who: U8, sent: U8, received: U8, producer: int) -> U8:
    """Return the words with the last sender and receiver: `producer` where its count is above 0."""
    # As words of ones and zeros: cheaper than choosing element by element.
    change = (sent > 0) * _SENDER | (received > 0) * _RECEIVER
    mark = np.uint64(producer + 1)
    changed: U8 = (who & ~change) | (change & (mark | mark << _SHIFT))
    return changed
