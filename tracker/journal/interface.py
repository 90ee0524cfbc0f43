"""Journal: an append-only log of numbered records, and snapshots of the state to which they lead.

A journal keeps bytes. It never looks into a record or a state, and does not depend on commands or the wire format.

Records are numbered 1, 2, 3, … without gaps, in the order of `append`. The records of one call are a group, which
survives completely or not at all. A snapshot is the state after a record; the journal may drop records that every kept
snapshot covers. `recover` returns the newest state that can be read, and the records after it.

A group is kept as bytes (`pack`), with a checksum that covers its place in the log.
"""

# ruff: noqa: ARG002 - what does nothing by default needs no argument

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Record(NamedTuple):
    """A command as the server accepted it."""

    method: int  #: the call: a number that the server assigns
    at: int  #: the time, in ns since the Unix epoch
    payload: bytes  #: the request's bytes, as they arrived


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A record that every recovery leaves out.

    Its time distinguishes it from a later record with its number, which a journal can have once the end of its log was
    lost.
    """

    number: int
    method: int
    at: int  #: as `Record.at`
    #: the journal's last record when an acknowledged one was left out, which no log shows before the next one; else 0
    untold: int = field(default=0, compare=False)

    @classmethod
    def of(cls, number: int, record: Record) -> LeftOut:
        """Return what leaves a record out."""
        return cls(number, record.method, record.at)


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage of the journal, and what was saved."""

    file: str  #: the file that was damaged
    problem: str  #: what is wrong with the file
    record: int  #: the number of the first record that could not be read
    lost: int | None  #: how many acknowledged records are lost; None: unknown
    set_aside: str  #: where the damaged file is now; empty: it did not exist

    @property
    def loss(self) -> str:
        """The loss in words."""
        return "acknowledged records may be lost" if self.lost is None else f"{self.lost} acknowledged records are lost"

    def __str__(self) -> str:
        kept = f"; the damaged file was set aside as {self.set_aside}" if self.set_aside else ""
        lost = "nothing acknowledged is lost" if self.lost == 0 else self.loss
        return f"{self.file}: {self.problem}, at record {self.record}: {lost}{kept}"


def loss_of(damage: Sequence[Damage]) -> str:
    """Return the loss of a damaged journal in words, with the damages in parentheses."""
    found = "; ".join(f"{each.file}: {each.problem}" for each in damage)
    return f"{damage[-1].loss} ({found})"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The content of a journal."""

    state: Any  #: the newest snapshot; None: there is none
    number: int  #: the record after which it was taken; 0: there is none
    records: Iterator[Record]  #: the records after it, in order; read them before the first `append`
    damage: tuple[Damage, ...] = ()
    suspect: int = 0  #: the record at whose replay the last starts ended; 0: none
    starts: int = 0  #: how many starts in a row ended there
    unanswered: frozenset[int] = frozenset()  #: records that were being carried out when the process ended
    set_aside: frozenset[LeftOut] = frozenset()  #: records that an earlier start has set aside

    @property
    def tail_lost(self) -> bool:
        """Return whether acknowledged records are lost, or could be."""
        return any(damage.lost != 0 for damage in self.damage)


class JournalError(Exception):
    """The journal does not work. No record of the failed call counts; the message has what to do."""


class NoJournalError(JournalError):
    """There is no journal of this name."""


class RestoreUnfinishedError(JournalError):
    """The journal was set aside for a backup that is not in its place yet."""

    def __init__(self, where: object) -> None:
        super().__init__(
            f"a restore into {where}, or an import, was interrupted, and the journal has neither its old state nor the "
            "new one. Run it again: `tracker restore FILE --journal ADDRESS --replace`, or `tracker import JOURNAL "
            "--into ADDRESS --moved-to HOST:PORT`. Its old content is kept beside it, under a name with "
            "`replaced`"
        )


class JournalLossError(JournalError):
    """Acknowledged records are lost, or could be, and the operator has not accepted that. Nothing was changed."""


class JournalFullError(JournalError):
    """The disk is full. The journal works again once there is room."""


class JournalLockedError(JournalError):
    """Another process owns the journal."""


class JournalGoneError(JournalError):
    """The journal is no longer this process's, or has lost records that this process has acknowledged.

    The records of the failed call may count or not. The process must stop: what it would answer from now on could
    differ from what the journal's next owner answers.
    """


class LostTrackError(JournalError):
    """The log does not continue where a standby reads: it has to begin again, with the newest snapshot."""


class Journal(Protocol):
    """A command log, owned by one process. Calls whose body is empty here do nothing in a journal without them.

    `append` and `snapshot` may be called in a thread each. All other methods that read or close the journal must be
    called before the first or after the last of these calls.
    """

    @property
    def name(self) -> str:
        """The kind of journal, such as ``"sqlite"``."""

    @property
    def instant(self) -> bool:
        """Return whether `append` returns at once, so that it may be called on an event loop."""

    @property
    def exclusive(self) -> bool:
        """Return whether no other process can own the journal while this one lives, even if this one sleeps."""

    def confirm(self) -> None:
        """Make sure that this process owned the journal at some moment since the call began. May be called in a thread.

        Raises:
            JournalGoneError: another process owns it.
            JournalError: that cannot be found out now.
        """
        return

    def when_gone(self, gone: Callable[[JournalGoneError], None]) -> None:
        """Name what is called, in any thread, once the journal finds out that it is no longer this process's."""
        return

    def interrupt(self) -> None:
        """Make an `append` that waits for its storage fail with `JournalGoneError`, now and later, if it can be."""
        return

    def recover(self, accept_loss: bool = False) -> Recovery:
        """Read the journal; call this first. Damage that has cost no acknowledged records is repaired and reported.

        Args:
            accept_loss: also repair and report damage that has cost acknowledged records.

        Raises:
            JournalLossError: there is such damage, and `accept_loss` is False. Nothing was changed.
        """

    def replaying(self, number: int) -> None:
        """Note which record is about to be replayed; 0: all are.

        Raises:
            JournalError: it cannot be noted.
        """
        return

    def carrying(self, numbers: Sequence[int]) -> bool:
        """Note which records are about to be carried out.

        Returns:
            True if that is noted. If not, an older note may still name others, which must not be answered yet.
        """
        return True

    def set_aside(self, number: int, record: Record, why: str, answered: bool) -> None:
        """Leave a record out of every later recovery, but keep it for people.

        Args:
            why: the reason, for people.
            answered: whether a caller had an answer to it, or may have had.
        """
        return

    def append(self, records: Sequence[Record]) -> int:
        """Make a group of records durable, and return the number of the last one.

        Raises:
            JournalGoneError: whether the group is durable is unknown, and will not be found out.
            JournalError: the group is not durable; the journal is as before.
        """

    def snapshot(self, number: int, state: Any) -> int:
        """Keep a state, and return its size in bytes.

        Args:
            number: the record after which the state was taken: the last one of its group.
            state: dictionaries, lists, strings, bytes, numbers, booleans, None, and numpy arrays.

        Raises:
            JournalError: the state could not be kept; nothing is dropped.
        """

    def begin_restore(self) -> None:
        """Let no tracker start on the journal until `end_restore`, whatever happens to this process."""
        return

    def end_restore(self) -> None:
        """Let trackers start on a journal again that was set aside: the backup is in its place."""
        return

    def close(self) -> None:
        """Release the journal. Closing it again does nothing."""
        return


