"""A place of a query's own in a store, on a local disk as in a bucket of objects.

Each file there is written once, under a name that nobody else uses, and counts as soon as a small file names it. So
nothing has to be renamed, and of several drivers that write at once each has its own files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from spark_client.errors import TrackingError, UsageError
from spark_client.storage.directories import make, remove, sync_all
from tracker.store import ConditionalStore, FileStore, RefusedError, StoreError, open_store

_S3A: Final = re.compile("s3[an]://")  #: as Spark has it; obstore knows ``s3://``


class _Store(FileStore, ConditionalStore, Protocol):
    """Store of small files, of which several drivers can agree on one."""


class Folder:
    """A place in a store.

    Args:
        location: a path, or a URL as Spark takes it.

    Raises:
        UsageError: the URL is of no store that can be used here.
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self._location = os.fspath(location)
        try:
            store: Any = open_store(_S3A.sub("s3://", self._location))
        except RefusedError as error:
            raise UsageError(
                f"{self._location}: {error}. It takes a path, or a URL such as s3a://bucket/prefix, gs://… or abfs://…"
            ) from error
        self._store: _Store = store
        self._path = None if "://" in self._location else Path(self._location)

    def __str__(self) -> str:
        return self._location

    def url(self, name: str) -> str:
        """Return where Spark reads and writes what has a name here."""
        return f"{self._location}/{name}"

    def read(self, name: str) -> Any:
        """Return the content of a small file; None: there is no such file."""
        with self._asked(name):
            content = self._store.get(name)
        return None if content is None else json.loads(content)

    def put(self, name: str, content: Any) -> None:
        """Write a small file, durable and in one step, in place of any that there is."""
        with self._asked(name):
            self._store.put(name, _encoded(content))

    def create(self, name: str, content: Any) -> Any:
        """Write a small file unless it is there, and return what stands."""
        with self._asked(name):
            created = self._store.create(name, _encoded(content))
        return content if created else self.read(name)

    def names(self) -> list[str]:
        """Return the names of what is here; those of folders end with ``/``."""
        with self._asked(""):
            return list(self._store.entries())

    def delete(self, names: Iterable[str]) -> None:
        """Remove small files, if they are there."""
        with self._asked(""):
            self._store.delete(names)

    def write(self, name: str, write: Callable[[str], object]) -> None:
        """Write files by Spark into a folder that nobody else uses, and that is durable with the file that names it.

        Args:
            write: fills the folder whose URL it is given.
        """
        if self._path is not None:
            make(self._path)
        try:
            write(self.url(name))
            if self._path is not None:  # Spark's writers leave that to the system
                sync_all(self._path / name)
        except BaseException:
            with suppress(Exception):
                self.remove(name)
            raise

    def remove(self, name: str) -> None:
        """Remove a folder with all that is in it, on a local disk so that readers never see half of it."""
        if self._path is not None:
            remove(self._path / name)
        with self._asked(name):
            self._store.remove(name)  # on a disk it forgets the folder

    @contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise TrackingError(
                f"{self.url(name)}: {error}. Nothing of this batch counts: once the store answers and lets this user "
                "read and write there, start the query again with the same checkpoint"
            ) from error


def _encoded(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
