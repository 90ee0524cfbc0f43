"""Numbers of elements that fronts have promised, by substream, segment and front.

Of the numbers that a front has given for a substream on a segment, the last one counts. The numbers of removed fronts
are kept under `REMOVED`, because their elements are among those that were sent. A number may come with the XOR of the
elements' identities; the front then adds up, by XOR, the identities of what it sends, and both have to be alike.

This module compares numbers; which substreams a number closes is decided by `ClosedSet`. It costs nothing while no
number was given; with numbers, an entry costs one comparison of columns, unless it may be the last that was missing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .accounts import Accounts
from .cells import Rows, distinct, extended
from .producers import ExpectOf, Number

REMOVED = ""  #: in the place of a front: fronts that were removed, together

Key: TypeAlias = tuple[int, str]  #: (segment, front)
_Record = TypeVar("_Record")
_NEVER = 2**64 - 1  # more than can be sent
_SEVERAL = -1  # in the place of a segment: something is expected on several


class Missing(NamedTuple):
    """Columns of one line for each (row, segment) on which fewer elements were sent than expected, or others."""

    rows: Rows
    segments: Rows
    expected: NDArray[np.uint64]
    sent: NDArray[np.uint64]


class Shortfall(NamedTuple):
    """Sums over the open substreams of which elements are missing."""

    substreams: int  #: of which any is
    expected: int  #: on the segments on which elements are missing
    sent: int  #: on the same


class Expectations:
    """The numbers of a job."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.count = 0  #: numbers that stand, and identities added up
        self._numbers: dict[int, dict[Key, Number]] = {}  # by id: what stands
        self._identities: dict[int, dict[Key, int]] = {}  # by id: the XOR of those that were sent, known or expected
        self._compared: set[int] = set()  # ids of which identities were promised, or sent where none were
        self._announced: dict[int, dict[int, int]] = {}  # by id and segment: the number that more was sent than
        # By row: nothing can be met or exceeded while fewer than so many were sent on that segment.
        self._least: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._segment: NDArray[np.int64] = np.zeros(0, np.int64)
        # By row, as counted last: what was expected and sent where elements were missing. And the rows to count again.
        self._short: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._short_expected: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._short_sent: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._shortfall = Shortfall(0, 0, 0)
        self._uncounted: list[Rows] = []
        self._uncounted_ones: set[int] = set()
        self._uncounted_size = 0

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def __contains__(self, id_: int) -> bool:
        return id_ in self._numbers

    def totals(self, ids: Sequence[int], segment: int) -> list[int | None]:
        """Return the expected numbers of each of some substreams."""
        if not self._numbers:
            return [None] * len(ids)
        return [self.total(id_, segment) if id_ in self._numbers else None for id_ in ids]

    def ids(self) -> list[int]:
        """Return the ids of substreams that have a number."""
        return list(self._numbers)

    def of(self, id_: int) -> dict[Key, Number]:
        """Return the numbers of a substream."""
        return self._numbers.get(id_, {})

    def on(self, id_: int, segment: int) -> dict[str, int]:
        """Return the numbers of a substream on a segment, by front."""
        return {front: number.elements for (on, front), number in self.of(id_).items() if on == segment}

    def total(self, id_: int, segment: int) -> int | None:
        """Return how many elements are expected of a substream on a segment in all; None: no number was given."""
        numbers = self.on(id_, segment)
        return sum(numbers.values()) if numbers else None

    def differs(self, id_: int, segment: int) -> bool:
        """Return whether the identities of what was sent on a segment are not those that a front has promised."""
        if id_ not in self._compared:
            return False
        sent = self._identities.get(id_, {})
        return any(
            number.xor is not None and number.xor != sent.get(key, 0)
            for key, number in self.of(id_).items()
            if key[0] == segment
        )

    def missing(self, rows: Rows) -> Missing:
        """Find where some rows have not ended and fewer elements were sent than expected, or others."""
        rows = rows[rows < len(self._least)]
        rows = rows[self._least[rows] != _NEVER]
        # Those of which something is expected on several segments, each on a line of its own, come after the others.
        several = [
            (row, segment, self.total(self._accounts.id_of(row), segment) or 0)
            for row in rows[self._segment[rows] == _SEVERAL].tolist()
            for segment in sorted({segment for segment, _ in self.of(self._accounts.id_of(row))})
        ]
        rows = rows[self._segment[rows] != _SEVERAL]
        more = np.array(several, np.int64).reshape(-1, 3)
        segments = np.concatenate([self._segment[rows], more[:, 1]])
        expected = np.concatenate([self._least[rows], more[:, 2].astype(np.uint64)])
        rows = np.concatenate([rows, more[:, 0]])
        sent = self._accounts.cells.sent_each(rows, segments)
        short = sent < expected
        if self._compared:
            some = np.isin(rows, self._accounts.rows_of(np.array(list(self._compared), np.uint64)))
            for line in np.flatnonzero(some & ~short).tolist():
                short[line] = self.differs(self._accounts.id_of(int(rows[line])), int(segments[line]))
        short &= self._accounts.cells.reasons(rows, segments) == 0
        return Missing(rows[short], segments[short], expected[short], sent[short])

    # ------------------------------------------------------------ what is missing in all

    def touched(self, rows: Rows) -> None:
        """Note that rows have changed: elements, numbers, or an end on a segment."""
        self._uncounted.append(rows)
        self._uncounted_size += len(rows)
        if self._uncounted_size > 2 * len(self._least) + 1024:  # it need not grow, though nobody may ever ask
            self._uncounted = [distinct(np.concatenate(self._uncounted))]
            self._uncounted_size = len(self._uncounted[0])

    def shortfall(self) -> Shortfall:
        """Return what is missing of open substreams. The cost grows with the rows touched since the last call."""
        if not self._uncounted and not self._uncounted_ones:
            return self._shortfall
        ones = np.fromiter(self._uncounted_ones, np.int64, len(self._uncounted_ones))
        rows = distinct(np.concatenate([ones, *self._uncounted]))
        rows = rows[rows < len(self._least)]
        self._uncounted.clear()
        self._uncounted_ones.clear()
        self._uncounted_size = 0
        missing = self.missing(rows)
        lines = np.searchsorted(rows, missing.rows)
        substreams, expected, sent = self._shortfall
        substreams -= int(np.count_nonzero(self._short[rows]))
        self._short[rows] = False
        self._short[missing.rows] = True
        expected += self._recount(self._short_expected, rows, lines, missing.expected)
        sent += self._recount(self._short_sent, rows, lines, missing.sent)
        substreams += int(np.count_nonzero(self._short[rows]))
        self._shortfall = Shortfall(substreams, expected, sent)
        return self._shortfall

    @staticmethod
    def _recount(column: NDArray[np.uint64], rows: Rows, lines: Rows, numbers: NDArray[np.uint64]) -> int:
        """Recompute a column at `rows`, each as the sum of the numbers on its lines; return how much the total grew."""
        before: int = sum(column[rows].tolist())  # in whole numbers: what is expected in all may need more than 64 bits
        sums = np.zeros(len(rows), np.uint64)
        np.add.at(sums, lines, numbers)
        column[rows] = sums
        after: int = sum(sums.tolist())
        return after - before

    # ------------------------------------------------------------ numbers come and go

    def identify(self, id_: int, key: Key, xor: int) -> None:
        """Add identities of sent elements to those of a front, or take them out again."""
        sent = self._identities.setdefault(id_, {})
        self.count += key not in sent
        sent[key] = sent.get(key, 0) ^ xor
        if id_ in self:
            self._compare(id_)
            self._uncounted_ones.add(self._accounts.row_of(id_))

    def _compare(self, id_: int) -> None:
        """Note whether identities have to be compared: no elements need none, as long as none were sent."""
        sent = self._identities.get(id_, {})
        if any(each.xor is not None and (each.elements or key in sent) for key, each in self.of(id_).items()):
            self._compared.add(id_)
        else:
            self._compared.discard(id_)

    def accepts(self, pledge: ExpectOf, before: Number | None) -> bool:
        """Return whether a number takes effect: one that differs from the present number and does not revise it is
        ignored."""
        return before is None or before == pledge.number or pledge.revise

    def give(self, pledge: ExpectOf) -> bool:
        """Record a front's number.

        Returns:
            whether the number has changed.
        """
        id_, key = self._accounts.id_of(pledge.row), (pledge.segment, pledge.front)
        before = self.of(id_).get(key)
        return self.accepts(pledge, before) and self.replace(id_, key, pledge.number)

    def replace(self, id_: int, key: Key, number: Number | None) -> bool:
        """Replace a number, or remove it; return whether it has changed."""
        numbers = self._numbers.setdefault(id_, {})
        before = numbers.get(key)
        if number is None:
            numbers.pop(key, None)
        else:
            numbers[key] = number
        self.count += (number is not None) - (before is not None)
        if not numbers:
            del self._numbers[id_]
        if before != number:
            self._expect(id_)
        return before != number

    def restore(self, id_: int, numbers: dict[Key, Number]) -> None:
        """Restore the numbers that a snapshot had for a substream that has none yet."""
        self._numbers[id_] = numbers
        self.count += len(numbers)
        self._expect(id_)

    def identified(self) -> list[tuple[int, int, str, int]]:
        """Return the XOR of the identities of sent elements: id, segment, front, XOR."""
        return [(id_, *key, xor) for id_, sent in self._identities.items() for key, xor in sent.items()]

    def remove_front(self, name: str, segments: Container[int]) -> None:
        """Move a front's numbers on segments that it no longer feeds to `REMOVED`; none can be withdrawn any more."""
        for numbers in self._numbers.values():
            for segment, front in [key for key in numbers if key[1] == name and key[0] in segments]:
                removed = (segment, REMOVED)
                self.count -= removed in numbers
                left, number = numbers.get(removed, Number(0, 0)), numbers.pop((segment, front))
                known = left.xor is not None and number.xor is not None
                xor = (left.xor or 0) ^ (number.xor or 0) if known else None
                numbers[removed] = Number(left.elements + number.elements, xor)
        for sent in self._identities.values():
            for segment, front in [key for key in sent if key[1] == name and key[0] in segments]:
                removed = (segment, REMOVED)
                self.count -= removed in sent
                sent[removed] = sent.get(removed, 0) ^ sent.pop((segment, front))

    def relaid(self, kept: dict[int, int]) -> None:
        """Move to another graph, in which segments have other numbers or no longer exist."""
        self._carry_over(self._identities, kept)
        for id_ in self._carry_over(self._numbers, kept):
            self._expect(id_)
        for id_, announced in self._announced.items():
            self._announced[id_] = {kept[on]: number for on, number in announced.items() if on in kept}

    def _carry_over(self, records: dict[int, dict[Key, _Record]], kept: dict[int, int]) -> list[int]:
        """Move records to another graph; return the ids that had any."""
        ids = list(records)
        for id_ in ids:
            before = records.pop(id_)
            moved = {(kept[on], front): record for (on, front), record in before.items() if on in kept}
            self.count += len(moved) - len(before)
            if moved:
                records[id_] = moved
        return ids

    def forget(self, ids: Iterable[int]) -> None:
        """Forget what was expected of substreams that are forgotten."""
        for id_ in ids:
            numbers = self._numbers.pop(id_, None)
            if numbers is not None:
                self.count -= len(numbers)
                self._expect(id_)
            self.count -= len(self._identities.pop(id_, {}))
            self._announced.pop(id_, None)

    # ------------------------------------------------------------ comparing

    def _expect(self, id_: int) -> None:
        """Note from how many sent elements a row has to be checked."""
        row = self._accounts.row_of(id_)
        if row >= len(self._least):
            before = len(self._least)
            for name in ("_least", "_segment", "_short", "_short_expected", "_short_sent"):
                setattr(self, name, extended(getattr(self, name), max(row + 1, 2 * before)))
            self._least[before:] = _NEVER
        self._compare(id_)
        segments = {segment for segment, _ in self.of(id_)}
        if len(segments) == 1:
            segment = segments.pop()
            self._segment[row], self._least[row] = segment, min(self.total(id_, segment) or 0, _NEVER)
        elif segments:
            self._segment[row], self._least[row] = _SEVERAL, 0
        else:
            self._segment[row], self._least[row] = 0, _NEVER
        self._uncounted_ones.add(row)

    def among(self, rows: Rows) -> list[int]:
        """Return those of some rows that have a number, each once."""
        return [row for row in distinct(rows).tolist() if self._accounts.id_of(row) in self._numbers]

    def to_look_at(self, rows: Rows) -> Rows:
        """Return the rows that may have become complete, or more, since elements were added to them."""
        rows = rows[rows < len(self._least)]
        if rows.size:
            sent = self._accounts.cells.sent_each(rows, np.maximum(self._segment[rows], 0))
            rows = rows[sent >= self._least[rows]]
        return distinct(rows)

    def announces(self, id_: int, segment: int, expected: int) -> bool:
        """Return whether an excess over `expected` is new; it counts as announced from now on."""
        announced = self._announced.setdefault(id_, {})
        if announced.get(segment) == expected:
            return False
        announced[segment] = expected
        return True
