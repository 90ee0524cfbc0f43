"""The end of a log in Redis, compared with what a party knows of its past: has it lost acknowledged records?

Terms grow with each owner of a log, numbers with each record. A party is asked about at every moment at which the store
could have become another one: an older copy, a replica that lagged, an empty server.

    party                   knows                                   compares
    the leader              what it has acknowledged, in its term   at a refused write, a renewal, a look-up
    a standby               the newest record that it has read and  at each look at the log, also after a new
                            that must be durable                    connection, and when it takes over
    a tracker that starts   nothing; the store has what was noted   when it claims the log
                            then the end that it has claimed        where it cannot read what was there

    the store shows              `Known` nothing   the same term              a later term              an earlier term
    the party's record           SAME, CONTINUES   SAME                       REPLACED                  -
    more records                 CONTINUES         CONTINUES                  REPLACED                  LOST
    fewer records                -                 LOST                       LOST: it began too early  LOST
    no log, or another owner's   -                 LOST                       REPLACED                  LOST
    that the loss was accepted   -                 -                          REPLACED                  -

Of a later term the store shows where the term after the party's began. If that is not kept any more, snapshots cover
it, or the journal was replaced as a whole: REPLACED. A party that knows of no record can miss none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Relation(Enum):
    """Relation of a log to what a party knows of it."""

    SAME = "same"
    CONTINUES = "continues"
    REPLACED = "replaced by another owner's, without a loss"
    LOST = "acknowledged records are lost"


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """The newest record that a party knows to be acknowledged; without arguments: none.

    Args:
        term: of the owner that wrote it.
        owner: who began the term; empty: unknown.
    """

    term: int = 0
    number: int = 0
    owner: str = ""


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
        has_log: whether the records are there at all.
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


def compare(known: Known, shown: Top) -> tuple[Relation, int]:
    """Tell how a log stands to what a party knows, and, for a loss, after which record it begins."""
    if known.term == 0:
        return (Relation.CONTINUES if shown.term else Relation.SAME), 0
    accepted_in, accepted = map(int, shown.accepted.split("-"))
    if known.number == 0 or (known.term < accepted_in <= shown.term and known.number <= accepted):
        same = (shown.term, shown.last) == (known.term, known.number)
        later = shown.term == known.term
        return (Relation.SAME if same else Relation.CONTINUES if later else Relation.REPLACED), 0
    if shown.term > known.term:
        if shown.next_base is not None and shown.next_base < known.number:
            return Relation.LOST, shown.next_base
        return Relation.REPLACED, 0
    others = bool(known.owner and shown.owner and known.owner != shown.owner)
    if not shown.has_log or (shown.term == known.term and others):
        return Relation.LOST, 0
    if shown.term < known.term:
        return Relation.LOST, min(shown.last, known.number - 1)
    if shown.last < known.number:
        return Relation.LOST, shown.last
    return (Relation.SAME if shown.last == known.number else Relation.CONTINUES), 0
