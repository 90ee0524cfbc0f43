"""The embedded journal: an SQLite file with a row for each group of records, and a few files beside it.

    PATH                    the log; PATH-wal, its newest part
    PATH-snapshot-NUMBER    the state after record NUMBER; the two newest are kept
    PATH-mark               the last acknowledged record, which reveals a missing tail; the commands being carried out
    PATH-set-aside          commands that are left out at recovery, since they would end the process
    PATH-lock               the lock of the process that owns the journal
    PATH-standby            the lock of a process that waits for it
    PATH-damaged-TIME…      files that were set aside because they could not be read

Guarantees, and how they are kept:

- A group is durable when `append` returns: write-ahead log, ``synchronous=FULL``, one sync a group.
- Rows are numbered without gaps and have a checksum over number and content. So recovery reads exactly the records that
  were written, in order, up to the first row that does not match; it uses none after that row.
- Damage is never ignored. Readable records move to a fresh file, the damaged file is set aside unchanged, and
  `Recovery.damage` describes the loss. If acknowledged records are lost, all this needs the operator's consent.
- Only their owner can read the files, since they hold names.
- Rows that the older of the two kept snapshots covers are removed, a few with each `append`. SQLite reuses their pages,
  so the file stays at its largest size and does not grow with time.

One process at a time owns a journal, by a lock that the system releases when the process ends. A second server does not
wait and does not take over: it refuses to start and names the owner. So starting a tracker twice by mistake never harms
the first; and after a crash, even after kill -9, the next one starts at once. A process that waits for a journal holds
the lock of another file beside it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tracker.store.directory import sync

from .interface import (
    Damage,
    Journal,
    JournalError,
    JournalFullError,
    JournalLockedError,
    JournalLossError,
    LeftOut,
    Record,
    Recovery,
    RestoreUnfinishedError,
    checksum,
    loss_of,
    pack,
    unpack,
)
from .mark import Mark, Marked
from .snapshots import SnapshotDamagedError, Snapshots

_STANDBY: Final = "-standby"  # what the file of the one who waits is called, after the journal's path


class Ownership:
    """The lock on a file beside a journal, held until `release` or the end of the process.

    Args:
        what: what is locked, for the message.

    Raises:
        JournalLockedError: another process holds the lock.
    """

    def __init__(self, path: str, what: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 1000, 0).decode(errors="replace").strip() or "an unknown process"
            os.close(self._file)
            raise JournalLockedError(
                f"{what} is in use by {holder}: only one server at a time may write a journal; "
                "stop that one first, or give this one its own journal"
            ) from error
        os.ftruncate(self._file, 0)
        since = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}, since {since}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._file)


def stand_by_file(path: str | os.PathLike[str]) -> Ownership | None:
    """Announce that this process waits for a journal; None: another one does, or the file cannot be written."""
    with suppress(JournalLockedError, OSError):
        return Ownership(f"{path}{_STANDBY}", "the place of the standby")
    return None


def standby_of_file(path: str | os.PathLike[str]) -> str:
    """Return which process waits for a journal, for people; empty: none does."""
    try:
        file = os.open(f"{path}{_STANDBY}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(file, 1000, 0).decode(errors="replace").strip() or "an unknown process"
    finally:
        os.close(file)
    return ""


APPLICATION = 0x54524B31  # "TRK" and the version of the file's format, "1": in the head of the file
_PAGE = 16384  # bytes of a page of the file
_UNREADABLE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SMALLEST = 512  # bytes: SQLite's smallest page
_CHECKPOINT = 64 << 20  # bytes: when the write-ahead log is so large, SQLite moves it into the file
_TRIM = 4  # the most old rows that are removed with each group

#: Endings of a journal's files after its path; the lock stays, and so do files that were set aside before.
_BESIDE = re.compile(
    r"|-wal|-shm|-journal|-mark|-closing|-set-aside(-\d+)?|-snapshot-\w+|-rebuilt(-unfinished)?(-wal|-journal)?"
)
NOTE: Final = "-restoring"  #: what the note is called, after the journal's path, that a backup is to come


class SqliteJournal(Journal):
    """A journal in an SQLite file.

    Args:
        path: of the file, which is made if it does not exist.
        restoring: whether a backup is being put into it.

    Raises:
        JournalLockedError: another process owns the journal.
        JournalError: the journal cannot be opened.
    """

    name = "sqlite"
    instant = False
    exclusive = True

    def __init__(self, path: str | os.PathLike[str], restoring: bool = False) -> None:
        self._path = Path(path).absolute()
        self._closed = False
        if self._path.is_dir():
            raise JournalError(f"{self._path} is a directory; name a file for the journal")
        if not self._path.parent.is_dir():
            raise JournalError(f"there is no directory {self._path.parent} for the journal; create it first")
        try:
            self._ownership = Ownership(self._beside("-lock"), f"the journal {self._path}")
            if not restoring and os.path.exists(self._beside(NOTE)):
                self._ownership.release()
                raise RestoreUnfinishedError(self._path)
            self._mark = Mark(self._beside("-mark"))
        except OSError as error:
            raise JournalError(f"cannot write beside the journal {self._path}: {error.strerror}") from error
        self._snapshots = Snapshots(str(self._path))
        self._connection: sqlite3.Connection | None = None
        self._last = 0

    def _beside(self, suffix: str) -> str:
        return f"{self._path}{suffix}"

    # ---------------------------------------------------------------- recovery

    def recover(self, accept_loss: bool = False) -> Recovery:
        self._finish_closing()
        self._finish_rebuild()
        self._keep_private()
        state, number, damage, spoilt = self._newest_snapshot()
        acknowledged = self._mark.found if self._mark.found is not None else 0
        existed = self._path.exists()
        if self._mark.found is None and not (existed or number or spoilt):
            self._mark.set(0)  # a start that is interrupted before its first record leaves a journal without records
        elif self._mark.found is None:
            what = "it is missing or unreadable, so it is not known whether the journal's tail is complete"
            damage.append(Damage(self._beside("-mark"), what, 0, None, ""))
        connection, problem = self._open(acknowledged)
        last = number
        if connection is not None:
            rows = _Rows(connection, number)
            for row in rows:
                last = row.first + row.count - 1
            problem = problem or rows.problem or _check(connection)
        if problem is None and last < acknowledged:
            problem = "its tail is missing"
        aside = self._aside(self._path) if existed else ""
        if problem is not None:
            lost = max(0, acknowledged - last)
            if lost:  # whole snapshots would not have these records either
                damage = [each if each.lost is None else replace(each, lost=lost) for each in damage]
            damage.append(Damage(str(self._path), problem, last + 1, lost, aside))
        if not accept_loss and any(each.lost != 0 for each in damage):
            raise self._loss(connection, damage)
        for file, beside in spoilt:
            os.rename(file, beside)
        if problem is not None and existed:
            try:
                self._rebuild(connection, number, last, aside)
            except (sqlite3.Error, OSError) as error:
                self._close_unchanged(connection)
                raise self._failure(error) from error
            connection, _ = self._open(0)
        if connection is None:
            raise JournalError(f"the journal {self._path} was rebuilt and still cannot be read")
        self._connection = connection
        self._inode = os.stat(self._path).st_ino
        self._last = last
        self._keep_after = self._snapshots.oldest_needed()
        marked = self._mark.marked  # it shows an accepted loss until the first record: the log is another one then
        return Recovery(
            state,
            number,
            _records_of(_Rows(connection, number)),
            tuple(damage),
            marked.replayed,
            marked.starts,
            frozenset(marked.carried),
            frozenset(self._set_aside()),
        )

    def _loss(self, connection: sqlite3.Connection | None, damage: list[Damage]) -> JournalLossError:
        self._close_unchanged(connection)
        return JournalLossError(
            f"{loss_of(damage)}. Nothing was changed. Restore a backup (`tracker restore FILE --journal ADDRESS "
            "--replace`), or start once with --accept-loss to continue without the lost records; the damaged files are "
            "kept beside the journal"
        )

    def _keep_private(self) -> None:
        """Make the files private: other users could read those of an older version."""
        for suffix in ("", "-wal", "-lock"):
            with suppress(FileNotFoundError):
                os.chmod(self._beside(suffix), 0o600)
        for number in self._snapshots.numbers():
            os.chmod(self._snapshots.file(number), 0o600)

    def _newest_snapshot(self) -> tuple[Any, int, list[Damage], list[tuple[Path, str]]]:
        """Return the newest readable snapshot and its number, the damage of newer ones, and where to move those."""
        damage: list[Damage] = []
        spoilt: list[tuple[Path, str]] = []
        for number in self._snapshots.numbers():
            file = self._snapshots.file(number)
            try:
                return self._snapshots.read(number), number, damage, spoilt
            except SnapshotDamagedError as error:
                aside = self._aside(file)
                spoilt.append((file, aside))
                damage.append(Damage(str(file), f"the snapshot cannot be used: {error}", number, 0, aside))
        return None, 0, damage, spoilt

    # ---------------------------------------------------------------- what is left out

    def replaying(self, number: int) -> None:
        self._mark.note(self._mark.marked.replaying(number))

    def carrying(self, numbers: Sequence[int]) -> bool:
        return self._mark.note(Marked(carried=tuple(numbers)))

    def set_aside(self, number: int, record: Record, why: str, answered: bool) -> None:
        kept = Path(self._beside(f"-set-aside-{number}"))
        with open(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(record.payload)
            file.flush()
            os.fsync(file.fileno())
        untold = self._last if answered else 0
        values = {"record": number, "method": record.method, "at": record.at, "why": why, "untold": untold}
        names = os.open(self._beside("-set-aside"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(names, "a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
            file.flush()
            os.fsync(file.fileno())
        sync(self._path.parent)

    def _set_aside(self) -> Iterator[LeftOut]:
        try:
            lines = Path(self._beside("-set-aside")).read_text().splitlines()
        except FileNotFoundError:
            return
        try:
            for line in lines:
                values = json.loads(line)
                untold = int(values.get("untold", 0))
                yield LeftOut(int(values["record"]), int(values["method"]), int(values["at"]), untold)
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(
                f"{self._beside('-set-aside')} cannot be read; repair its lines, or move it away"
            ) from error

    def _open(self, acknowledged: int) -> tuple[sqlite3.Connection | None, str | None]:
        """Open the file; return the connection, or what is wrong. A damaged but readable file gives both."""
        if acknowledged and self._path.exists() and self._path.stat().st_size < _SMALLEST:
            return None, "it was cut to nothing"  # SQLite would treat it as new, and remove the files beside it
        if not self._path.exists():
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=0, check_same_thread=False)
        try:
            # Exclusive: no other process may use the file, and SQLite needs no shared memory.
            connection.execute("PRAGMA locking_mode=EXCLUSIVE")
            # Allows reading a file that is shorter than its head declares.
            connection.execute("PRAGMA writable_schema=ON")
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if application != APPLICATION and tables:
                if acknowledged and application >> 8 != APPLICATION >> 8:
                    return connection, "its head is damaged"
                connection.close()
                raise JournalError(f"{self._path} is an SQLite file of something else, or of another version")
            connection.execute(f"PRAGMA page_size={_PAGE}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA secure_delete=OFF")  # otherwise SQLite overwrites each removed row with zeros
            connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT // _PAGE}")
            connection.execute(f"PRAGMA journal_size_limit={2 * _CHECKPOINT}")
            if not tables:
                _create(connection)
                sync(self._path.parent)
            return connection, None
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code in _UNREADABLE:
                self._close_unchanged(connection)
            else:
                connection.close()
            if code == sqlite3.SQLITE_NOTADB and not acknowledged:
                raise JournalError(f"{self._path} is not a journal; name another file") from error
            if code in _UNREADABLE:
                return None, f"it cannot be read: {error}"
            raise JournalError(f"the journal {self._path} cannot be opened: {error}") from error

    def _rebuild(self, damaged: sqlite3.Connection | None, after: int, last: int, aside: str) -> None:
        """Move the rows after record `after` up to record `last` into a fresh file, and set the damaged file aside."""
        fresh = Path(self._beside("-rebuilt"))
        unfinished = Path(self._beside("-rebuilt-unfinished"))
        for suffix in ("", "-journal"):
            Path(f"{unfinished}{suffix}").unlink(missing_ok=True)
        os.close(os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(unfinished, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA page_size={_PAGE}")
            connection.execute("PRAGMA synchronous=FULL")
            _create(connection)
            if damaged is not None and last > after:
                connection.execute("BEGIN")
                for row in _Rows(damaged, after):
                    if row.first > last:
                        break
                    _insert(connection, row)
                connection.execute("COMMIT")
        os.rename(unfinished, fresh)
        sync(self._path.parent)
        self._swap(aside)
        if damaged is not None:
            damaged.close()  # only now: closing it earlier would have merged the damaged files
        self._finish_rebuild()

    def _close_unchanged(self, connection: sqlite3.Connection | None) -> None:
        """Close a damaged file, and change neither that nor its write-ahead log.

        SQLite moves the log into a file that it closes, and drops the log's torn part, unless the file is elsewhere.
        """
        if connection is None:
            return
        with suppress(FileNotFoundError):  # it is set aside already
            os.rename(self._path, self._beside("-closing"))
        connection.close()
        self._finish_closing()

    def _finish_closing(self) -> None:
        """Put a file that was closed unchanged in its place, even after a crash in the middle of that."""
        if not self._path.exists():
            with suppress(FileNotFoundError):
                os.rename(self._beside("-closing"), self._path)

    def _finish_rebuild(self) -> None:
        """Put a rebuilt file in its place, even after a crash in the middle of that."""
        fresh = Path(self._beside("-rebuilt"))
        if fresh.exists():
            self._swap(self._aside(self._path))
            os.rename(fresh, self._path)
            sync(self._path.parent)

    def _swap(self, aside: str) -> None:
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                os.rename(self._beside(suffix), f"{aside}{suffix}")

    def _aside(self, file: Path) -> str:
        return _free(f"{file}-damaged-{time.strftime('%Y%m%dT%H%M%S')}")

    # ---------------------------------------------------------------- writing

    def append(self, records: Sequence[Record]) -> int:
        connection = self._writable()
        first = self._last + 1
        data = pack(records)
        try:
            connection.execute("BEGIN IMMEDIATE")
            _insert(connection, _Row(first, len(records), data))
            connection.execute(
                "DELETE FROM log WHERE first IN (SELECT first FROM log WHERE first <= ? ORDER BY first LIMIT ?)",
                (self._keep_after, _TRIM),
            )
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise self._failure(error) from error
        self._last = first + len(records) - 1
        self._mark.set(self._last)
        return self._last

    def snapshot(self, number: int, state: Any) -> int:
        try:
            size = self._snapshots.write(number, state)
        except OSError as error:
            raise self._failure(error) from error
        self._keep_after = self._snapshots.oldest_needed()
        return size

    def standby(self) -> str:
        return standby_of_file(self._path)

    def hand_over(self) -> None:
        self.close()  # the standby tries to get the lock all the time

    def begin_restore(self) -> None:
        _note_restore(self._path)

    def end_restore(self) -> None:
        Path(self._beside(NOTE)).unlink(missing_ok=True)
        sync(self._path.parent)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._connection is not None:
            self._connection.close()
        self._mark.close()
        self._ownership.release()

    def _writable(self) -> sqlite3.Connection:
        if self._closed or self._connection is None:
            raise JournalError(f"the journal {self._path} is closed")
        try:
            there = os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            there = False
        if not there:
            raise JournalError(f"the journal {self._path} was moved or removed; put it back, or restart the server")
        return self._connection

    def _failure(self, error: sqlite3.Error | OSError) -> JournalError:
        if isinstance(error, OSError):
            full, what = error.errno in _NO_ROOM, error.strerror
        else:
            full, what = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL, str(error)
        if full:
            return JournalFullError(
                f"there is no room for the journal {self._path} ({what}); free some space and retry"
            )
        return JournalError(f"the journal {self._path} cannot be written: {what}")


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def set_file_aside(path: str) -> str:
    """Rename a journal's files, so that they are a journal under another name, and note first that a backup is to come.

    Several files cannot be renamed in one step, and the backup comes after that. So the note is there from before the
    first step until after the last one, and nobody else opens the journal meanwhile, or after an interruption.

    Returns:
        The journal's path now; empty: there was none.

    Raises:
        JournalLockedError: another process owns it.
        JournalError: a file cannot be renamed.
    """
    journal = Path(path).absolute()
    if not journal.parent.is_dir():
        return ""
    ownership = None
    try:
        ownership = Ownership(f"{journal}-lock", f"the journal {journal}")
        names = [entry.name for entry in journal.parent.iterdir() if entry.name.startswith(journal.name)]
        beside = [name.removeprefix(journal.name) for name in names]
        _note_restore(journal)
        aside = _free(f"{journal}-replaced-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
        moved = [suffix for suffix in beside if _BESIDE.fullmatch(suffix)]
        for suffix in moved:
            os.rename(f"{journal}{suffix}", f"{aside}{suffix}")
        sync(journal.parent)
    except OSError as error:
        raise JournalError(f"the journal {journal} cannot be set aside: {error.strerror}") from error
    finally:
        if ownership is not None:
            ownership.release()
    return aside if moved else ""


def _note_restore(journal: Path) -> None:
    os.close(os.open(f"{journal}{NOTE}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    sync(journal.parent)


def _free(name: str) -> str:
    taken, count = name, 1
    while os.path.exists(taken) or os.path.exists(f"{taken}-wal"):
        taken, count = f"{name}-{count}", count + 1
    return taken


# ---------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class _Row:
    """A group of records: the number of the first, how many they are, and what `groups.pack` has made of them."""

    first: int
    count: int
    data: bytes


def _create(connection: sqlite3.Connection) -> None:
    """Make the table of an empty file."""
    connection.execute(f"PRAGMA application_id={APPLICATION}")
    connection.execute(
        "CREATE TABLE log ("
        " first INTEGER PRIMARY KEY,"  # the number of the group's first record
        " count INTEGER NOT NULL,"  # the number of records in the group
        " checksum INTEGER NOT NULL,"
        " data BLOB NOT NULL)"
    )


def _insert(connection: sqlite3.Connection, row: _Row) -> None:
    """Write a row down."""
    connection.execute(
        "INSERT INTO log VALUES (?, ?, ?, ?)",
        (row.first, row.count, checksum(row.first, row.count, row.data), row.data),
    )


def _check(connection: sqlite3.Connection) -> str | None:
    """Return what SQLite itself finds wrong with a file; None: nothing."""
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
    return None if found == "ok" else f"it is inconsistent: {found}"


class _Rows:
    """The rows after a record, up to the first that does not match; once they are read, `problem` describes it."""

    def __init__(self, connection: sqlite3.Connection, after: int) -> None:
        self._connection = connection
        self._next = after + 1
        self.problem: str | None = None

    def __iter__(self) -> Iterator[_Row]:
        try:
            for first, count, written, data in self._connection.execute(
                "SELECT first, count, checksum, data FROM log WHERE first >= ? ORDER BY first", (self._next,)
            ):
                if first != self._next:
                    self.problem = f"records {self._next} to {first - 1} are missing"
                    return
                row = _Row(first, count, data)
                if not isinstance(count, int) or not isinstance(data, bytes) or checksum(first, count, data) != written:
                    self.problem = "a checksum is wrong"
                    return
                self._next = first + count
                yield row
        except sqlite3.DatabaseError as error:
            self.problem = f"it cannot be read: {error}"


def _records_of(rows: _Rows) -> Iterator[Record]:
    """Return the records of rows that were read once before."""
    for row in rows:
        yield from unpack(row.data)
    if rows.problem:
        raise JournalError(f"the journal could be read a moment ago and now cannot: {rows.problem}")
