"""Places of backups: a file, a directory, or an object store.

A backup appears with its last part, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tracker.store import FileStore, StoreError, open_store

from .form import BackupError, Checked, Header

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
            BackupError: there is none.
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
