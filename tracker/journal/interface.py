"""What a journal is: an append-only log of numbered records, and snapshots of the state that they add up to.

A journal keeps bytes. It never looks into a record or a state, and knows neither commands nor the wire.

Records are numbered 1, 2, 3, … without gaps, in the order of `append`; those of one call are a group and survive
together or not at all. A snapshot says what the state was after a record; records that every kept snapshot covers may
be dropped. `recover` gives the newest state that can be had and the records after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Record(NamedTuple):
    """A command as it was taken."""

    method: int  #: which one: a number that the server gives it
    at: int  #: ns since the Unix epoch
    payload: bytes  #: its request, as it came over the wire


@dataclass(frozen=True, slots=True)
class Damage:
    """What was found broken, and what was saved."""

    file: str  #: the file that was damaged
    problem: str  #: what is wrong with it
    record: int  #: the first record that could not be read
    lost: int | None  #: how many records are lost that had been acknowledged; None: nobody can tell
    set_aside: str  #: where the damaged file is now; empty: there was none

    def __str__(self) -> str:
        kept = f"; the damaged file was set aside as {self.set_aside}" if self.set_aside else ""
        lost = "nothing acknowledged is lost" if self.lost == 0 else f"{self.lost} acknowledged records are lost"
        if self.lost is None:
            lost = "acknowledged records may be lost"
        return f"{self.file}: {self.problem}, at record {self.record}: {lost}{kept}"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a journal remembers."""

    state: Any  #: the newest snapshot's; None: there is none
    number: int  #: the record after which it was taken; 0: none
    records: Iterator[Record]  #: those after it, in order; to be read before the first `append`
    damage: tuple[Damage, ...] = ()
    suspect: int = 0  #: the record at which the last starts ended; 0: none
    starts: int = 0  #: how many starts in a row ended there
    unanswered: frozenset[int] = frozenset()  #: records that were being carried out when the process ended
    set_aside: frozenset[int] = frozenset()  #: records that an earlier start has set aside

    @property
    def tail_lost(self) -> bool:
        """Whether acknowledged records are lost, or may be."""
        return any(damage.lost != 0 for damage in self.damage)


class JournalError(Exception):
    """The journal does not work. Nothing of what was to be appended counts; the message says what to do."""


class JournalLossError(JournalError):
    """Acknowledged records are lost, or may be, and nobody has accepted that. Nothing was changed."""


class JournalFullError(JournalError):
    """There is no room. It works again once there is."""


class JournalLockedError(JournalError):
    """Another process owns the journal."""


class Journal(Protocol):
    """A command log, owned by one process.

    `append` and `snapshot` may be called in two threads of their own; everything else before the first or after the
    last of these calls.
    """

    @property
    def name(self) -> str:
        """What kind it is, such as ``"sqlite"``."""

    @property
    def instant(self) -> bool:
        """Whether `append` takes no time, so that it may be called where nothing may wait."""

    def recover(self, accept_loss: bool = False) -> Recovery:
        """Read what is there; the first thing to call. Damage that costs nothing is repaired and reported.

        Args:
            accept_loss: repair and report damage that has cost acknowledged records, too.

        Raises:
            JournalLossError: there is such damage. Nothing was changed.
        """

    def replaying(self, number: int) -> None:
        """Note which record is about to be replayed; 0: the last one was."""

    def carrying(self, numbers: Sequence[int]) -> None:
        """Note which records are being carried out, before they are."""

    def set_aside(self, number: int, record: Record, why: str) -> None:
        """Keep a record for people, and leave it out of what the journal adds up to from now on."""

    def append(self, records: Sequence[Record]) -> int:
        """Make a group durable; the number of its last record.

        Raises:
            JournalError: it is not durable; the journal is as before.
        """

    def snapshot(self, number: int, state: Any) -> int:
        """Keep the state as it was after record `number`, the last of its group; its size in bytes.

        Args:
            state: dictionaries, lists, strings, bytes, numbers, booleans, None, and numpy arrays.

        Raises:
            JournalError: it could not be kept; nothing is dropped.
        """

    def close(self) -> None:
        """Give the journal up. Closing again does nothing."""