@runtime_checkable
class MovableJournal(Journal, Protocol):
    """A journal that its owner can hand to a standby."""

    def standby(self) -> str:
        """Return who waits for the journal, for people, and is as far as it can be; empty: nobody.

        Raises:
            JournalError: that could not be found out now.
        """

    def hand_over(self) -> None:
        """Release the journal, as `close` does, so that the standby is its next owner, and no other process before."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place up to which a log was read: an entry of the journal's, whose last record has this number."""

    entry: str
    number: int
    untold: int = 0  #: the greatest `LeftOut.untold` of the records that were left out on the way


class Following(Protocol):
    """Reader of a log while another process writes it."""

    @property
    def place(self) -> Place:
        """Return what was returned so far."""

    def records(self) -> Iterator[tuple[int, Record]]:
        """Return the records that were written since and may be replayed, with their numbers.

        Raises:
            LostTrackError: the log does not continue here.
            JournalError: the log cannot be read now.
        """


@runtime_checkable
class FollowableJournal(Journal, Protocol):
    """A journal that one process can read while another one owns it."""

    def follow(self) -> tuple[Any, Following]:
        """Return the newest snapshot, or None, and what follows it.

        Raises:
            JournalError: the journal cannot be read now.
        """

    def try_to_own(self) -> bool:
        """Try to become the owner, and return whether that succeeded: then `recover` must follow.

        Raises:
            JournalError: that could not be found out now.
        """

    def recover(self, accept_loss: bool = False, followed: Place | None = None) -> Recovery:
        """Read the journal, as `Journal.recover` does it.

        Args:
            accept_loss: also repair and report damage that has cost acknowledged records.
            followed: what was read already: the recovery has the records after it, and no state.

        Raises:
            LostTrackError: the log does not continue there; recover without it.
        """


_HEAD = struct.Struct("<HqI")  # of a record: method, time, length


def pack(records: Sequence[Record]) -> bytes:
    """Return the records of a group as bytes.

    >>> list(unpack(pack([Record(1, 5, b"a"), Record(2, 6, b"")])))
    [Record(method=1, at=5, payload=b'a'), Record(method=2, at=6, payload=b'')]
    """
    return b"".join(part for method, at, payload in records for part in (_HEAD.pack(method, at, len(payload)), payload))


def unpack(data: bytes) -> Iterator[Record]:
    """Return the records of a group, in order."""
    at = 0
    while at < len(data):
        method, time_ns, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield Record(method, time_ns, data[at : at + length])
        at += length


def checksum(first: int, count: int, data: bytes) -> int:
    """Return the checksum of a group.

    Args:
        first: the number of its first record.
        count: how many records it has.
        data: what `pack` made of them.
    """
    return zlib.crc32(data, zlib.crc32(f"{first},{count}".encode()))
