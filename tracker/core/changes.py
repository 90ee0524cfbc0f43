"""The rows that the current command has changed, for the next evaluation: the one place where parts of a job meet."""

from __future__ import annotations

import numpy as np

from .accounts import Rows
from .cells import distinct

_NONE: Rows = np.empty(0, np.int64)
_MANY = 100_000  # from so many rows on, marking them is quicker than sorting them


class Changes:
    """The rows of which something has changed that may end them.

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
        """Whether there are rows to look at."""
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
