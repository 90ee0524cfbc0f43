"""The end of the log of a journal in Redis."""

from __future__ import annotations

from dataclasses import dataclass

NOTHING = "0-0"  #: the entry before the first


@dataclass(frozen=True, slots=True)
class Top:
    """The end of the log.

    Args:
        entry: the newest entry, TERM-NUMBER.
        last: the number of the newest record.
        lost: the number up to which records were acknowledged and are lost; 0: none are known to be.
    """

    entry: str = NOTHING
    last: int = 0
    lost: int = 0

    @classmethod
    def read(cls, entry: bytes | None, last: bytes | None, lost: bytes | None) -> Top:
        """Return the end of the log as the server has it; None: it has nothing."""
        return cls((entry or NOTHING.encode()).decode(), int(last or 0), int(lost or 0))

    @property
    def term(self) -> int:
        """The term of the newest entry."""
        return int(self.entry.partition("-")[0])
