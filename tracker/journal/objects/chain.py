"""Groups of a log that count: those that follow one another, less what was given up when a loss was accepted."""

from __future__ import annotations

from dataclasses import dataclass

from .entries import Entry, EntryDamagedError


class BrokenError(Exception):
    """An entry does not continue the log."""


class CutError(Exception):
    """Part or all of what was read so far was given up."""


@dataclass(slots=True)
class Chain:
    """The end of what counts, as far as the log was read.

    Args:
        group: the position of the last group that counts.
        term: of the entries that may follow; 0: not known yet.
    """

    group: int
    number: int
    term: int = 0

    def add(self, position: int, found: Entry | EntryDamagedError | None) -> bool:
        """Go on to the next position, and return whether a group is there, which counts.

        Args:
            found: what is there; None: nothing.

        Raises:
            BrokenError: it does not continue the log; the chain is as before.
            CutError: it is a group that gives up groups before it; the chain is as before.
        """
        if not isinstance(found, Entry):
            raise BrokenError(str(found) if found is not None else f"entry {position} is missing")
        if found.is_claim:
            self.term = position
            return False
        if found.cut and found.after < self.group:
            raise CutError(f"entry {position} goes on after entry {found.after}")
        if found.first != self.number + 1 or found.after != self.group:
            raise BrokenError(f"records {self.number + 1} to {found.first - 1} are missing before entry {position}")
        if found.term != (self.term or found.term):
            raise BrokenError(f"entry {position} was written by a tracker that had been replaced")
        self.group, self.number, self.term = position, found.last, found.term
        return True


class Survey:
    """Reading of a log up to its end, to find which groups count.

    Args:
        group: where to begin: behind the group at this position,
        number: whose last record has this number.

    Attributes:
        problem: why the log does not continue at its end; None: it does.
        broken_at: the position of that.
        highest: the highest number of a record that was seen.
        writer: of the last group that counts; empty: none was read.
    """

    def __init__(self, group: int, number: int) -> None:
        self._chain = Chain(group, number)
        self._counted = [(group, number)]
        self._claim = 0  # the newest one
        self.problem: str | None = None
        self.broken_at = 0
        self.highest = number
        self.writer = ""

    def add(self, position: int, found: Entry | EntryDamagedError | None) -> None:
        """Go on to the next position.

        Raises:
            CutError: what lies before the place where the survey began was given up.
        """
        if isinstance(found, Entry):
            self.highest = max(self.highest, found.last)
            if found.is_claim:
                self._claim = position
            elif found.cut and found.term == (self._claim or found.term):
                self._cut(found)
        if self.problem is not None:
            return
        try:
            if self._chain.add(position, found) and isinstance(found, Entry):
                self.writer = found.writer
                self._counted.append((self._chain.group, self._chain.number))
        except (BrokenError, CutError) as error:
            self.problem, self.broken_at = str(error), position

    def _cut(self, found: Entry) -> None:
        """Give up what a cut gives up, and with it any problem there."""
        if found.after > self._counted[-1][0]:
            return  # its writer has read further
        while self._counted and self._counted[-1][0] > found.after:
            self._counted.pop()
        if not self._counted:
            raise CutError(f"entry {found.position} goes on after entry {found.after}")
        self._chain = Chain(*self._counted[-1], found.term)
        self.problem, self.highest = None, found.last

    @property
    def group(self) -> int:
        """The last group that counts."""
        return self._chain.group

    @property
    def number(self) -> int:
        """Its last record."""
        return self._chain.number

    @property
    def positions(self) -> list[int]:
        """The groups that count, in order, without the one where the survey began."""
        return [position for position, _ in self._counted[1:]]
