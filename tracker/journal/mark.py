"""What is kept outside the journal's own file: the last acknowledged record, and which commands are being carried out.

A log whose tail is torn off looks like a shorter log. Only something that is written elsewhere can tell: this mark. And
a command that ends the process at its application would end it again at each recovery; here stands which it was.

Writing costs one system call and survives the process. It is not synced, so after a crash of the machine the mark may
be lower than the truth, never higher.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress

_MAGIC = b"trkmark1"
_FORM = struct.Struct("<8sQQ")  # magic, number, its complement
_FULL = 2**64 - 1
_PROGRESS_AT = 64
_MOST = 30  # commands under way that are noted
_PROGRESS = struct.Struct(f"<QQ{_MOST}QI")  # the record replayed, for the how manieth time; those carried out; checksum
_SIZE = 4096


class Mark:
    """A small file.

    Attributes:
        found: the last acknowledged record; None: the file was not there, or cannot be read.
        replayed: the record at which the last start ended, 0 if it did not end at one.
        starts: how many starts in a row have ended there.
        carried: the records that were being carried out when the process ended: nobody had been answered.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(self._file, 0o600)
            data = os.pread(self._file, _SIZE, 0)
            # The room is taken now, so that no write can fail for the lack of it.
            os.posix_fallocate(self._file, 0, _SIZE)
            os.fsync(self._file)
        except OSError:
            os.close(self._file)
            raise
        self.found: int | None = None
        if len(data) >= _FORM.size:
            magic, number, complement = _FORM.unpack_from(data)
            if magic == _MAGIC and number ^ complement == _FULL:
                self.found = number
        self.replayed = self.starts = 0
        self.carried: frozenset[int] = frozenset()
        if len(data) >= _PROGRESS_AT + _PROGRESS.size:
            self.replayed, self.starts, *carried, checksum = _PROGRESS.unpack_from(data, _PROGRESS_AT)
            if zlib.crc32(data[_PROGRESS_AT : _PROGRESS_AT + _PROGRESS.size - 4]) == checksum:
                self.carried = frozenset(carried) - {0}
            else:
                self.replayed = self.starts = 0

    def set(self, number: int) -> None:
        """A record was acknowledged."""
        self._write(_FORM.pack(_MAGIC, number, number ^ _FULL), 0)

    def note(self, replayed: int, starts: int, carried: Sequence[int]) -> None:
        """Say what is being done, before it is done."""
        some = [*carried[:_MOST], *[0] * (_MOST - len(carried))]
        data = _PROGRESS.pack(replayed, starts, *some, 0)[:-4]
        self._write(data + zlib.crc32(data).to_bytes(4, "little"), _PROGRESS_AT)

    def _write(self, data: bytes, at: int) -> None:
        with suppress(OSError):  # what is recorded is durable without it
            os.pwrite(self._file, data, at)

    def close(self) -> None:
        if self._file >= 0:
            with suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1
