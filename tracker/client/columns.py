"""Columns that a caller gives: any sequence or array becomes what a report holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def strings(column: Sequence[str] | NDArray[np.object_] | NDArray[np.str_]) -> Sequence[str]:
    """Returns the column as texts of Python's own."""
    strings: Sequence[str] = column.tolist() if isinstance(column, np.ndarray) else column
    return strings


def integers(name: str, column: ArrayLike) -> NDArray[np.int64]:
    """Returns the column in 64 bits; a number above 2**63 - 1 becomes negative, with the same bits."""
    numbers = np.asarray(column)
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64).view(np.int64)
    if numbers.dtype.kind != "i" and numbers.size:
        raise TypeError(f"column {name} must hold 64-bit integers, not {numbers.dtype}")
    return numbers.astype(np.int64)
