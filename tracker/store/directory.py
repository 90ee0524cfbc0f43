"""A directory as a store. A file and its name are on the disk before a write returns.

A file is written under a hidden name, synced, and gets its own name by a hard link, which fails if there is one, or by
a rename. Hidden files that a killed process has left count for nobody.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from .interface import NoAnswerError, RefusedError

_UNFINISHED: Final = ".unfinished"
#: Hidden files: this module's own, and those of obstore, with which earlier versions wrote journals.
_HIDDEN: Final = re.compile(r"\..*\.unfinished|.*#\d+")
_ABANDONED_S: Final = 3600  # seconds after which an unfinished file that nobody writes is removed
_PIECE: Final = 1 << 20  # bytes that are read at once
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
#: Answers that will be the same the next time.
_REFUSALS: Final = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
)
_ATTEMPTS: Final = 3  # of a write into a folder that others remove when it is empty


class DirectoryStore:
    """The files below a directory.

    Args:
        root: made with the first file.
        mode: permissions of new files, less the process's mask.
    """

    def __init__(self, root: Path, mode: int = 0o666) -> None:
        self._root = root
        self._mode = mode
        self._folders: set[Path] = set()  # that are durable

    def create(self, name: str, data: bytes) -> bool:
        def link(hidden: Path, file: Path) -> bool:
            try:
                os.link(hidden, file)
            except FileExistsError:
                return False  # who wants to know what is there reads it, which makes it durable
            finally:
                with suppress(OSError):
                    hidden.unlink()
            return True

        return self._write(name, (data,), link)

    def put(self, name: str, data: bytes | Iterable[bytes]) -> None:
        def replace(hidden: Path, file: Path) -> bool:
            os.replace(hidden, file)
            return True

        if not isinstance(data, bytes):
            self._remove_abandoned((self._root / name).parent)
        self._write(name, (data,) if isinstance(data, bytes) else data, replace)

    def get(self, name: str, first: int | None = None, soon: bool = False) -> bytes | None:  # noqa: ARG002
        file = self._root / name
        with _asked(), suppress(FileNotFoundError), file.open("rb") as opened:
            content = opened.read(-1 if first is None else first)
            # A writer of an earlier version may have ended before it did, and what was read counts.
            sync(file)
            sync(file.parent)
            return content
        return None

    def pieces(self, name: str) -> Iterator[bytes]:
        with _asked(FileNotFoundError), (self._root / name).open("rb") as opened:
            while piece := opened.read(_PIECE):
                yield piece

    def names(self, folder: str, after: str = "") -> Sequence[str]:
        with _asked():
            return sorted(name for name in self._walk(self._root / folder) if name > after)

    def _walk(self, top: Path) -> Iterator[str]:
        def failed(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        for path, _, files in os.walk(top, onerror=failed):
            below = "" if (inside := os.path.relpath(path, self._root)) == "." else f"{inside}/"
            yield from (f"{below}{file}" for file in files if not _HIDDEN.fullmatch(file))

    def entries(self, folder: str = "") -> Sequence[str]:
        with _asked(), suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
            named = (f"{each.name}/" if each.is_dir() else each.name for each in entries)
            return sorted(name for name in named if not _HIDDEN.fullmatch(name))
        return []

    def remove(self, folder: str) -> None:
        with _asked(), suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)  # with what a process that was killed has left hidden there
        self._folders.clear()

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, and folders that are empty then."""
        for name in names:
            file = self._root / name
            with _asked(), suppress(FileNotFoundError):
                file.unlink()
            folder = file.parent
            with suppress(OSError):
                while folder != self._root:
                    folder.rmdir()
                    self._folders.discard(folder)
                    folder = folder.parent

    def _write(self, name: str, pieces: Iterable[bytes], publish: Callable[[Path, Path], bool]) -> bool:
        file = self._root / name
        with _asked():
            hidden, opened = self._open_hidden(file.parent)
            try:
                with open(opened, "wb") as writing:
                    writing.writelines(pieces)
                    writing.flush()
                    os.fsync(opened)
                if not publish(hidden, file):
                    return False
            except BaseException:
                with suppress(OSError):
                    hidden.unlink(missing_ok=True)
                raise
        with _asked(certain=False):
            sync(file.parent)
        return True

    def _open_hidden(self, folder: Path) -> tuple[Path, int]:
        """Open a new file in a folder, which is made."""
        hidden = folder / f".{secrets.token_hex(8)}{_UNFINISHED}"
        for attempt in range(_ATTEMPTS):
            self._make(folder)
            try:
                return hidden, os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
            except FileNotFoundError:  # it was empty, and another process has removed it
                self._folders.clear()
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _make(self, folder: Path) -> None:
        """Make a folder durable, and those above it."""
        if folder in self._folders:
            return
        if folder != self._root:
            self._make(folder.parent)
        if folder != self._root or not folder.is_dir():
            with suppress(FileExistsError):
                folder.mkdir(parents=True)
            sync(folder.parent)
        self._folders.add(folder)

    def _remove_abandoned(self, folder: Path) -> None:
        for file in folder.glob(f".*{_UNFINISHED}"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > _ABANDONED_S:
                    file.unlink()


@contextmanager
def _asked(passed_on: type[OSError] | tuple[()] = (), certain: bool = True) -> Iterator[None]:
    """Let failures of a request become those of `tracker.store`.

    Args:
        passed_on: a failure that stays as it is.
        certain: whether a request that has failed has no effect.
    """
    try:
        yield
    except passed_on:
        raise
    except OSError as error:
        problem = error.strerror or str(error)
        full = error.errno in _FULL
        if certain and (full or error.errno in _REFUSALS):
            raise RefusedError(problem, full) from error
        raise NoAnswerError(problem) from error


def sync(path: Path) -> None:
    """Have a file's content, or a directory's names, on the disk. That costs next to nothing if they are already."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
