"""The life of a substream: its states and transitions, and the only code that writes them.

Theory of operation
-------------------
A substream has a row, and a row is in one of four states:

====== =============================================================== =========================
State  What it means                                                   Flags
====== =============================================================== =========================
FREE   nobody has a name for the row                                   none
NAMED  a report that was accepted has named the substream, but none    ``NAMED``
       of it has taken effect yet, or all of it was late
OPEN   something of it has taken effect, and it has not ended on       ``NAMED | KNOWN``
       every segment
ENDED  it has ended on every segment                                   ``NAMED | KNOWN | ENDED``
====== =============================================================== =========================

========= ============== ============ ==================================================================
From      By             To           When
========= ============== ============ ==================================================================
FREE      `name`         NAMED        a report that names it is accepted
NAMED     `open_up`      OPEN         an entry or a promise takes effect, and the fronts have not closed it
OPEN      `end`          ENDED        it has ended on its last segment, or a hand-over removed the others
NAMED     `forget`       FREE         retention, if no staged epoch refers to it
ENDED     `forget`       FREE         retention
========= ============== ============ ==================================================================

Nothing else moves a row, and no row moves back: what has ended stays so, and a late element of it is announced, not
counted. While a row is OPEN, marks come and go (`mark`, `unmark`), and decide with the accumulators when it ends:

* ``CLOSED``: the fronts of one group of segments at least have promised to send no more of it. A front that comes back
  from idleness, or an IMMEDIATE epoch that is revoked, takes its promises back. `closed` notes the groups where there
  are several.
* ``SOLE``: no front is asked: its only source has closed it, until that close is revoked with its epoch, or it was
  given up (`timers`).
* ``AWAITING_RECOMMIT``: an IMMEDIATE epoch that had folded something of it was revoked, and will be made again; until
  a later epoch of the same producer is committed, or it is known that none will be, balance proves nothing.
* ``STALLED``: it was announced as stalled, and nothing of it has changed since.

``PARTLY_ENDED`` marks a row that has ended on some segment; it is taken back only if a hand-over removes that segment.

A row ends on a segment when it is ``KNOWN``, closed for that segment, not ``AWAITING_RECOMMIT``, and its accumulators
balance there and on everything upstream (`ends`), or when an operator or its expiry ends it by force.

Invariants, which `tests/core/invariants.py` checks after each command of the differential test, the simulation and the
vectors:

1. A FREE row has no other flag, no name, no element and no end.
2. ``KNOWN`` implies ``NAMED``; every other flag implies ``KNOWN``.
3. ``ENDED`` holds exactly for the rows whose cells have all ended; ``PARTLY_ENDED`` for all those of which some have.
4. ``SOLE`` implies ``CLOSED``.
5. ``CLOSED`` holds for an OPEN row exactly if the fronts' promises, applied from scratch, close it for some group.
6. ``AWAITING_RECOMMIT`` holds exactly for the OPEN rows that some producer awaits.
7. `named`, `open` and `ended` count the rows that are not FREE, OPEN, and ENDED.
8. Without an ordering, no OPEN row meets all the conditions of an end: it has ended with the command that met the last.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .cells import Rows, extended

NO_MARK: Final = np.uint8(0)
NAMED: Final = np.uint8(1)
KNOWN: Final = np.uint8(2)
CLOSED: Final = np.uint8(4)
SOLE: Final = np.uint8(8)
PARTLY_ENDED: Final = np.uint8(16)
ENDED: Final = np.uint8(32)
AWAITING_RECOMMIT: Final = np.uint8(64)
STALLED: Final = np.uint8(128)


class Lifecycle:
    """The states of a job's rows. Everybody may read `flags`; only the methods here write them.

    Attributes:
        flags: of each row its states, as bits: uint8[capacity].
        named: how many rows are in use.
        open: how many are known and have not ended on every segment.
        ended: how many have ended on every segment.

    >>> life = Lifecycle()
    >>> life.grow(8)
    >>> rows = np.array([0, 1])
    >>> life.name(rows)
    >>> life.open_up(rows)
    >>> life.end(rows[:1])
    >>> life.named, life.open, life.ended
    (2, 1, 1)
    >>> life.forget(rows[:1])
    >>> life.named, life.open, life.ended
    (1, 1, 0)
    """

    __slots__ = ("ended", "flags", "named", "open")

    def __init__(self) -> None:
        self.flags: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.named = self.open = self.ended = 0

    def grow(self, capacity: int) -> None:
        """Grow to so many rows; the new ones are FREE."""
        self.flags = extended(self.flags, capacity)

    def load(self, rows: Rows, flags: NDArray[np.uint8]) -> None:
        """Set the flags of FREE rows from a dump."""
        self.flags[rows] = flags
        self.named += len(rows)
        ended = int(((flags & ENDED) != 0).sum())
        self.ended += ended
        self.open += int(((flags & KNOWN) != 0).sum()) - ended

    # ------------------------------------------------------------ from state to state

    def name(self, rows: Rows) -> None:
        """Move FREE rows to NAMED."""
        self.flags[rows] = NAMED
        self.named += len(rows)

    def open_up(self, rows: Rows) -> None:
        """Move NAMED rows to OPEN."""
        self.flags[rows] |= KNOWN
        self.open += len(rows)

    def end(self, rows: Rows) -> None:
        """Move OPEN rows to ENDED."""
        self.flags[rows] |= ENDED
        self.open -= len(rows)
        self.ended += len(rows)

    def forget(self, rows: Rows) -> None:
        """Move NAMED or ENDED rows to FREE."""
        self.named -= len(rows)
        self.ended -= int(((self.flags[rows] & ENDED) != 0).sum())
        self.flags[rows] = 0

    # ------------------------------------------------------------ marks of OPEN rows

    def mark(self, rows: Rows | int, mark: np.uint8) -> None:
        """Give rows a mark."""
        self.flags[rows] |= mark

    def unmark(self, rows: Rows | int | slice, mark: np.uint8) -> None:
        """Take a mark from rows."""
        self.flags[rows] &= ~mark

    # ------------------------------------------------------------ questions

    @property
    def staged(self) -> int:
        """Return how many rows are only named: their epochs are staged, or what named them was late."""
        return self.named - self.open - self.ended

    def is_open(self, rows: Rows) -> NDArray[np.bool_]:
        """Return which rows are OPEN."""
        found: NDArray[np.bool_] = (self.flags[rows] & (KNOWN | ENDED)) == KNOWN
        return found

    def are(self, rows: Rows, mark: np.uint8) -> NDArray[np.bool_]:
        """Return which rows have a flag."""
        found: NDArray[np.bool_] = (self.flags[rows] & mark) != 0
        return found
