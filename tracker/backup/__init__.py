"""Backups of a tracker: one file with the whole state, and the places where such files are kept.

A backup is a header that people can read, its checksum, and the state:

    {"tracker-backup": 1, "version": "0.2.0", "record": 4711, "made": "2026-03-01T03:00:00Z", …}
    SHA-256 of the line above
    the state's bytes, whose number and SHA-256 are in the header

So `head -1 FILE` shows what a file is, and a file that was cut or changed anywhere is noticed.

Its place is a file, a directory, or an object store, where a backup appears with its last part, or not at all.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tracker.store import FileStore, StoreError, in_pieces, open_store

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
        """Return when the backup was made."""
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
        """Return the file, in parts of at most `most` bytes. Call `seal` before."""
        return in_pieces([self._head, *self.state], most)


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


_NAME: Final = re.compile(r"tracker-\d{8}T\d{6}Z-record-\d+\.backup")
_MODE: Final = 0o600  # of a backup on this machine


def name_of(header: Header) -> str:
    """Return the name of a backup in a directory; names sort by time.

    >>> name_of(Header("0.2.0", "sqlite", 4711, "2026-03-01T03:00:00Z", False, {}, 0, ""))
    'tracker-20260301T030000Z-record-4711.backup'
    """
    return f"tracker-{header.made.replace('-', '').replace(':', '')}-record-{header.record}.backup"


def _newest_first(names: Iterable[str]) -> list[str]:
    return sorted(
        filter(_NAME.fullmatch, names),
        key=lambda name: (name.split("-")[1], int(name.split("-")[3].partition(".")[0])),
        reverse=True,
    )


class Place:
    """A file, or a directory of backups.

    Args:
        text: how the user has named it.
        base: of the names of its files.
        file: the name of the file in it; empty: it is a directory, where each backup gets a name by its time.
    """

    def __init__(self, text: str, store: FileStore, base: str, file: str) -> None:
        self.text = text
        self.file = file
        self._store = store
        self._base = base

    def write(self, backup: Checked) -> str:
        """Write a backup, check it on the way, and return where it is. If that fails, nothing is there.

        Raises:
            BackupError: it is damaged, or the place cannot be written.
        """
        name = self.file or name_of(backup.header)
        with self._failing(self.full(name), "written"):
            if self.file and "://" not in self._base and not Path(self._base).exists():
                raise FileNotFoundError  # a directory is made, but not those of a file
            self._store.put(name, iter(backup))
        return self.full(name)

    def names(self) -> list[str]:
        """Return the names of a directory's backups, newest first; of a file, its own.

        Raises:
            BackupError: the place cannot be read.
        """
        if self.file:
            return [self.file]
        with self._failing(self.text, "read"):
            return _newest_first(self._store.entries())

    def newest(self) -> str:
        """Return the name of the file, or of the directory's newest backup.

        Raises:
            BackupError: the directory has no backup.
        """
        names = self.names()
        if not names:
            raise BackupError(f"there is no backup in {self.text}; `tracker backup {self.text}` makes one")
        return names[0]

    def keep(self, most: int) -> list[str]:
        """Remove a directory's oldest backups, so that `most` are left, and return where they were.

        Raises:
            BackupError: one cannot be removed.
        """
        removed = self.names()[most:]
        for name in removed:
            with self._failing(self.full(name), "removed"):
                self._store.delete([name])
        return list(map(self.full, removed))

    def parts(self, name: str) -> Iterator[bytes]:
        """Yield a file, in parts.

        Raises:
            BackupError: there is none, or it cannot be read.
        """
        with self._failing(self.full(name), "read"):
            yield from self._store.pieces(name)

    def full(self, name: str) -> str:
        """Return the whole name of a file of this place."""
        return f"{self._base.rstrip('/')}/{name}"

    @contextmanager
    def _failing(self, what: str, done: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as missing:
            raise BackupError(f"{what} cannot be {done}: No such file or directory") from missing
        except StoreError as failed:
            raise BackupError(f"{what} cannot be {done}: {failed}") from failed


def place(text: str) -> Place:
    """Return the place that a user names.

    Args:
        text: a file; a directory, which exists or ends with ``/``; or the same in an object store, as a URL such as
            ``s3://bucket/backups/``. Keys and endpoints come from the environment.

    Raises:
        BackupError: the object store cannot be used.
    """
    url = urlsplit(text)
    if "://" not in text or url.scheme == "file":
        path = Path(unquote(url.path) if url.scheme == "file" else text).expanduser()
        is_directory = text.endswith("/") or path.is_dir()
        base, file = (path, "") if is_directory else (path.parent, path.name)
        return Place(text, open_store(str(base), _MODE), str(base), file)
    is_whole = not url.path.strip("/")  # all of a bucket
    base_url, _, file = f"{text.rstrip('/')}/".rpartition("/") if is_whole else text.rpartition("/")
    try:
        return Place(text, open_store(base_url), base_url, file)
    except StoreError as wrong:
        raise BackupError(
            f"{text} is not a place for backups: {wrong}; use s3://BUCKET/PATH/, gs:// or az://"
        ) from wrong
