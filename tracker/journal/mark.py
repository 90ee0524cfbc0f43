"""The number of the last record that was acknowledged, kept outside the journal's own file.

A log whose tail is torn off looks like a shorter log. Only something that is written elsewhere can tell: this mark. It
is a memory-mapped file, so setting it costs no system call and survives the process; it is not synced, so after a
crash of the machine it may be lower than the truth, never higher.
"""

from __future__ import annotations

import mmap
import os
import struct

_MAGIC = b"trkmark1"
_FORM = struct.Struct("<8sQQ")  # magic, number, its complement
_FULL = 2**64 - 1


class Mark:
    """A number in a file."""

    def __init__(self, path: str) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            found = os.pread(file, _FORM.size, 0)
            os.ftruncate(file, _FORM.size)
            self._map = mmap.mmap(file, _FORM.size)
        finally:
            os.close(file)
        #: what the file said; None: it was not there, or cannot be read
        self.found: int | None = None
        if len(found) == _FORM.size:
            magic, number, complement = _FORM.unpack(found)
            if magic == _MAGIC and number ^ complement == _FULL:
                self.found = number

    def set(self, number: int) -> None:
        _FORM.pack_into(self._map, 0, _MAGIC, number, number ^ _FULL)

    def close(self) -> None:
        self._map.close()
