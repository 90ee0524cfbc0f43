"""The end of the log of a journal in Redis."""

from __future__ import annotations

from dataclasses import dataclass

from ..comparison import Shown

NOTHING = "0-0"  #: the entry before the first


@dataclass(frozen=True, slots=True)
class Top:
    """The end of the log.

    Args:
        entry: the newest entry, TERM-NUMBER.
        last: the number of the newest record.
        lost: the number up to which records were acknowledged and are lost; 0: none are known to be.
        owner: who began the newest entry's term; empty: unknown.
        accepted: TERM-NUMBER: in which term a loss was accepted last, and up to which record.
        has_log: whether there is a log.
        next_base: the record after which the term began that follows the one asked for; None: not there.
        writer: TERM OWNER of the newest group, if a claim has asked for it.
    """

    entry: str = NOTHING
    last: int = 0
    lost: int = 0
    owner: str = ""
    accepted: str = NOTHING
    has_log: bool = True
    next_base: int | None = None
    writer: str = ""

    @classmethod
    def read(
        cls,
        entry: bytes | None,
        last: bytes | None,
        lost: bytes | None,
        owner: bytes | None = None,
        accepted: bytes | None = None,
        has_log: int = 1,
        next_base: bytes | None = None,
        writer: bytes | None = None,
    ) -> Top:
        """Return the end of the log as the server has it; None: it has nothing."""
        newest = (entry or NOTHING.encode()).decode()
        # An older version that begins a term leaves the owner of an earlier one there.
        began, _, begun_by = (owner or b"").decode().partition(" ")
        return cls(
            newest,
            int(last or 0),
            int(lost or 0),
            begun_by if began == newest.partition("-")[0] else "",
            (accepted or NOTHING.encode()).decode(),
            bool(has_log),
            None if next_base is None else int(next_base),
            (writer or b"").decode(),
        )

    @property
    def term(self) -> int:
        """The term of the newest entry."""
        return int(self.entry.partition("-")[0])

    def shown(self) -> Shown:
        """Return it as `tracker.journal.comparison` takes it."""
        term, _, number = self.accepted.partition("-")
        return Shown(self.term, self.last, self.owner, self.next_base, self.has_log, (int(term), int(number)))
