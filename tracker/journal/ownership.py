"""The owner of a journal: one process at a time, by a lock that the system releases when the process ends.

A second server does not wait and does not take over: it refuses to start and names the owner. So starting a tracker
twice by mistake never harms the first; and after a crash, even after kill -9, the next one starts at once. Who
waits for a journal holds the lock of another file beside it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from contextlib import suppress
from typing import Final

from .interface import JournalLockedError

_STANDBY: Final = "-standby"  # what the file of the one who waits is called, after the journal's path


class Ownership:
    """The lock on a file beside a journal, held until `release` or the end of the process.

    Args:
        path: of the lock file.
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
