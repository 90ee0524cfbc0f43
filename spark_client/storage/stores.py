"""Where files are kept that need neither rename nor links: a directory, or any store that fsspec knows.

Nothing here appears whole by itself: who writes several files writes one last that says so.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_client.errors import UsageError
from spark_client.storage.directories import local_path


class Store(ABC):
    """Files by their names, which have slashes.

    Attributes:
        location: as the user has named it.
    """

    def __init__(self, location: str) -> None:
        self.location = location

    @abstractmethod
    def directories(self) -> list[str]:
        """Return the names of the directories that are in it."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return a small file; None: there is none."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""

    @abstractmethod
    def put(self, name: str, file: Path) -> None:
        """Copy a local file there."""

    @abstractmethod
    def get(self, name: str, file: Path) -> None:
        """Copy a file to a local one, whose directory is there.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file or a directory, if it is there."""


def store(location: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Store:
    """Return the store that a user names.

    Args:
        location: a path, or a URL that fsspec knows: ``s3://bucket/path``.
        options: of fsspec's file system.

    Raises:
        UsageError: fsspec, or what it needs for this URL, is not installed; or the URL cannot be used.
    """
    text = os.fspath(location)
    if urlsplit(text).scheme in ("", "file"):
        if options:
            raise UsageError(f"storage_options are for a URL such as s3://bucket/path; {text!r} is a local path")
        return _Directory(text)
    return _Remote(text, dict(options or {}))


class _Directory(Store):
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._path = local_path(location, "the snapshots' directory")

    def directories(self) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self._path) if entry.is_dir()]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        target = self._path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def put(self, name: str, file: Path) -> None:
        target = self._path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "rb") as source, open(target, "wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())

    def get(self, name: str, file: Path) -> None:
        with open(self._path / name, "rb") as source, open(file, "wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)

    def remove(self, name: str) -> None:
        target = self._path / name
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


class _Remote(Store):
    def __init__(self, location: str, options: dict[str, Any]) -> None:
        super().__init__(location)
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]
        except ImportError as error:
            raise UsageError(
                f"{location}: stores other than directories are reached by fsspec: pip install "
                "'substream-tracker[snapshots]', and what fsspec needs for this one (s3fs, gcsfs, adlfs, …)"
            ) from error
        try:
            self._files, self._root = url_to_fs(location, **options)
        except (ImportError, ValueError, TypeError) as error:
            raise UsageError(f"{location}: fsspec cannot open it: {error}") from error

    def _at(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def directories(self) -> list[str]:
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return []
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"]

    def read(self, name: str) -> bytes | None:
        try:
            content: bytes = self._files.cat_file(self._at(name))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        self._make_way(name)
        self._files.pipe_file(self._at(name), content)

    def put(self, name: str, file: Path) -> None:
        self._make_way(name)
        self._files.put_file(str(file), self._at(name))

    def get(self, name: str, file: Path) -> None:
        self._files.get_file(self._at(name), str(file))

    def remove(self, name: str) -> None:
        try:
            self._files.rm(self._at(name), recursive=True)
        except FileNotFoundError:
            return

    def _make_way(self, name: str) -> None:
        """Make the directory of a file, where a store has any."""
        self._files.makedirs(self._at(name).rpartition("/")[0], exist_ok=True)
