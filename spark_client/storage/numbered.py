"""Numbered directories of which the newest counts: each appears whole, and none takes the place of a later one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from spark_client.storage.directories import publish, remove


def write_numbered(path: Path, number: int, write: Callable[[str], object]) -> None:
    """Write a directory, unless one of this number is there, and remove all before the last but one, which may be read.

    Args:
        write: fills the directory whose path it is given.
    """
    publish(path / f"moment-{number:012d}", write)
    for old in _numbered(path)[:-2]:
        remove(old)


def newest_of(path: Path) -> Path | None:
    """Return the newest one; None: there is none."""
    found = _numbered(path)
    return found[-1] if found else None


def _numbered(path: Path) -> list[Path]:
    return sorted(path.glob("moment-*"))
