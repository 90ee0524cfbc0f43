"""Moves a journal in an SQLite file out of the way, together with the files beside it, for a backup.

Several files cannot be renamed in one step, and the backup comes after that. So a note is there from before the first
step until after the last one, and nobody else opens the journal meanwhile, or after an interruption.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Final

from tracker.store.directory import sync

from .interface import JournalError
from .ownership import Ownership

#: What a journal's files are called after its path; the lock stays, and so does what was set aside before.
_BESIDE = re.compile(
    r"|-wal|-shm|-journal|-mark|-set-aside(-\d+)?|-snapshot-\w+|-rebuilt(-unfinished)?(-wal|-journal)?"
)


NOTE: Final = "-restoring"  #: what the note is called, after the journal's path, that a backup is to come


def end_file_restore(path: str) -> None:
    """Remove the note that a backup is to come: it is there."""
    note = Path(f"{Path(path).absolute()}{NOTE}")
    note.unlink(missing_ok=True)
    sync(note.parent)


def set_file_aside(path: str) -> str:
    """Rename a journal's files, so that they are a journal under another name, and note first that a backup is to come.

    Args:
        path: the journal's.

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
        os.close(os.open(f"{journal}{NOTE}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        sync(journal.parent)
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


def _free(name: str) -> str:
    taken, count = name, 1
    while os.path.exists(taken):
        taken, count = f"{name}-{count}", count + 1
    return taken
