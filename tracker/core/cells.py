"""The accumulators of a job's substreams, and on which segments they have ended, by row and segment.

A *cell* is the accumulator of one (row, segment): four 64-bit words side by side (xor, sent, received, and who last
sent and received), so that folding an entry touches one place in memory. Where the cells of a row lie depends on how
many segments the job has:

- `DenseCells`, for few: a row has a cell for each segment, at a place that is computed. Nothing is looked up.
- `SparseCells`, for more: a row has a block of `BLOCK` cells for each group of segments that was touched, and marks of
  its ends only while it has ended on some segments and not on all, or for different reasons. So memory depends on what
  was reported and announced, and not on segments that nobody has touched.

This module folds, compares and remembers. It knows nothing of names, ids or flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .graph import Graph

Rows = NDArray[np.int64]
U8 = NDArray[np.uint64]
Mask = NDArray[np.bool_]

DENSE = 8  #: up to so many segments each row has all its cells
BLOCK = 8  #: cells that are allocated together where there are more segments

_FEW = 4  # up to so many entries are quicker one by one than by whole columns
_AT_ONCE = 1 << 22  # cells of a matrix of rows and segments that is made at once

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


class Touched(NamedTuple):
    """Cells that are not empty."""

    at: Rows  #: places in the rows that were asked for
    segments: Rows
    words: U8  #: four for each


class Cells:
    """What both layouts have in common: words, folded at places.

    Args:
        segments: how many segments each row has.
    """

    def __init__(self, segments: int) -> None:
        self.segments = segments
        self.words: U8 = np.zeros((0, 4), np.uint64)
        # Over all cells of open rows: by how much more was sent than received, or less; and the parts that are less.
        self._balance = self._surplus = 0
        self._stamp: NDArray[np.uint32] = np.zeros(0, np.uint32)

    # ------------------------------------------------------------ what a layout must know

    @property
    def count(self) -> int:
        """How many cells take up memory."""
        return len(self.words)

    def grow(self, capacity: int) -> None:
        """Have room for so many rows."""
        raise NotImplementedError

    def clear(self, rows: Rows) -> None:
        """Nothing has happened to these rows."""
        raise NotImplementedError

    def places(self, rows: Rows, segments: Rows) -> Rows:
        """Where the cells of (row, segment) pairs are, or will be from now on."""
        raise NotImplementedError

    def find(self, rows: Rows, segments: Rows) -> Rows:
        """Where they are; -1 for those that take up no memory."""
        raise NotImplementedError

    def touched(self, rows: Rows) -> Touched:
        """The cells of rows that are not empty."""
        raise NotImplementedError

    def reasons(self, rows: Rows, segments: Rows) -> NDArray[np.uint8]:
        """For each (row, segment), 0 or the reason for which it has ended."""
        raise NotImplementedError

    def has_ended(self, rows: Rows) -> Mask:
        """For each row and segment, whether it has ended."""
        raise NotImplementedError

    def mark(self, row: int, segment: int, reason: int) -> bool:
        """A row has ended on a segment; whether it has on all now."""
        raise NotImplementedError

    def mark_each(self, rows: Rows, segments: Mask, reason: int) -> Mask:
        """Rows have ended on the segments that are chosen for each; which have on all now."""
        raise NotImplementedError

    def set_reasons(self, rows: Rows, reasons: NDArray[np.uint8]) -> None:
        """Rows, of which nothing is marked, have ended as `reasons` says for each row and segment."""
        raise NotImplementedError

    def endable(self, rows: Rows, graph: Graph) -> tuple[Rows, Mask]:
        """Which of some closed rows can end on which segments: balanced on all that is upstream, and not ended.

        Returns:
            the rows that can end on any segment, and for each of them and each segment whether it can.
        """
        raise NotImplementedError

    def owing(self, rows: Rows) -> Mask:
        """Which rows do not balance on a segment on which they have not ended."""
        raise NotImplementedError

    def dump(self, rows: Rows) -> dict[str, Any]:
        """All that is known of rows, as columns."""
        raise NotImplementedError

    def load(self, rows: Rows, dump: dict[str, Any]) -> None:
        """Take over what either layout gave for as many rows."""
        raise NotImplementedError

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
        changed = distinct(places)
        before = _surplus(self.words[changed])
        np.bitwise_xor.at(self.words[:, XOR], places, lost.xor)
        np.add.at(self.words[:, SENT], places, lost.sent)
        np.add.at(self.words[:, RECEIVED], places, lost.received)
        self._surplus += _surplus(self.words[changed]) - before
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
        before = _surplus(block) if self._surplus else 0
        block[:, XOR] ^= xor
        block[:, SENT] += sent
        block[:, RECEIVED] += received
        self._balance += int(sent.sum()) - int(received.sum())
        # Receivers are rarely ahead of senders: then one look at all shows that there is no surplus to count.
        if self._surplus or _flight(block).min() < 0:
            self._surplus += _surplus(block) - before
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
        """Take out what was folded in."""
        places = self.places(entries.rows, entries.segments)
        changed = distinct(places)
        before = _surplus(self.words[changed])
        np.bitwise_xor.at(self.words[:, XOR], places, entries.xor)
        np.subtract.at(self.words[:, SENT], places, entries.sent)
        np.subtract.at(self.words[:, RECEIVED], places, entries.received)
        self._surplus += _surplus(self.words[changed]) - before
        self._balance -= int(entries.sent.sum()) - int(entries.received.sum())

    def put(self, rows: Rows, segments: Rows, words: U8) -> None:
        """Cells as another layout, or another graph, had them."""
        places = self.places(rows, segments)  # which may make room in `words`
        self.words[places] = words

    # ------------------------------------------------------------ elements in flight

    @property
    def in_flight(self) -> int:
        """How many elements of open rows were sent and not received, over all their cells."""
        return self._balance + self._surplus

    def write_off(self, rows: Rows) -> None:
        """Rows have ended by force: nothing of them is in flight any more. What ends otherwise balances."""
        words = self.touched(rows).words
        self._balance -= int(_flight(words).sum())
        self._surplus -= _surplus(words)

    def count_in_flight(self, rows: Rows) -> None:
        """Cells were put in place, and these rows are open."""
        self._balance = self._surplus = 0
        for part in self._parts(rows):
            words = self.touched(part).words
            self._balance += int(_flight(words).sum())
            self._surplus += _surplus(words)

    # ------------------------------------------------------------ reading

    def cell(self, row: int, segment: int) -> tuple[int, int, int, int]:
        """The words of a cell."""
        place = int(self.find(np.array([row]), np.array([segment]))[0])
        if place < 0:
            return 0, 0, 0, 0
        xor, sent, received, who = self.words[place].tolist()
        return xor, sent, received, who

    def reason(self, row: int, segment: int) -> int:
        """0, or the reason for which a row has ended on a segment."""
        return int(self.reasons(np.array([row]), np.array([segment]))[0])

    def sent_each(self, rows: Rows, segments: Rows) -> U8:
        """How many elements were sent in all, for each (row, segment)."""
        places = self.find(rows, segments)
        found = places >= 0
        sent: U8 = self.words[places * found, SENT] if len(self.words) else np.zeros(len(places), np.uint64)
        return sent * found

    def unbalanced(self, rows: Rows) -> Mask:
        """For each row and segment, whether the accumulator is not balanced."""
        index, segments, words = self.touched(rows)
        mask = np.zeros((len(rows), self.segments), np.bool_)
        mask[index, segments] = _unbalanced(words)
        return mask

    def in_flight_each(self, rows: Rows) -> NDArray[np.int64]:
        """For each row and segment, how many were sent and not received; negative if the reverse."""
        index, segments, words = self.touched(rows)
        flight = np.zeros((len(rows), self.segments), np.int64)
        flight[index, segments] = _flight(words)
        return flight

    def used_producers(self, rows: Rows) -> set[int]:
        """The numbers of the producers that cells of rows name."""
        used: set[int] = set()
        for part in self._parts(rows):
            who = self.touched(part).words[:, WHO]
            used.update(np.union1d(who & _SENDER, who >> _SHIFT).tolist())
        return {mark - 1 for mark in used if mark}

    def _parts(self, rows: Rows) -> Iterator[Rows]:
        """Rows, so many at a time as matrices of rows and segments are made of."""
        step = max(1, _AT_ONCE // self.segments)
        for start in range(0, len(rows), step):
            yield rows[start : start + step]


class DenseCells(Cells):
    """A cell for each segment of each row."""

    def __init__(self, segments: int) -> None:
        super().__init__(segments)
        self._ended: NDArray[np.uint8] = np.zeros((0, segments), np.uint8)  # 0, or the reason

    def grow(self, capacity: int) -> None:
        self.words = extended(self.words, capacity * self.segments)
        self._stamp = extended(self._stamp, capacity * self.segments)
        self._ended = extended(self._ended, capacity)

    @property
    def _blocks(self) -> U8:
        return self.words.reshape(-1, self.segments, 4)

    def clear(self, rows: Rows) -> None:
        self._blocks[rows] = 0
        self._ended[rows] = 0

    def places(self, rows: Rows, segments: Rows) -> Rows:
        return rows * self.segments + segments

    find = places

    def touched(self, rows: Rows) -> Touched:
        blocks = self._blocks[rows]
        at, segments = np.nonzero(blocks.any(axis=2))
        return Touched(at, segments, blocks[at, segments])

    def cell(self, row: int, segment: int) -> tuple[int, int, int, int]:
        xor, sent, received, who = self.words[row * self.segments + segment].tolist()
        return xor, sent, received, who

    def sent_each(self, rows: Rows, segments: Rows) -> U8:
        sent: U8 = self.words[rows * self.segments + segments, SENT]
        return sent

    def unbalanced(self, rows: Rows) -> Mask:
        return _unbalanced(self._blocks[rows])

    def in_flight_each(self, rows: Rows) -> NDArray[np.int64]:
        return _flight(self._blocks[rows])

    def reasons(self, rows: Rows, segments: Rows) -> NDArray[np.uint8]:
        return self._ended[rows, segments]

    def reason(self, row: int, segment: int) -> int:
        return self._ended.item(row, segment)

    def has_ended(self, rows: Rows) -> Mask:
        ended: Mask = self._ended[rows] != 0
        return ended

    def mark(self, row: int, segment: int, reason: int) -> bool:
        ended = self._ended[row]
        ended[segment] = reason
        return bool(ended.all())

    def mark_each(self, rows: Rows, segments: Mask, reason: int) -> Mask:
        after = self._ended[rows]
        after[segments] = reason
        self._ended[rows] = after
        return _all(after)

    def set_reasons(self, rows: Rows, reasons: NDArray[np.uint8]) -> None:
        self._ended[rows] = reasons

    def endable(self, rows: Rows, graph: Graph) -> tuple[Rows, Mask]:
        blocked = self.unbalanced(rows).astype(np.float32) @ graph.weights.T > 0
        may: Mask = ~(blocked | self.has_ended(rows))
        some = _any(may)
        return rows[some], may[some]

    def owing(self, rows: Rows) -> Mask:
        return _any(self.unbalanced(rows) & ~self.has_ended(rows))

    def dump(self, rows: Rows) -> dict[str, Any]:
        return {"cells": self._blocks[rows].ravel(), "ended": self._ended[rows].ravel()}

    def load(self, rows: Rows, dump: dict[str, Any]) -> None:
        self._blocks[rows] = dump["cells"].reshape(-1, self.segments, 4)
        self._ended[rows] = dump["ended"].reshape(-1, self.segments)


class _Pool:
    """Numbered places of equal size; those that are given back are used again."""

    __slots__ = ("_free", "_top")

    def __init__(self) -> None:
        self._free: list[int] = []
        self._top = 0

    def take(self, count: int) -> tuple[Rows, int]:
        """So many places, and how many there are in all from now on."""
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
        for name in ("_heads", "_marks_of", "_done"):
            setattr(self, name, extended(getattr(self, name), capacity))

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
        """The blocks of rows: (place in `rows`, group, block), in no order."""
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
        """New blocks for distinct (row, group) pairs, in the order of their rows."""
        blocks, top = self._block_pool.take(len(rows))
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
        """Directories for rows that had one block."""
        places, top = self._directory_pool.take(len(rows))
        if top > len(self._directories):
            self._directories = extended(self._directories, max(top, len(self._directories) * 3 // 2))
        self._heads[rows, _DIRECTORY] = places + 1
        self._directories[places, self._heads[rows, _GROUP] - 1] = self._heads[rows, _BLOCK]

    def touched(self, rows: Rows) -> Touched:
        index, groups, blocks = self._blocks_of(rows)
        words = self.words.reshape(-1, BLOCK, 4)[blocks]
        at, segments = np.nonzero(words.any(axis=2))
        return Touched(index[at], groups[at] * BLOCK + segments, words[at, segments])

    def _unbalanced_pairs(self, rows: Rows) -> tuple[Rows, Rows]:
        """(place in `rows`, segment) of what does not balance."""
        index, groups, blocks = self._blocks_of(rows)
        at, segments = _unbalanced(self.words.reshape(-1, BLOCK, 4)[blocks]).nonzero()
        return index[at], groups[at] * BLOCK + segments

    def reasons(self, rows: Rows, segments: Rows) -> NDArray[np.uint8]:
        reasons = self._done[rows]
        marks = self._marks_of[rows]
        has = marks > 0
        if has.any():
            reasons[has] = self._marks[marks[has] - 1, segments[has]]
        return reasons

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
        at_once = _all(segments)
        self._done[rows[at_once]] = reason
        some = rows[~at_once]
        if some.size:
            self._add_marks(some[self._marks_of[some] == 0])
            places = self._marks_of[some] - 1
            after = self._marks[places]
            after[segments[~at_once]] = reason
            self._marks[places] = after
            ended = _all(after)
            self._pack(some[ended])
            at_once[~at_once] = ended
        return at_once

    def _add_marks(self, rows: Rows) -> None:
        places, top = self._marks_pool.take(len(rows))
        if top > len(self._marks):
            self._marks = extended(self._marks, max(top, len(self._marks) * 3 // 2))
        self._marks_of[rows] = places + 1

    def _pack(self, rows: Rows) -> None:
        """Rows have ended on every segment: those that have for one reason need no marks for it."""
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
        for part in self._parts(rows):
            may = ~self.has_ended(part)
            index, segments = self._unbalanced_pairs(part)
            order = np.argsort(segments, kind="stable")
            blocking, starts = np.unique(segments[order], return_index=True)
            bounds = [*starts.tolist(), len(order)]
            for segment, start, stop in zip(blocking.tolist(), bounds, bounds[1:], strict=False):
                may[index[order[start:stop]]] &= ~graph.downstream(segment)
            some = _any(may)
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


def cells_for(segments: int) -> Cells:
    """The layout for so many segments."""
    return DenseCells(segments) if segments <= DENSE else SparseCells(segments)


def relaid(old: Cells, rows: Rows, capacity: int, segments: int, reason: int, kept: Sequence[tuple[int, int]]) -> Cells:
    """The cells for another graph, on all of whose segments each of `rows` has ended.

    Args:
        old: the cells for the graph before.
        rows: all that are known.
        capacity: how many rows to have room for.
        segments: how many there are now.
        reason: why rows have ended on segments that are new.
        kept: (old number, new number) of the segments that stay.
    """
    cells = cells_for(segments)
    cells.grow(capacity)
    number = np.full(old.segments, -1, np.int64)
    for before, after in kept:
        number[before] = after
    step = max(1, _AT_ONCE // max(segments, old.segments))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        index, at, words = old.touched(part)
        stays = number[at] >= 0
        cells.put(part[index[stays]], number[at[stays]], words[stays])
        reasons = np.full((len(part), segments), reason, np.uint8)
        for before, after in kept:
            reasons[:, after] = old.reasons(part, np.full(len(part), before))
        cells.set_reasons(part, reasons)
    return cells


def extended(column: NDArray[Any], length: int) -> NDArray[Any]:
    """A column with room for more, which is 0."""
    longer = np.zeros((length, *column.shape[1:]), column.dtype)
    longer[: len(column)] = column
    return longer


def distinct(rows: Rows) -> Rows:
    """Each of some numbers once, ascending; numpy's own `unique` takes several times as long."""
    if rows.size < 2:
        return rows
    ordered = np.sort(rows)
    first = np.empty(len(ordered), np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def _any(matrix: NDArray[Any]) -> Mask:
    found: Mask = np.logical_or.reduce(matrix, axis=1)
    return found


def _all(matrix: NDArray[Any]) -> Mask:
    found: Mask = np.logical_and.reduce(matrix, axis=1)
    return found


def _surplus(words: U8) -> int:
    """How many elements more were received than sent, over those of some cells where that is so."""
    flight = _flight(words)
    return -int(flight[flight < 0].sum())


def _flight(words: U8) -> NDArray[np.int64]:
    """How many elements more were sent than received, for each of some cells."""
    flight: NDArray[np.int64] = (words[..., SENT] - words[..., RECEIVED]).view(np.int64)
    return flight


def _unbalanced(words: U8) -> Mask:
    unequal: Mask = words[..., SENT] != words[..., RECEIVED]
    unequal |= words[..., XOR] != 0
    return unequal


def _signed(who: U8, sent: U8, received: U8, producer: int) -> U8:
    """The words that say who last sent and received, `producer` put where the counts say so."""
    # As words of ones and zeros: cheaper than choosing element by element.
    change = (sent > 0) * _SENDER | (received > 0) * _RECEIVER
    mark = np.uint64(producer + 1)
    changed: U8 = (who & ~change) | (change & (mark | mark << _SHIFT))
    return changed
