"""Snapshots: directories of files that count once a mark is there, which is written last.

A manifest lists every file with its size and checksum, and the mark has the checksum of the manifest. So one that is
half written, or half removed, is not taken, and one that was damaged is found out before anything is made of it. A
name is never used twice. Nothing here knows what the files are.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_client.errors import TrackingError
from spark_client.storage.stores import Store

MARK: Final = "_SUCCESS"
MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"snapshot-(\d{6,})-[0-9a-f]{8}")


@dataclass(frozen=True)
class Stored:
    """A complete snapshot.

    Attributes:
        store: where it is.
        name: of its directory.
        manifest: what its writer tells of it; ``files`` has each file's size and checksum.
    """

    store: Store
    name: str
    manifest: Mapping[str, Any]

    @property
    def number(self) -> int:
        """1, 2, … in the order in which snapshots of its place began."""
        return _number(self.name)

    def fetch(self, directory: str, target: Path) -> None:
        """Copy the files of one of its directories to a local one, and checks them.

        Args:
            directory: in the snapshot; empty: the snapshot.
            target: which is made.

        Raises:
            TrackingError: a file is missing, or is not what was written.
        """
        target.mkdir(parents=True, exist_ok=True)
        prefix = f"{directory}/" if directory else ""
        for name, (size, checksum) in self.manifest["files"].items():
            if not name.startswith(prefix):
                continue
            copy = target / name[len(prefix) :]
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.store.get(f"{self.name}/{name}", copy)
            except FileNotFoundError:
                raise TrackingError(self._damaged(name, "is missing")) from None
            if copy.stat().st_size != size or _checksum(copy) != checksum:
                raise TrackingError(self._damaged(name, "is not what was written"))

    def _damaged(self, name: str, what: str) -> str:
        return f"{self.store.location}/{self.name} is damaged: its file {name} {what}. Take an earlier snapshot"


def complete(store: Store) -> list[Stored]:
    """Return the complete snapshots of a place, the newest first."""
    names = sorted(filter(_NAME.fullmatch, store.directories()), key=lambda name: (_number(name), name), reverse=True)
    return [found for name in names if (found := _complete(store, name)) is not None]


def _complete(store: Store, name: str) -> Stored | None:
    mark = store.read(f"{name}/{MARK}")
    manifest = None if mark is None else store.read(f"{name}/{MANIFEST}")
    if mark is None or manifest is None or hashlib.sha256(manifest).hexdigest() != mark.decode("ascii", "replace"):
        return None
    return Stored(store, name, json.loads(manifest))


def write(store: Store, local: Path, manifest: Mapping[str, Any]) -> Stored:
    """Write a snapshot. If that fails, there is none.

    Args:
        store: where to.
        local: a directory with its files.
        manifest: what is to be told of it.
    """
    numbers = [_number(name) for name in store.directories() if _NAME.fullmatch(name)]
    name = f"snapshot-{max(numbers, default=0) + 1:06d}-{uuid.uuid4().hex[:8]}"
    files = {}
    for file in sorted(each for each in local.rglob("*") if each.is_file()):
        inside = file.relative_to(local).as_posix()
        files[inside] = (file.stat().st_size, _checksum(file))
        store.put(f"{name}/{inside}", file)
    content = json.dumps({**manifest, "files": files}, indent=1).encode()
    store.write(f"{name}/{MANIFEST}", content)
    store.write(f"{name}/{MARK}", hashlib.sha256(content).hexdigest().encode())
    return Stored(store, name, json.loads(content))


def keep(store: Store, most: int) -> None:
    """Remove all but the newest complete snapshots, and what was begun before these and never completed.

    Args:
        store: of them.
        most: how many are kept.
    """
    kept = complete(store)[:most]
    if not kept:
        return
    names = {each.name for each in kept}
    for name in store.directories():
        if _NAME.fullmatch(name) and name not in names and _number(name) < kept[0].number:
            store.remove(f"{name}/{MARK}")  # first: what is half removed is not taken
            store.remove(name)


def _number(name: str) -> int:
    return int(name.split("-")[1])


def _checksum(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as content:
        while piece := content.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
