"""Cells for jobs of many segments: a row has a block of `BLOCK` cells for each group of segments that was touched.

Marks of a row's ends are kept only while it has ended on some segments and not on all, or for different reasons. So
memory depends on what was reported and announced, and not on segments that nobody has touched.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .cells import SENT, U8, Cells, Mask, Rows, Touched, all_of, any_of, do_not_balance, extended, flight_of
from .graph import Graph

BLOCK = 8  #: cells that are allocated together


class _Pool:
    """Numbered places of equal size, used again once they are freed."""

    __slots__ = ("_free", "_top")

    def __init__(self) -> None:
        self._free: list[int] = []
        self._top = 0

    def allocate(self, count: int) -> tuple[Rows, int]:
        """Allocate so many places; return them, and how many there are in all."""
        again = min(count, len(self._free))
        taken = self._free[len(self._free) - again :]
        del self._free[len(self._free) - again :]
        taken += range(self._top, self._top + count - again)
        self._top += count - again
        return np.array(taken, np.int64), self._top

    def give_back(self, places: Rows) -> None:
        self._free += places.tolist()

    @property
    def used(self) -> int:
        return self._top - len(self._free)


_GROUP, _BLOCK, _DIRECTORY = range(3)  # of a row's head


class SparseCells(Cells):
    """Cells for what was touched.

    Most rows touch one group of segments, and have that block only. One that touches more has a directory: a block's
    number for each group. It costs half a byte a segment.
    """

    _BY_ROW = ("_records", "_heads", "_marks_of", "_done")

    def __init__(self, segments: int) -> None:
        super().__init__(segments)
        self._groups = -(-segments // BLOCK)
        # By row, side by side, each with 1 added and 0 for none: the first block's group, that block, the directory.
        self._heads: NDArray[np.int32] = np.zeros((0, 3), np.int32)
        self._marks_of: NDArray[np.int32] = np.zeros(0, np.int32)
        self._done: NDArray[np.uint8] = np.zeros(0, np.uint8)  # by row: it has ended everywhere, for this one reason
        self._directories: NDArray[np.int32] = np.zeros((0, self._groups), np.int32)  # block + 1, by group
        self._marks: NDArray[np.uint8] = np.zeros((0, segments), np.uint8)  # reasons
        self._block_pool, self._directory_pool, self._marks_pool = _Pool(), _Pool(), _Pool()

    @property
    def count(self) -> int:
        return self._block_pool.used * BLOCK

    def grow(self, capacity: int) -> None:
        for name in self._BY_ROW:
            setattr(self, name, extended(getattr(self, name), capacity))
        self._place_records(self._records)

    def copied(self, rows: int) -> Self:
        other = copy(self)
        for name in self._BY_ROW:
            setattr(other, name, getattr(self, name)[:rows].copy())
        for name in ("words", "_directories", "_marks"):
            setattr(other, name, getattr(self, name).copy())
        other._place_records(other._records)
        return other

    def clear(self, rows: Rows) -> None:
        blocks = self._blocks_of(rows)[2]
        self.words.reshape(-1, BLOCK, 4)[blocks] = 0
        self._block_pool.give_back(blocks)
        listed = self._heads[rows, _DIRECTORY]
        directories = listed[listed > 0].astype(np.int64) - 1
        self._directories[directories] = 0
        self._directory_pool.give_back(directories)
        self._forget_marks(rows)
        self._done[rows] = 0
        self._heads[rows] = 0
        self._records[rows] = 0

    def _forget_marks(self, rows: Rows) -> None:
        marked = self._marks_of[rows]
        marks = marked[marked > 0].astype(np.int64) - 1
        self._marks[marks] = 0
        self._marks_pool.give_back(marks)
        self._marks_of[rows] = 0

    # ------------------------------------------------------------ blocks

    def _find_blocks(self, rows: Rows, groups: Rows) -> Rows:
        heads = self._heads.take(rows, axis=0)
        directories = heads[:, _DIRECTORY]
        listed = np.flatnonzero(directories)
        if len(listed) == len(rows):
            return self._directories[directories - 1, groups].astype(np.int64) - 1
        blocks = np.where(heads[:, _GROUP] == groups + 1, heads[:, _BLOCK], 0).astype(np.int64)
        if listed.size:
            blocks[listed] = self._directories[directories[listed] - 1, groups[listed]]
        return blocks - 1

    def _blocks_of(self, rows: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the blocks of rows: (place in `rows`, group, block), in no order."""
        heads = self._heads.take(rows, axis=0).astype(np.int64)
        one = np.flatnonzero((heads[:, _DIRECTORY] == 0) & (heads[:, _BLOCK] > 0))
        groups, blocks = heads[one, _GROUP] - 1, heads[one, _BLOCK] - 1
        more = np.flatnonzero(heads[:, _DIRECTORY])
        if not more.size:
            return one, groups, blocks
        listed = self._directories[heads[more, _DIRECTORY] - 1]
        at, group = listed.nonzero()
        block = listed[at, group].astype(np.int64) - 1
        return np.concatenate([one, more[at]]), np.concatenate([groups, group]), np.concatenate([blocks, block])

    def find(self, rows: Rows, segments: Rows) -> Rows:
        """Return the places of (row, segment) pairs, or -1 where a cell takes up no memory."""
        blocks = self._find_blocks(rows, segments // BLOCK)
        return np.where(blocks >= 0, blocks * BLOCK + segments % BLOCK, -1)

    def places(self, rows: Rows, segments: Rows) -> Rows:
        groups = segments // BLOCK
        blocks = self._find_blocks(rows, groups)
        missing = np.flatnonzero(blocks < 0)
        if missing.size:
            wanted, which = np.unique(rows[missing] * self._groups + groups[missing], return_inverse=True)
            blocks[missing] = self._add_blocks(wanted // self._groups, wanted % self._groups)[which]
        return blocks * BLOCK + segments % BLOCK

    def _add_blocks(self, rows: Rows, groups: Rows) -> Rows:
        """Add new blocks for distinct (row, group) pairs, in the order of their rows."""
        blocks, top = self._block_pool.allocate(len(rows))
        if top * BLOCK > len(self.words):
            room = max(top, len(self.words) // BLOCK * 3 // 2) * BLOCK
            self.words, self._stamp = extended(self.words, room), extended(self._stamp, room)
        first = (np.diff(rows, prepend=-1) != 0) & (self._heads[rows, _BLOCK] == 0)
        self._heads[rows[first], _BLOCK] = blocks[first] + 1
        self._heads[rows[first], _GROUP] = groups[first] + 1
        rest, to_list = rows[~first], blocks[~first]
        if rest.size:
            self._add_directories(np.unique(rest[self._heads[rest, _DIRECTORY] == 0]))
            self._directories[self._heads[rest, _DIRECTORY] - 1, groups[~first]] = to_list + 1
        return blocks

    def _add_directories(self, rows: Rows) -> None:
        """Add directories for rows that had one block."""
        places, top = self._directory_pool.allocate(len(rows))
        if top > len(self._directories):
            self._directories = extended(self._directories, max(top, len(self._directories) * 3 // 2))
        self._heads[rows, _DIRECTORY] = places + 1
        self._directories[places, self._heads[rows, _GROUP] - 1] = self._heads[rows, _BLOCK]

    def touched(self, rows: Rows) -> Touched:
        index, groups, blocks = self._blocks_of(rows)
        words = self.words.reshape(-1, BLOCK, 4)[blocks]
        at, segments = np.nonzero(words.any(axis=2))
        return Touched(index[at], groups[at] * BLOCK + segments, words[at, segments])

    def cell(self, row: int, segment: int) -> tuple[int, int, int, int]:
        place = int(self.find(np.array([row]), np.array([segment]))[0])
        if place < 0:
            return 0, 0, 0, 0
        xor, sent, received, who = self.words[place].tolist()
        return xor, sent, received, who

    def sent_each(self, rows: Rows, segments: Rows) -> U8:
        places = self.find(rows, segments)
        found = places >= 0
        sent: U8 = self.words[places * found, SENT] if len(self.words) else np.zeros(len(places), np.uint64)
        return sent * found

    def unbalanced(self, rows: Rows) -> Mask:
        index, segments, words = self.touched(rows)
        mask = np.zeros((len(rows), self.segments), np.bool_)
        mask[index, segments] = do_not_balance(words)
        return mask

    def in_flight_each(self, rows: Rows) -> NDArray[np.int64]:
        index, segments, words = self.touched(rows)
        flight = np.zeros((len(rows), self.segments), np.int64)
        flight[index, segments] = flight_of(words)
        return flight

    def _unbalanced_pairs(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return (place in `rows`, segment) of what does not balance."""
        index, groups, blocks = self._blocks_of(rows)
        at, segments = do_not_balance(self.words.reshape(-1, BLOCK, 4)[blocks]).nonzero()
        return index[at], groups[at] * BLOCK + segments

    def reasons(self, rows: Rows, segments: Rows) -> NDArray[np.uint8]:
        reasons = self._done[rows]
        marks = self._marks_of[rows]
        has = marks > 0
        if has.any():
            reasons[has] = self._marks[marks[has] - 1, segments[has]]
        return reasons

    def reason(self, row: int, segment: int) -> int:
        return int(self.reasons(np.array([row]), np.array([segment]))[0])

    def has_ended(self, rows: Rows) -> Mask:
        ended = np.repeat(self._done[rows] != 0, self.segments).reshape(-1, self.segments)
        marks = self._marks_of[rows]
        has = marks > 0
        ended[has] = self._marks[marks[has] - 1] != 0
        return ended

    def mark(self, row: int, segment: int, reason: int) -> bool:
        at = self._marks_of.item(row)
        if not at:
            self._add_marks(np.array([row]))
            at = self._marks_of.item(row)
        marks = self._marks[at - 1]
        marks[segment] = reason
        if not marks.all():
            return False
        self._pack(np.array([row]))
        return True

    def mark_each(self, rows: Rows, segments: Mask, reason: int) -> Mask:
        at_once = all_of(segments)
        self._done[rows[at_once]] = reason
        some = rows[~at_once]
        if some.size:
            self._add_marks(some[self._marks_of[some] == 0])
            places = self._marks_of[some] - 1
            after = self._marks[places]
            after[segments[~at_once]] = reason
            self._marks[places] = after
            ended = all_of(after)
            self._pack(some[ended])
            at_once[~at_once] = ended
        return at_once

    def _add_marks(self, rows: Rows) -> None:
        places, top = self._marks_pool.allocate(len(rows))
        if top > len(self._marks):
            self._marks = extended(self._marks, max(top, len(self._marks) * 3 // 2))
        self._marks_of[rows] = places + 1

    def _pack(self, rows: Rows) -> None:
        """Free the marks of rows that ended on every segment for one reason."""
        marks = self._marks[self._marks_of[rows] - 1]
        alike = rows[(marks == marks[:, :1]).all(axis=1)]
        reasons = self._marks[self._marks_of[alike] - 1, 0]
        self._forget_marks(alike)
        self._done[alike] = reasons

    def set_reasons(self, rows: Rows, reasons: NDArray[np.uint8]) -> None:
        marked = reasons.any(axis=1)
        rows, reasons = rows[marked], reasons[marked]
        self._add_marks(rows)
        self._marks[self._marks_of[rows] - 1] = reasons
        self._pack(rows[reasons.all(axis=1)])

    def endable(self, rows: Rows, graph: Graph) -> tuple[Rows, Mask]:
        found: list[tuple[Rows, Mask]] = []
        for part in self.parts(rows):
            may = ~self.has_ended(part)
            index, segments = self._unbalanced_pairs(part)
            order = np.argsort(segments, kind="stable")
            blocking, starts = np.unique(segments[order], return_index=True)
            bounds = [*starts.tolist(), len(order)]
            for segment, start, stop in zip(blocking.tolist(), bounds, bounds[1:], strict=False):
                may[index[order[start:stop]]] &= ~graph.downstream(segment)
            some = any_of(may)
            found.append((part[some], may[some]))
        if len(found) == 1:
            return found[0]
        if not found:
            return rows, np.zeros((0, self.segments), np.bool_)
        return np.concatenate([part for part, _ in found]), np.concatenate([may for _, may in found])

    def owing(self, rows: Rows) -> Mask:
        owing = np.zeros(len(rows), np.bool_)
        index, segments = self._unbalanced_pairs(rows)
        owing[index[self.reasons(rows[index], segments) == 0]] = True
        return owing

    # ------------------------------------------------------------ dump and load

    def dump(self, rows: Rows) -> dict[str, Any]:
        index, segments, words = self.touched(rows)
        marked = np.flatnonzero(self._marks_of[rows])
        return {
            "touched": [index, segments, words],
            "done": self._done[rows],
            "marked": [marked, self._marks[self._marks_of[rows[marked]] - 1]],
        }

    def load(self, rows: Rows, dump: dict[str, Any]) -> None:
        if "cells" in dump:  # of a version that had a cell for each segment of each row
            for start in range(0, len(rows), 4096):
                part = slice(start, start + 4096)
                words = dump["cells"].reshape(-1, self.segments, 4)[part]
                index, segments = np.nonzero(words.any(axis=2))
                self.put(rows[part][index], segments, words[index, segments])
                self.set_reasons(rows[part], dump["ended"].reshape(-1, self.segments)[part])
            return
        index, segments, words = dump["touched"]
        self.put(rows[index], segments, words)
        self._done[rows] = dump["done"]
        marked, marks = dump["marked"]
        if len(marked):
            self._add_marks(rows[marked])
            self._marks[self._marks_of[rows[marked]] - 1] = marks
