"""Columns that a caller gives: any sequence or array becomes what a report holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Cells (substream and segment in one number), the XOR of their labels, how many were sent, how many received.
Rows: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]


def check_names(**names: object) -> None:
    """Refuse what is no text.

    Raises:
        TypeError: with the argument's name.
    """
    for what, name in names.items():
        if not isinstance(name, str):
            raise TypeError(f"{what}={name!r} is no text; give str({what}) if that is how its other reports name it")


def strings(name: str, column: Sequence[str] | NDArray[np.object_] | NDArray[np.str_]) -> Sequence[str]:
    """Return the column as texts of Python's own.

    Raises:
        TypeError: a value is no text.
    """
    strings: Sequence[str] = column.tolist() if isinstance(column, np.ndarray) else column
    if not all(issubclass(kind, str) for kind in set(map(type, strings))):
        wrong = next(value for value in strings if not isinstance(value, str))
        raise TypeError(f"column {name} must hold texts, not {wrong!r}")
    return strings


def integers(name: str, column: ArrayLike) -> NDArray[np.int64]:
    """Return the column in 64 bits; a number above 2**63 - 1 becomes negative, with the same bits."""
    numbers = np.asarray(column)
    if numbers.dtype.kind == "u":
        return numbers.astype(np.uint64).view(np.int64)
    if numbers.dtype.kind != "i" and numbers.size:
        raise TypeError(f"column {name} must hold 64-bit integers, not {numbers.dtype}")
    return numbers.astype(np.int64)


def cells_of(counts: Mapping[int, Sequence[int]]) -> Iterator[Rows]:
    """Yield the cells that were counted one element at a time, if there are any."""
    if counts:
        xor, sent, received = zip(*counts.values(), strict=True)
        yield (
            np.fromiter(counts, np.uint64, len(counts)),
            np.array(xor, np.uint64),
            np.array(sent, np.int64),
            np.array(received, np.int64),
        )


def combined(columns: Sequence[Rows]) -> Rows:
    """Combine all rows into one for each cell, in the order of the cells."""
    if not columns:
        return np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
    cells, xor, sent, received = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(cells, kind="stable")
    cells = cells[order]
    first = np.flatnonzero(np.concatenate([[True], cells[1:] != cells[:-1]]))
    if len(first) == len(cells):
        return cells, xor[order], sent[order], received[order]
    return (
        cells[first],
        np.bitwise_xor.reduceat(xor[order], first),
        np.add.reduceat(sent[order], first),
        np.add.reduceat(received[order], first),
    )
