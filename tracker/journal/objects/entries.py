"""An object of the log: a claim, with which a tracker begins a term, or a group of records."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Final

from ..interface import JournalError

_KIND: Final = b"tracker-log"
_FORM: Final = 1  # raised when older versions cannot read an entry
_DIGITS: Final = 20
HEAD: Final = 512  #: bytes of a group, its records excepted, at most


class EntryDamagedError(Exception):
    """The object's content is not what was written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry at a position of the log: 1, 2, 3, …

    Args:
        term: the position of the claim with which its writer's term began; a claim's own.
        writer: identifies the process that has written it.
        holder: of a claim: the tracker, as `tracker.journal.holder` describes it; of a group: empty.
        after: of a group: the position of the group before it; 0: there is none.
        first: of a group: the number of its first record.
        count: of a group: how many records it has.
        cut: of a group: what lies between `after` and this one does not count, and the operator has accepted that.
        data: of a group: what `tracker.journal.interface.pack` made of the records.
    """

    position: int
    term: int
    writer: str
    holder: str = ""
    after: int = 0
    first: int = 0
    count: int = 0
    cut: bool = False
    data: bytes = b""

    @property
    def is_claim(self) -> bool:
        """Return whether it is a claim."""
        return self.term == self.position

    @property
    def last(self) -> int:
        """The number of a group's last record."""
        return self.first + self.count - 1

    def encode(self) -> bytes:
        """Return the object's content: a line with the form and a checksum of the rest, a line of JSON, the records.

        >>> Entry.decode(7, Entry(7, 7, "w", "me").encode()).holder
        'me'
        """
        head = {
            "position": self.position,
            "term": self.term,
            "writer": self.writer,
            "holder": self.holder,
            "after": self.after,
            "first": self.first,
            "count": self.count,
            "cut": self.cut,
        }
        rest = json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.data
        return b"%s %d %08x\n%s" % (_KIND, _FORM, zlib.crc32(rest), rest)

    @classmethod
    def decode(cls, position: int, content: bytes) -> Entry:
        """Return the entry of an object.

        Args:
            position: where it was found.

        Raises:
            EntryDamagedError: it is not what was written.
            JournalError: a newer version of the program has written it.
        """
        line, _, rest = content.partition(b"\n")
        kind, *fields = line.split(b" ")
        if kind != _KIND or len(fields) != 2 or not fields[0].isdigit():
            raise EntryDamagedError(f"entry {position} is not an entry of the log")
        if int(fields[0]) != _FORM:
            raise JournalError(
                f"entry {position} of the log has format {int(fields[0])}, and this version reads {_FORM}; start the "
                "version that wrote it, or a newer one"
            )
        if fields[1] != b"%08x" % zlib.crc32(rest):
            raise EntryDamagedError(f"the checksum of entry {position} is wrong")
        head, _, data = rest.partition(b"\n")
        entry = cls(**json.loads(head), data=data)
        if entry.position != position:
            raise EntryDamagedError(f"entry {entry.position} is at position {position}")
        return entry

    @staticmethod
    def writer_in(content: bytes) -> str:
        """Return the writer of a group whose first `HEAD` bytes are given; empty: they are damaged."""
        try:
            return str(json.loads(content.split(b"\n")[1])["writer"])
        except (IndexError, KeyError, TypeError, ValueError):
            return ""


def name_of(position: int) -> str:
    """Return the name of the object at a position.

    >>> name_of(7)
    'log/00000000000000000007'
    """
    return f"log/{position:0{_DIGITS}}"


def claim_name(position: int) -> str:
    """Return the name of the object that marks a position where a claim is or could be: see `Log.claim`."""
    return f"claims/{position:0{_DIGITS}}"


def position_of(name: str) -> int:
    """Return the position in the name of an object of the log, or of a claim's mark; 0: the name is not one."""
    text = name.rpartition("/")[2]
    return int(text) if len(text) == _DIGITS and text.isdecimal() else 0
