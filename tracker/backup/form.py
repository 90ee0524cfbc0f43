"""The form of a backup: a header that people can read, its checksum, and the state.

    {"tracker-backup": 1, "version": "0.2.0", "record": 4711, "made": "2026-03-01T03:00:00Z", …}
    SHA-256 of the line above
    the state's bytes, whose number and SHA-256 are in the header

So `head -1 FILE` tells what a file is, and a file that was cut or changed anywhere is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from typing import Any, Final

_MAGIC: Final = "tracker-backup"
_FORM: Final = 1  #: raised when older versions cannot read what a newer one writes
_LONGEST_HEADER: Final = 64 << 20  # bytes: 10,000 jobs need 2 MB
_STEP: Final = 1 << 20  # bytes that are read at once


class BackupError(Exception):
    """A backup that cannot be used, or not be made; the message has what to do."""


@dataclass(frozen=True, slots=True)
class JobLog:
    """Position of a job's log."""

    log_id: str
    last_seq: int  #: the number of its last event


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a backup."""

    version: str  #: of the tracker that made it
    journal: str  #: the kind of the journal that it was made of
    record: int  #: the journal's record after which the state stood so
    made: str  #: when, in UTC, as ISO 8601
    final: bool  #: the journal ends with it: no tracker continues there
    jobs: Mapping[str, JobLog]  #: by name
    bytes: int  #: of the state
    sha256: str  #: of the state

    @property
    def made_at(self) -> datetime:
        """Return when it was made."""
        return datetime.fromisoformat(self.made.replace("Z", "+00:00"))


@dataclass(slots=True)
class Draft:
    """A state that is about to become a backup.

    Args:
        version: as in `Header`, and so are the next ones.
        state: its bytes, in pieces.
        made: Unix time in seconds.
    """

    version: str
    journal: str
    record: int
    made: float
    jobs: Mapping[str, JobLog]
    state: list[bytes | memoryview]
    final: bool = False
    _head: bytes = field(init=False, default=b"")

    def seal(self) -> int:
        """Compute the checksums, which takes a while for a large state, and return the file's size in bytes."""
        checksum = hashlib.sha256()
        for piece in self.state:
            checksum.update(piece)
        size = sum(memoryview(piece).nbytes for piece in self.state)
        made = datetime.fromtimestamp(math.floor(self.made), timezone.utc).isoformat().replace("+00:00", "Z")
        header = Header(
            self.version, self.journal, self.record, made, self.final, self.jobs, size, checksum.hexdigest()
        )
        line = json.dumps({_MAGIC: _FORM, **asdict(header)}).encode() + b"\n"
        self._head = line + hashlib.sha256(line).hexdigest().encode() + b"\n"
        return len(self._head) + size

    def parts(self, most: int = _STEP) -> Iterator[bytes]:
        """Yield the file, in parts of at most `most` bytes. Call `seal` before."""
        part = bytearray(self._head)
        for piece in self.state:
            rest = memoryview(piece).cast("B")
            while rest.nbytes:
                room = most - len(part)
                part += rest[:room]
                rest = rest[room:]
                if len(part) >= most:
                    yield bytes(part)
                    part.clear()
        if part:
            yield bytes(part)


class Checked:
    """Reader of a backup's parts that checks them on the way.

    Args:
        name: of the file, for messages.

    Attributes:
        header: what it is; the checksum of this line is right.

    Raises:
        BackupError: it is not a backup, a newer version made it, or it is damaged.
    """

    def __init__(self, parts: Iterable[bytes], name: str) -> None:
        self._name = name
        self._parts = iter(parts)
        first = self._lines()
        line, _, rest = first.partition(b"\n")
        checksum, _, self._rest = rest.partition(b"\n")
        self._head = line + b"\n" + checksum + b"\n"
        self.header = self._read(line, checksum)

    def _lines(self) -> bytes:
        """Read until two lines are complete."""
        data = bytearray()
        for part in self._parts:
            data += part
            if not data.startswith(f'{{"{_MAGIC}"'.encode()[: len(data)]):
                break
            if data.count(b"\n") >= 2 or len(data) > _LONGEST_HEADER:
                break
        return bytes(data)

    def _read(self, line: bytes, checksum: bytes) -> Header:
        try:
            values: Any = json.loads(line)
            form = values.pop(_MAGIC)
        except (ValueError, KeyError, TypeError, AttributeError):
            if line.startswith(f'{{"{_MAGIC}"'.encode()):
                raise self._damaged("its header cannot be read") from None
            raise BackupError(
                f"{self._name} is not a backup of a tracker; name a file that `tracker backup` has made"
            ) from None
        if hashlib.sha256(line + b"\n").hexdigest().encode() != checksum:
            raise self._damaged("the checksum of its header is wrong")
        if form != _FORM:
            raise BackupError(
                f"{self._name} has format {form}, and this version reads format {_FORM}; use version "
                f"{values.get('version')} of the tracker, which made it, or a newer one"
            )
        known = {each.name for each in fields(Header)}
        jobs = {name: JobLog(**log) for name, log in values.pop("jobs").items()}
        return Header(jobs=jobs, **{name: value for name, value in values.items() if name in known})

    def __iter__(self) -> Iterator[bytes]:
        """Yield the whole file once, in parts.

        Raises:
            BackupError: at the end: the state is damaged.
        """
        yield self._head
        yield from self.state()

    def state(self) -> Iterator[bytes]:
        """Yield the bytes of the state once, in parts.

        Raises:
            BackupError: at the end: they are damaged.
        """
        checksum, size = hashlib.sha256(), 0
        part, self._rest = self._rest, b""
        while True:
            checksum.update(part)
            size += len(part)
            if size > self.header.bytes:
                raise self._damaged(f"it has more than the {self.header.bytes} bytes that its header announces")
            if part:
                yield part
            following = next(self._parts, None)
            if following is None:
                break
            part = following
        if size < self.header.bytes:
            raise self._damaged(f"it ends after {size} of {self.header.bytes} bytes")
        if checksum.hexdigest() != self.header.sha256:
            raise self._damaged("its checksum is wrong")

    def _damaged(self, what: str) -> BackupError:
        return BackupError(f"{self._name} is damaged: {what}; use another backup")
