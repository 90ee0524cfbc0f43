"""Notes of a tracker on this machine about the commands it was carrying out, or replaying, when its process ended.

A request to the store for each command would cost more than the command. So the notes are files of this machine, and
help the next tracker that starts there. A file's name has the term of the leader whose commands it is about: notes
about commands that another machine's leader has carried out since are not found any more.
"""

from __future__ import annotations

import hashlib
import logging
import os
from contextlib import suppress
from pathlib import Path

from ..mark import Mark, Marked

log = logging.getLogger("tracker.journal")


class Marks:
    """The notes about one journal.

    Args:
        folder: where the files are.
        where: the journal's address.

    Attributes:
        found: what the last leader's process on this machine has noted.
    """

    def __init__(self, folder: str, where: str) -> None:
        self._base = Path(folder) / hashlib.sha256(where.encode()).hexdigest()[:16]
        self._mark: Mark | None = None
        self._term = 0
        self.found = Marked()

    def read(self, term: int) -> None:
        """Read the notes about the commands of a term, and continue them.

        Args:
            term: that of the log's newest group.
        """
        self._open(term)
        if self._mark is not None:
            self.found = self._mark.marked

    def begin(self, term: int) -> None:
        """Note what is done in a new term from now on, and remove the notes of the one before."""
        past = self._file(self._term)
        self._open(term)
        with suppress(OSError):
            past.unlink()

    def note(self, marked: Marked) -> bool:
        return self._mark is None or self._mark.note(marked)

    def close(self) -> None:
        """Close the file."""
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    def _open(self, term: int) -> None:
        self.close()
        self._term = term
        try:
            folder = self._base.parent
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user")
            self._mark = Mark(str(self._file(term)))
        except OSError as error:
            log.warning(
                "commands under way cannot be noted (%s): one that ends the process has to be left out by hand; give "
                "a directory with ?marks=DIRECTORY",
                error,
            )

    def _file(self, term: int) -> Path:
        return self._base.with_name(f"{self._base.name}-{term}")
