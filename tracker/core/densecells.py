"""Cells for jobs of few segments: a row has a cell for each of them, at a place that is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cells import SENT, U8, Cells, Mask, Rows, Touched, all_of, any_of, do_not_balance, extended, flight_of
from .graph import Graph


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
        return do_not_balance(self._blocks[rows])

    def in_flight_each(self, rows: Rows) -> NDArray[np.int64]:
        return flight_of(self._blocks[rows])

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
        return all_of(after)

    def set_reasons(self, rows: Rows, reasons: NDArray[np.uint8]) -> None:
        self._ended[rows] = reasons

    def endable(self, rows: Rows, graph: Graph) -> tuple[Rows, Mask]:
        blocked = self.unbalanced(rows).astype(np.float32) @ graph.weights.T > 0
        may: Mask = ~(blocked | self.has_ended(rows))
        some = any_of(may)
        return rows[some], may[some]

    def owing(self, rows: Rows) -> Mask:
        return any_of(self.unbalanced(rows) & ~self.has_ended(rows))

    def dump(self, rows: Rows) -> dict[str, Any]:
        return {"cells": self._blocks[rows].ravel(), "ended": self._ended[rows].ravel()}

    def load(self, rows: Rows, dump: dict[str, Any]) -> None:
        self._blocks[rows] = dump["cells"].reshape(-1, self.segments, 4)
        self._ended[rows] = dump["ended"].reshape(-1, self.segments)
