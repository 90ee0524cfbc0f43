"""A disk that keeps only what was synced: what a machine finds after a loss of power.

Every sync, SQLite's and Python's own, copies the file as it is then. A file that was never synced is empty, a name
that its directory's sync has not covered is the one before. SQLite's syncs are seen by a layer over its own file layer,
which is made here with ctypes: nothing needs to be installed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_Open = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


class _Methods(ctypes.Structure):
    """Methods of an open file, as far as they matter here: `xSync` is the sixth."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("before", ctypes.c_void_p * 4),  # close, read, write, truncate
        ("sync", _Sync),
        ("after", ctypes.c_void_p * 13),
    )


class _Vfs(ctypes.Structure):
    """SQLite's file layer."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", _Open),
        ("rest", ctypes.c_void_p * 15),
    )


class Disk:
    """The synced content of one directory.

    Args:
        live: where files are written.
    """

    def __init__(self, live: Path) -> None:
        self._live = live
        self._content: dict[int, bytes] = {}  # by inode
        self._names: dict[str, int] = {}

    def sync(self, path: Path) -> None:
        """Note that a file was synced; SQLite sees to the names of its own."""
        if path.parent == self._live and path.exists():
            inode = path.stat().st_ino
            self._content[inode] = path.read_bytes()
            if not path.name.endswith(("-new", "-rebuilt-unfinished")) and "-snapshot-" not in path.name:
                self._names[path.name] = inode

    def sync_names(self) -> None:
        """Note that the directory was synced."""
        self._names = {path.name: path.stat().st_ino for path in self._live.iterdir()}

    def after_power_loss(self, where: Path) -> Path:
        """Restore the content of the disk when the machine is up again."""
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir()
        for name, inode in self._names.items():
            (where / name).write_bytes(self._content.get(inode, b""))
        return where


@contextmanager
def watched(live: Path) -> Iterator[Disk]:
    """Yield a disk that follows what is synced in a directory, by this process, until the end of the block."""
    disk = Disk(live)
    sqlite = _sqlite()
    plain_address = sqlite.sqlite3_vfs_find(None)
    plain = _Vfs.from_address(plain_address)
    layer = _Vfs.from_buffer_copy(plain)
    layer.name, layer.next = b"watched", None
    kept: list[Any] = []  # what C points to
    paths: dict[int, Path] = {}
    methods_of: dict[int, _Methods] = {}

    def opened(_: int, name: int | None, file: int, flags: int, out: int) -> int:
        # The name is SQLite's own, which it keeps as long as the file is open: a copy of it would not do.
        code = int(plain.open(plain_address, name, file, flags, out))
        pointer = ctypes.c_void_p.from_address(file)
        if code == 0 and name is not None and pointer.value:
            paths[file] = Path(ctypes.string_at(name).decode())
            pointer.value = ctypes.addressof(watching(pointer.value))
        return code

    def watching(address: int) -> _Methods:
        """Return the methods at an address, but for `xSync`."""
        if address not in methods_of:
            methods = _Methods.from_address(address)
            copy = _Methods.from_buffer_copy(methods)

            def synced(file: int, flags: int) -> int:
                code = int(methods.sync(file, flags))
                disk.sync(paths[file])
                return code

            copy.sync = _Sync(synced)
            kept.append(copy.sync)
            methods_of[address] = copy
        return methods_of[address]

    layer.open = _Open(opened)
    kept.append(layer.open)
    plain_fsync = os.fsync

    def fsync(file: int) -> None:
        plain_fsync(file)
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path == live:
            disk.sync_names()
        else:
            disk.sync(path)

    sqlite.sqlite3_vfs_register(ctypes.byref(layer), 1)
    os.fsync = fsync  # type: ignore[assignment]
    try:
        yield disk
    finally:
        os.fsync = plain_fsync
        sqlite.sqlite3_vfs_unregister(ctypes.byref(layer))


def _sqlite() -> Any:
    """Return the library that Python's own module uses."""
    import _sqlite3

    ctypes.CDLL(_sqlite3.__file__)
    with open("/proc/self/maps") as maps:
        loaded = [line.split()[-1] for line in maps if "libsqlite3" in line]
    library = ctypes.CDLL(loaded[0] if loaded else _sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.c_void_p
    return library
