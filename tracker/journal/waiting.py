"""Who waits for a journal in a file: a standby holds the lock of another file beside it."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from .interface import JournalLockedError
from .ownership import Ownership

_SUFFIX = "-standby"


def stand_by_file(path: str | os.PathLike[str]) -> Ownership | None:
    """Announce that this process waits for a journal; None: another one does, or the file cannot be written."""
    with suppress(JournalLockedError, OSError):
        return Ownership(f"{path}{_SUFFIX}", "the place of the standby")
    return None


def standby_of_file(path: str | os.PathLike[str]) -> str:
    """Return which process waits for a journal, for people; empty: none does."""
    try:
        file = os.open(f"{path}{_SUFFIX}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(file, 1000, 0).decode(errors="replace").strip() or "an unknown process"
    finally:
        os.close(file)
    return ""
