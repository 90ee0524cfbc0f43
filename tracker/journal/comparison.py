"""Comparison of a log's past, as a party knows it, with what the store shows now: has it lost acknowledged records?

Terms grow with each owner of a log, numbers with each record. A party is asked about at every moment at which the store
could have become another one: an older copy, a replica that lagged, an empty server.

    party                   knows                                   compares
    the leader              what it has acknowledged, in its term   at a refused write, a renewal, a look-up
    a standby               the newest record that it has read and  at each look at the log, also after a new
                            that must be durable                    connection, and when it takes over
    a tracker that starts   nothing; the store has what was noted   when it claims the log

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


@dataclass(frozen=True, slots=True)
class Shown:
    """Log as the store shows it.

    Args:
        term: of the newest entry; 0: there is none.
        number: of the newest record.
        owner: who began the term; empty: unknown.
        next_base: the record after which the term after the party's began; None: not there.
        has_log: whether the records are there at all.
        accepted: the term in which a loss was accepted last, and the record up to which.
    """

    term: int = 0
    number: int = 0
    owner: str = ""
    next_base: int | None = None
    has_log: bool = True
    accepted: tuple[int, int] = (0, 0)


def compare(known: Known, shown: Shown) -> tuple[Relation, int]:
    """Tell how a log stands to what a party knows, and, for a loss, after which record it begins.

    Args:
        shown: what the store shows now.
    """
    if known.term == 0:
        return (Relation.CONTINUES if shown.term else Relation.SAME), 0
    accepted_in, accepted = shown.accepted
    if known.number == 0 or (known.term < accepted_in <= shown.term and known.number <= accepted):
        same = (shown.term, shown.number) == (known.term, known.number)
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
        return Relation.LOST, min(shown.number, known.number - 1)
    if shown.number < known.number:
        return Relation.LOST, shown.number
    return (Relation.SAME if shown.number == known.number else Relation.CONTINUES), 0
