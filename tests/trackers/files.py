"""A journal in files under processes that end at any use of a file.

A process that ends leaves all that it had written. The threads of a simulation share one real process, which keeps the
locks of those that have ended; so the next one finds a copy of the files under the same path.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from tracker.backup import Checked
from tracker.journal.sqlite import SqliteJournal
from tracker.server import backups
from tracker.server.backups import Restored

from .machines import Machines
from .schedule import Process, Schedule
from .stores import Weather, made

_SLOW = 0.1  # the share of uses of files that take time, in which others go on, and processes end
_NOT_THERE = "-lock"  # of whom no copy is made: a process has it, and no other one


class Sqlite:
    """A journal in an SQLite file.

    Args:
        base: a directory of its own.
        schedule: decides who goes on at each use of a file.
        weather: draws which transactions fail.
    """

    alone = True
    cut_off = frozenset[Process]()

    def __init__(self, base: Path, schedule: Schedule, weather: Weather) -> None:
        self._base = base
        self._schedule = schedule
        self._weather = weather
        self.machines = Machines(schedule, base, apart=False)
        self._count = 0
        self._lost = False
        self._owner: tuple[Process, int] | None = None
        self._kept: list[sqlite3.Connection] = []  # of those that must not be closed before their process ends
        self._opened: list[tuple[Process, _Connection]] = []
        (base / "0").mkdir(parents=True)
        self._now = base / "now"
        self._now.symlink_to("0")
        self.where = f"sqlite:{self._now / 'tracker.db'}"
        schedule.died = self._died

    def journal(self) -> SqliteJournal:
        return SqliteJournal(self._now / "tracker.db")

    def copy(self) -> Any:
        return {file.name: file.read_bytes() for file in self._now.iterdir() if not file.name.endswith(_NOT_THERE)}

    def put_back(self, copy: Any) -> None:
        self._owner, self._lost = None, False
        self._count += 1
        place = self._base / str(self._count)
        place.mkdir()
        for name, content in copy.items():
            (place / name).write_bytes(content)
        (self._base / "next").symlink_to(place.name)
        os.replace(self._base / "next", self._now)

    def lose(self, random: Random, end: bool) -> str:
        files = self.copy()
        name = "end" if end else random.choice(("tracker.db", "tracker.db-wal", "tracker.db-mark", "end"))
        if name != "tracker.db-mark" and self.machines.has_lost_power:
            return ""  # the mark may be older than what is lost, and nobody else could tell
        if name != "end" and files.pop(name, None) is None:
            return ""
        self.put_back(files)
        if name == "end" and not self._lose_end(random):
            return ""
        self._lost = True
        return name

    def _lose_end(self, random: Random) -> bool:
        """Lose the newest records, and nothing else, if there are any."""
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._now / "tracker.db")) as log, log:
            groups = [first for (first,) in log.execute("SELECT first FROM log ORDER BY first")]
            if groups:
                log.execute("DELETE FROM log WHERE first >= ?", [random.choice(groups[-40:])])
                return True
        return False

    def has_note(self) -> bool:
        return self._lost  # the files that are left tell

    def restore(self, backup: Checked) -> Restored:
        return backups.restore(self.where, backup, replace=True)

    def read(self) -> Checked:
        return Checked([made(backups.of_journal(self.where))], "journal")

    def close(self) -> None:
        """Give back what those that have ended had open."""
        for _, connection in self._opened:
            connection.close()
        for name in os.listdir("/proc/self/fd"):
            file = f"/proc/self/fd/{name}"
            if os.path.islink(file) and os.readlink(file).startswith(f"{self._base}/"):
                os.close(int(name))
        shutil.rmtree(self._base)

    def _died(self, process: Process) -> None:
        opened = any(each is process and not connection.closed for each, connection in self._opened)
        if self._kept or opened if self._owner is None else self._owner[0] is process:
            self._kept.clear()
            lost = self._lost
            self.put_back(self.copy())
            self._lost = lost

    # ---------------------------------------------------------------- uses of files

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Let others go on, and processes end, before and after every use of a file."""
        new = {
            "os": _Module(os, self._paused, close=self._close, fsync=lambda _: None),  # the machine lives
            "fcntl": _Module(fcntl, self._paused, flock=self._flock),
            "sqlite3": _Module(sqlite3, self._paused, connect=self._connect),
            "ctypes": SimpleNamespace(py_object=self._kept.append, pythonapi=SimpleNamespace(Py_IncRef=lambda _: None)),
        }
        places = [
            (module, name)
            for path, module in [*sys.modules.items()]
            for name in new
            if path.startswith("tracker.journal.") and hasattr(module, name)
        ]
        before = [(module, name, getattr(module, name)) for module, name in places]
        for module, name in places:
            setattr(module, name, new[name])
        try:
            yield
        finally:
            for module, name, old in before:
                setattr(module, name, old)

    def _paused(self, use: Callable[..., Any]) -> Callable[..., Any]:
        def used(*arguments: Any, **options: Any) -> Any:
            if not self._schedule.is_inside:
                return use(*arguments, **options)
            self._schedule.pause(0.01 if self._schedule.random.random() < _SLOW else 0)
            result = use(*arguments, **options)
            self._schedule.pause(0)
            return result

        return used

    def _close(self, file: int) -> None:
        os.close(file)
        if self._owner is not None and self._owner[1] == file:
            self._owner = None

    def _flock(self, file: int, how: int) -> None:
        fcntl.flock(file, how)
        self._owner = (self._schedule.process, file)

    def _connect(self, *arguments: Any, **options: Any) -> _Connection:
        connection = sqlite3.connect(*arguments, **{**options, "check_same_thread": False})
        found = _Connection(connection, self._execute(connection))
        self._opened.append((self._schedule.process, found))
        return found

    def _execute(self, connection: sqlite3.Connection) -> Callable[..., Any]:
        def execute(sql: str, *values: Any) -> Any:
            if sql in ("BEGIN IMMEDIATE", "COMMIT") and self._weather.before():
                raise sqlite3.OperationalError("disk I/O error")
            result = connection.execute(sql.replace("synchronous=FULL", "synchronous=OFF"), *values)
            self._schedule.pause(0)
            return result

        return execute


class _Module:
    """A module whose functions wait.

    Args:
        module: the real one.
        paused: makes a function wait.
        functions: that are others.
    """

    def __init__(self, module: Any, paused: Callable[[Callable[..., Any]], Callable[..., Any]], **functions: Any):
        self._module = module
        self._paused = paused
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        found = self._functions.get(name) or getattr(self._module, name)
        waits = callable(found) and not isinstance(found, type) and name not in ("fspath", "getpid")
        return self._paused(found) if waits else found


class _Connection:
    """A connection to a file whose statements wait."""

    def __init__(self, connection: sqlite3.Connection, execute: Callable[..., Any]) -> None:
        self._connection = connection
        self.execute = execute
        self.closed = False

    def close(self) -> None:
        self._connection.close()
        self.closed = True
