"""Where backups are kept: a file, a directory, or an object store.

A backup appears whole or not at all: a file under another name is renamed once it is on disk, and an object appears
with its last part.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from .form import BackupError, Checked, Header, parts_of

_NAME: Final = re.compile(r"tracker-\d{8}T\d{6}Z-record-\d+\.backup")
_UNFINISHED: Final = ".unfinished"
_ABANDONED_S: Final = 3600  # seconds after which an unfinished file that nobody writes is removed


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


class Place(ABC):
    """A file, or a directory of backups.

    Attributes:
        text: how the user has named it.
        file: the name of the file in it; empty: it is a directory, where each backup gets a name by its time.
    """

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file

    def write(self, backup: Checked) -> str:
        """Write a backup, check it on the way, and return where it is. If that fails, nothing is there.

        Raises:
            BackupError: it is damaged, or the place cannot be written.
        """
        name = self.file or name_of(backup.header)
        self._write(name, iter(backup))
        return self.full(name)

    def names(self) -> list[str]:
        """Return the names of a directory's backups, newest first; of a file, its own.

        Raises:
            BackupError: the place cannot be read.
        """
        return [self.file] if self.file else _newest_first(self._list())

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
            self._remove(name)
        return list(map(self.full, removed))

    @abstractmethod
    def parts(self, name: str) -> Iterator[bytes]:
        """Yield a file, in parts.

        Raises:
            BackupError: there is none, or it cannot be read.
        """

    @abstractmethod
    def full(self, name: str) -> str:
        """Return the whole name of a file of this place."""

    @abstractmethod
    def _write(self, name: str, parts: Iterator[bytes]) -> None: ...

    @abstractmethod
    def _list(self) -> list[str]: ...

    @abstractmethod
    def _remove(self, name: str) -> None: ...


def place(text: str) -> Place:
    """Return the place that a user names.

    Args:
        text: a file; a directory, which exists or ends with ``/``; or the same in an object store, as a URL such as
            ``s3://bucket/backups/``. Keys and endpoints come from the environment.

    Raises:
        BackupError: the object store cannot be used.
    """
    if "://" not in text or text.startswith("file://"):
        return _Files(text)
    return _Objects(text)


class _Files(Place):
    """Of this machine."""

    def __init__(self, text: str) -> None:
        path = Path(urlsplit(text).path if text.startswith("file://") else text).expanduser()
        is_directory = text.endswith("/") or path.is_dir()
        super().__init__(text, "" if is_directory else path.name)
        self._directory = path if is_directory else path.parent

    def full(self, name: str) -> str:
        return str(self._directory / name)

    def _write(self, name: str, parts: Iterator[bytes]) -> None:
        unfinished = self._directory / f".{name}{_UNFINISHED}"
        try:
            if not self.file:
                self._directory.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, self._directory / name)
            self._sync()
        except BaseException as failed:
            with suppress(OSError):
                unfinished.unlink()
            if isinstance(failed, OSError):
                raise BackupError(f"{self.full(name)} cannot be written: {failed.strerror}") from failed
            raise

    def _remove_abandoned(self) -> None:
        for file in self._directory.glob(f".*{_UNFINISHED}"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > _ABANDONED_S:
                    file.unlink()

    def _sync(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _list(self) -> list[str]:
        try:
            return [file.name for file in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as failed:
            raise BackupError(f"{self.text} cannot be read: {failed.strerror}") from failed

    def parts(self, name: str) -> Iterator[bytes]:
        try:
            with open(self._directory / name, "rb") as file:
                yield from parts_of(file)
        except OSError as failed:
            raise BackupError(f"{self.full(name)} cannot be read: {failed.strerror}") from failed

    def _remove(self, name: str) -> None:
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError as failed:
            raise BackupError(f"{self.full(name)} cannot be removed: {failed.strerror}") from failed


class _Objects(Place):
    """Of an object store that obstore reaches. Its credentials come from the environment."""

    def __init__(self, text: str) -> None:
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ModuleNotFoundError as missing:
            raise BackupError(
                f"{text} needs {missing.name}: pip install 'substream-tracker[object-store]'"
            ) from missing
        self._obstore: Any = obstore
        self._failures: tuple[type[Exception], ...] = (BaseError, OSError)
        is_whole = not urlsplit(text).path.strip("/")  # all of a bucket
        url, _, file = f"{text.rstrip('/')}/".rpartition("/") if is_whole else text.rpartition("/")
        super().__init__(text, file)
        self._base = url
        try:
            self._store: Any = from_url(url)
        except (BaseError, ValueError) as wrong:
            raise BackupError(
                f"{text} is not a place for backups: {_reason(wrong)}; use s3://BUCKET/PATH/, gs:// or az://"
            ) from wrong

    def full(self, name: str) -> str:
        return f"{self._base}/{name}"

    def _write(self, name: str, parts: Iterator[bytes]) -> None:
        try:
            self._obstore.put(self._store, name, parts)
        except self._failures as failed:
            raise BackupError(f"{self.full(name)} cannot be written: {_reason(failed)}") from failed

    def _list(self) -> list[str]:
        try:
            return [each["path"] for chunk in self._obstore.list(self._store) for each in chunk]
        except self._failures as failed:
            raise BackupError(f"{self.text} cannot be read: {_reason(failed)}") from failed

    def parts(self, name: str) -> Iterator[bytes]:
        try:
            for part in self._obstore.get(self._store, name).stream():
                yield bytes(part)
        except self._failures as failed:
            raise BackupError(f"{self.full(name)} cannot be read: {_reason(failed)}") from failed

    def _remove(self, name: str) -> None:
        try:
            self._obstore.delete(self._store, name)
        except self._failures as failed:
            raise BackupError(f"{self.full(name)} cannot be removed: {_reason(failed)}") from failed


def _reason(error: Exception) -> str:
    return str(error).partition("\n")[0]  # the rest is for obstore's authors
