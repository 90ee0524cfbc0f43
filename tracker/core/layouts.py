"""The choice of a layout for a job's cells, and the move to another graph's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .cells import AT_ONCE, Cells, Rows
from .densecells import DenseCells
from .sparsecells import SparseCells

DENSE = 8  #: up to so many segments each row has all its cells


def cells_for(segments: int) -> Cells:
    """Return empty cells in the layout for so many segments."""
    return DenseCells(segments) if segments <= DENSE else SparseCells(segments)


def relaid(
    old: Cells, rows: Rows, reasons: NDArray[np.uint8], capacity: int, segments: int, kept: Sequence[tuple[int, int]]
) -> Cells:
    """The cells for another graph.

    Args:
        old: the cells for the graph before.
        rows: all that are known.
        reasons: for each the number of the reason why it has ended on segments that are new; 0: it has not.
        capacity: how many rows to have room for.
        segments: how many there are now.
        kept: (old number, new number) of the segments that stay.
    """
    cells = cells_for(segments)
    cells.grow(capacity)
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
