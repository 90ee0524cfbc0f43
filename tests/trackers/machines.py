"""The machines of trackers: where marks are, and what a loss of power leaves of them.

The system writes a file that is not synced back to the disk whenever it likes. So each note is drawn to be what the
disk has, or not, and a loss of power brings back the newest that it has. Locks end with their process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tracker.journal import mark, replicated
from tracker.journal.mark import Mark, Marked

from .schedule import Process, Schedule

_SIZE = 4096  # bytes of a mark's file
_WRITTEN_BACK = 0.1  # the share of notes that reach the disk


class Machines:
    """One machine for all trackers, or one for each place.

    Args:
        schedule: decides who goes on at each note.
        folder: for their files.
        apart: whether each place has a machine of its own.
    """

    def __init__(self, schedule: Schedule, folder: Path, apart: bool) -> None:
        self._schedule = schedule
        self._folder = folder
        self._apart = apart
        self._runs = 1
        self.has_lost_power = False
        self.doze_s = 0.0  #: how long the process sleeps that next notes a command under way
        self.slept_over = 0  #: that command
        self._paths: dict[int, str] = {}  # by each mark's id
        self._marks: list[Mark] = []
        self._on_disk: dict[str, bytes] = {}
        self._locks: dict[str, tuple[Mark, Process]] = {}

    @property
    def marks(self) -> str:
        """The directory of the marks on the machine of the process that asks."""
        return str(self._folder / (self._schedule.process.name if self._apart else "machine"))

    def lose_power(self) -> None:
        """Bring back what the disks have, in another run of the system; all processes have ended."""
        self._runs += 1
        self.has_lost_power = True
        for path, content in self._on_disk.items():
            if os.path.exists(path):
                Path(path).write_bytes(content)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Let marks be those of these machines."""
        opens, notes = Mark.__init__, Mark.note

        def synced(each: Mark) -> None:
            self._on_disk[self._paths[id(each)]] = os.pread(each._file, _SIZE, 0)

        def fsync(file: int) -> None:
            for each in self._marks:
                if each._file == file:
                    synced(each)

        def opened(each: Mark, path: str) -> None:
            opens(each, path)
            self._paths[id(each)] = path
            self._marks.append(each)
            synced(each)

        def noted(each: Mark, marked: Marked) -> bool:
            done = notes(each, marked)
            if self._schedule.is_inside:
                if done and self._schedule.random.random() < _WRITTEN_BACK:
                    synced(each)
                if marked.carried and self.doze_s:
                    self._schedule.process.sleeps_until = self._schedule.now + self.doze_s
                    self.doze_s, self.slept_over = 0.0, marked.carried[0]
                self._schedule.pause(0)
            return done

        def locked(each: Mark) -> bool:
            path = self._paths[id(each)]
            holder, process = self._locks.get(path, (each, self._schedule.process))
            if holder is not each and holder._file >= 0 and not process.killed:
                return False
            self._locks[path] = each, self._schedule.process
            return True

        with pytest.MonkeyPatch.context() as change:
            change.setattr(Mark, "__init__", opened)
            change.setattr(Mark, "note", noted)
            change.setattr(Mark, "try_to_lock", locked)
            change.setattr(mark, "system_run", lambda: self._runs.to_bytes(16, "little"))
            change.setattr(mark, "os", _System(os, fsync))
            change.setattr(replicated, "_machine", cache(replicated._machine))  # each look of a standby asks for it
            try:
                yield
            finally:
                for each in self._marks:
                    with suppress(OSError):
                        if each._file >= 0:
                            os.close(each._file)


class _System:
    """The system's calls, with another sync."""

    def __init__(self, module: Any, fsync: Callable[[int], None]) -> None:
        self._module = module
        self.fsync = fsync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
