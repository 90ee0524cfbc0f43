"""Snapshots: directories of files that count once a mark is there, which is written last.

A manifest lists every file with its size and checksum, and the mark has the checksum of the manifest. So one that is
half written, or half removed, is not taken, and one that was damaged is found out before anything is made of it. A
name is never used twice. Nothing here knows what the files are.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from spark_client.errors import TrackingError, UsageError, refused
from spark_client.storage.directories import local_path
from spark_client.storage.folder import STORES, Folder
from tracker.store import FileStore, RefusedError
from tracker.store.directory import DirectoryStore
from tracker.store.foreign import ForeignStore

MARK: Final = "_SUCCESS"
MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"snapshot-(\d{6,})-[0-9a-f]{8}")


@dataclass(frozen=True)
class Place:
    """A directory, or a store that fsspec knows, with snapshots.

    Attributes:
        location: as the user has named it.
    """

    location: str
    files: FileStore

    @classmethod
    def at(cls, location: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Place:
        """Return the place that a user names.

        Args:
            location: a path, or a URL that fsspec or obstore knows: ``s3://bucket/path``.
            options: of fsspec's file system; empty: obstore is asked where fsspec lacks a package for the URL.

        Raises:
            UsageError: no package for this URL is installed; or the URL cannot be used.
        """
        text = os.fspath(location)
        if urlsplit(text).scheme in ("", "file"):
            if options:
                raise UsageError(f"storage_options are for a URL such as s3://bucket/path; {text!r} is a local path")
            return cls(text, DirectoryStore(local_path(text, "the snapshots' directory")))
        if not options and urlsplit(text).scheme in STORES:
            with suppress(RefusedError):
                return cls(text, ForeignStore(text, {}))
            return cls(text, Folder(text).store)
        with refused(text, errors=RefusedError):
            return cls(text, ForeignStore(text, options or {}))

    def snapshots(self) -> list[str]:
        """Return the names of the snapshots that were begun."""
        return [name[:-1] for name in self.files.entries() if _NAME.fullmatch(name[:-1])]


@dataclass(frozen=True)
class Stored:
    """A complete snapshot.

    Attributes:
        name: its directory's, which has its number.
        manifest: its writer's description; ``files`` has each file's size and checksum.
    """

    place: Place
    name: str
    manifest: Mapping[str, Any]

    @property
    def number(self) -> int:
        """1, 2, … in the order in which snapshots of its place began."""
        return _number(self.name)

    def fetch(self, directory: str, target: Folder) -> None:
        """Copy the files of one of its directories into a folder, and check them.

        Args:
            directory: in the snapshot; empty: the snapshot.

        Raises:
            TrackingError: a file is missing, or is not what was written.
        """
        prefix = f"{directory}/" if directory else ""
        for name, (size, checksum) in self.manifest["files"].items():
            if not name.startswith(prefix):
                continue
            pieces = self.place.files.pieces(f"{self.name}/{name}")
            try:
                copied = _Copied(chain([next(pieces, b"")], pieces))
            except FileNotFoundError:
                raise TrackingError(self._damaged(name, "is missing")) from None
            target.put(name[len(prefix) :], copied)
            if copied.size != size or copied.digest.hexdigest() != checksum:
                raise TrackingError(self._damaged(name, "is not what was written"))

    def _damaged(self, name: str, what: str) -> str:
        return f"{self.place.location}/{self.name} is damaged: its file {name} {what}. Take an earlier snapshot"


class _Copied(Iterator[bytes]):
    """Pieces of a file, whose size and checksum are known once they have passed."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.size, self.digest = 0, hashlib.sha256()
        self._pieces = pieces

    def __next__(self) -> bytes:
        piece = next(self._pieces)
        self.size += len(piece)
        self.digest.update(piece)
        return piece


def complete(place: Place) -> list[Stored]:
    """Return the complete snapshots of a place, the newest first."""
    names = sorted(place.snapshots(), key=lambda name: (_number(name), name), reverse=True)
    return [found for name in names if (found := _complete(place, name)) is not None]


def _complete(place: Place, name: str) -> Stored | None:
    mark = place.files.get(f"{name}/{MARK}")
    manifest = None if mark is None else place.files.get(f"{name}/{MANIFEST}")
    if mark is None or manifest is None or hashlib.sha256(manifest).hexdigest() != mark.decode("ascii", "replace"):
        return None
    return Stored(place, name, json.loads(manifest))


def write(place: Place, local: Path, manifest: Mapping[str, Any]) -> Stored:
    """Write a snapshot. If that fails, there is none.

    Args:
        manifest: the snapshot's description, as JSON can hold it.
    """
    name = f"snapshot-{max(map(_number, place.snapshots()), default=0) + 1:06d}-{uuid.uuid4().hex[:8]}"
    files = {}
    for file in sorted(each for each in local.rglob("*") if each.is_file()):
        inside = file.relative_to(local).as_posix()
        files[inside] = (file.stat().st_size, _checksum(file))
        place.files.put(f"{name}/{inside}", _pieces(file))
    content = json.dumps({**manifest, "files": files}, indent=1).encode()
    place.files.put(f"{name}/{MANIFEST}", content)
    place.files.put(f"{name}/{MARK}", hashlib.sha256(content).hexdigest().encode())
    return Stored(place, name, json.loads(content))


def keep(place: Place, most: int) -> None:
    """Remove all but the newest complete snapshots, and what was begun before these and never completed."""
    kept = complete(place)[:most]
    if not kept:
        return
    names = {each.name for each in kept}
    for name in place.snapshots():
        if name not in names and _number(name) < kept[0].number:
            place.files.delete([f"{name}/{MARK}"])  # first: what is half removed is not taken
            place.files.remove(name)


def _number(name: str) -> int:
    return int(name.split("-")[1])


def _checksum(file: Path) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(file):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as content:
        while piece := content.read(1 << 20):
            yield piece
