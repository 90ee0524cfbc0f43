"""The mark beside the journal's own file: the last acknowledged record, and the commands that are being carried out.

A log without its tail looks like a shorter log; only a number that is stored elsewhere can reveal the loss. And a
command that ends the process when it is carried out would end it again at each recovery; the mark names the command
it was.

Writing the mark costs one system call, and the mark survives the process. It is not synced, so after a crash of the
machine its number may be too low, but never too high.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass

_MAGIC = b"trkmark1"
_FORM = struct.Struct("<8sQQ")  # magic, number, its complement
_FULL = 2**64 - 1
_PROGRESS_AT = 64
_MOST = 30  # the most commands under way that are noted
# The record that is being replayed, how many starts have come to it, the records being carried out, a checksum.
_PROGRESS = struct.Struct(f"<QQ{_MOST}QI")
_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Marked:
    """Work of a process when it ended.

    Args:
        replayed: the record at whose replay it ended; 0: it did not end at one.
        starts: how many starts in a row have ended there.
        carried: the records that were being carried out: no caller had an answer to them.
    """

    replayed: int = 0
    starts: int = 0
    carried: tuple[int, ...] = ()

    def replaying(self, number: int) -> Marked:
        """Return what the next process notes when it is about to replay a record; 0: all are replayed."""
        # The records without an answer stay noted until the state is restored.
        starts = self.starts + 1 if number == self.replayed else 1
        return Marked(number, starts, self.carried) if number else Marked()


class Mark:
    """The mark's file.

    Args:
        path: of the file, which is made if it does not exist.

    Attributes:
        found: the number of the last acknowledged record; None: the file did not exist, or cannot be read.
        marked: what the last process was doing when it ended.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(self._file, 0o600)
            data = os.pread(self._file, _SIZE, 0)
            # Reserve the space now, so that no later write can fail because the disk is full.
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
        self.marked = Marked()
        if len(data) >= _PROGRESS_AT + _PROGRESS.size:
            replayed, starts, *carried, checksum = _PROGRESS.unpack_from(data, _PROGRESS_AT)
            if zlib.crc32(data[_PROGRESS_AT : _PROGRESS_AT + _PROGRESS.size - 4]) == checksum:
                self.marked = Marked(replayed, starts, tuple(each for each in carried if each))

    def set(self, number: int) -> None:
        """Note that a record was acknowledged."""
        self._write(_FORM.pack(_MAGIC, number, number ^ _FULL), 0)

    def note(self, marked: Marked) -> bool:
        """Note what is about to be done, and return whether it is noted; if not, an older note is still there."""
        some = [*marked.carried[:_MOST], *[0] * (_MOST - len(marked.carried))]
        data = _PROGRESS.pack(marked.replayed, marked.starts, *some, 0)[:-4]
        return self._write(data + zlib.crc32(data).to_bytes(4, "little"), _PROGRESS_AT)

    def _write(self, data: bytes, at: int) -> bool:
        with suppress(OSError):  # the records themselves are durable without the mark
            return os.pwrite(self._file, data, at) == len(data)
        return False

    def close(self) -> None:
        if self._file >= 0:
            with suppress(OSError):
                os.fsync(self._file)
            os.close(self._file)
            self._file = -1
