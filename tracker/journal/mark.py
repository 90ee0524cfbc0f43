"""Marks: files that name the last acknowledged record, and the commands that are being carried out.

A log without its tail looks like a shorter log; only a number that is stored elsewhere can reveal the loss. And a
command that ends the process when it is carried out would end it again at each recovery; a mark names the command
it was. An answer leaves once no mark names its command.

Writing a mark costs one system call, which returns when the mark is written, and the mark survives the process. It is
not synced, so after a crash of the machine it may be older than what was answered: its number may be too low, but never
too high, and no command counts that it names. So a mark has the name of the system's run that had it.

A journal that several machines reach has such files, too, on each machine (`Marks`): a note in the store would have to
be taken back, and that confirmed, before each answer, or a line that breaks at that moment would leave it there.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import struct
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("tracker.journal")

_MAGIC = b"trkmark1"
_FORM = struct.Struct("<8sQQ")  # magic, number, its complement
_FULL = 2**64 - 1
_PROGRESS_AT = 64
_MOST = 30  # the most commands under way that are noted
# The record that is being replayed, how many starts have come to it, the records being carried out, the system's run, a
# checksum.
_PROGRESS = struct.Struct(f"<QQ{_MOST}Q16sI")
_SIZE = 4096


def system_run() -> bytes:
    """Return what identifies a run of this machine's system; empty: that cannot be found out."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return b""


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
        found: the number of the last acknowledged record; None: the file did not exist, or cannot be read, and none was
            set since.
        marked: what the last process was doing when it ended, in this run of the system.
    """

    def __init__(self, path: str) -> None:
        self._run = system_run().ljust(16, b"\0")
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
            replayed, starts, *carried, run, checksum = _PROGRESS.unpack_from(data, _PROGRESS_AT)
            if zlib.crc32(data[_PROGRESS_AT : _PROGRESS_AT + _PROGRESS.size - 4]) == checksum:
                counts = run == self._run != bytes(16)
                self.marked = Marked(replayed, starts, tuple(each for each in carried if each and counts))

    def set(self, number: int) -> None:
        """Note that a record was acknowledged."""
        self._write(_FORM.pack(_MAGIC, number, number ^ _FULL), 0)
        if self.found is None:  # a loss of power must not leave a mark that cannot be read beside records
            self.found = number
            with suppress(OSError):
                os.fsync(self._file)

    def note(self, marked: Marked) -> bool:
        """Note what is about to be done, and return whether it is noted; if not, an older note is still there."""
        some = [*marked.carried[:_MOST], *[0] * (_MOST - len(marked.carried))]
        data = _PROGRESS.pack(marked.replayed, marked.starts, *some, self._run, 0)[:-4]
        return self._write(data + zlib.crc32(data).to_bytes(4, "little"), _PROGRESS_AT)

    def try_to_lock(self) -> bool:
        """Lock the file until it is closed, or the process ends; return whether nobody else has locked it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

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


class Marks:
    """The marks of a journal that several machines reach, on this machine.

    They help the next tracker that starts here. A file's name has the writer whose commands it names: once another
    machine's leader has written, they are not found any more. A writer locks its file while it lives; as long as it
    does, it may still answer, so none of its commands counts as unanswered.

    Args:
        folder: where the files are; empty: below the system's directory for temporary files.
        where: the address, by which files of several journals in one folder are told apart.

    Attributes:
        found: what the last leader's process on this machine has noted.
    """

    def __init__(self, folder: str, where: str) -> None:
        self._folder = folder
        self._journal = _digest(where)
        self._mark: Mark | None = None
        self.found = Marked()

    def read(self, writer: str) -> None:
        """Read the notes about a writer's commands, and continue them.

        Args:
            writer: of the log's newest group.
        """
        self._open(writer)
        if self._mark is not None:
            self.found = self._mark.marked if self._mark.try_to_lock() else Marked()

    def begin(self, writer: str) -> None:
        """Note what this process does, from its first group on; the notes of all others are past."""
        self._open(writer)
        if self._mark is not None:
            self._mark.try_to_lock()
        with suppress(OSError):
            for past in Path(self._folder).glob(f"{self._journal}-*"):
                if past.name != self._name_of(writer):
                    past.unlink()

    def note(self, marked: Marked) -> bool:
        """Note what is about to be done, and return whether it is noted; if not, an older note is still there."""
        return self._mark is None or self._mark.note(marked)

    def close(self) -> None:
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    def _open(self, writer: str) -> None:
        self.close()
        try:
            self._folder = self._folder or f"{tempfile.gettempdir()}/substream-tracker-{os.getuid()}"
            folder = Path(self._folder)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid():
                raise PermissionError(f"{folder} belongs to another user")
            self._mark = Mark(str(folder / self._name_of(writer)))
        except OSError as error:
            log.warning(
                "commands under way cannot be noted (%s): one that ends the process has to be left out by hand; give "
                "a directory with ?marks=DIRECTORY",
                error,
            )

    def _name_of(self, writer: str) -> str:
        return f"{self._journal}-{_digest(writer)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
