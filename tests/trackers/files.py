"""A journal in files under processes that end at any use of a file.

A process that ends leaves all that it had written, and no lock. The threads of a simulation share one real process; so
what one of its processes had open is closed as that ends, with the files unchanged.
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
from typing import Any
from weakref import WeakSet

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
        self._locks: dict[int, Process] = {}  # by their files
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
        self._lost = False
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
        """Close all files."""
        for name in os.listdir("/proc/self/fd"):
            file = f"/proc/self/fd/{name}"
            if os.path.islink(file) and os.readlink(file).startswith(f"{self._base}/"):
                os.close(int(name))
        shutil.rmtree(self._base)

    def _died(self, process: Process) -> None:
        for file in [file for file, holder in self._locks.items() if holder is process]:
            self._close(file)
        for _, connection in [each for each in self._opened if each[0] is process]:
            connection.end()
        self._opened = [each for each in self._opened if each[0] is not process]

    # ---------------------------------------------------------------- uses of files

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Let others go on, and processes end, before and after every use of a file."""
        new = {
            "os": _Module(os, self._paused, close=self._close, fsync=lambda _: None),  # the machine lives
            "fcntl": _Module(fcntl, self._paused, flock=self._flock),
            "sqlite3": _Module(sqlite3, self._paused, connect=self._connect),
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
        self._locks.pop(file, None)

    def _flock(self, file: int, how: int) -> None:
        fcntl.flock(file, how)
        self._locks[file] = self._schedule.process

    def _connect(self, path: Path, **options: Any) -> _Connection:
        connection = sqlite3.connect(path, **{**options, "check_same_thread": False})
        found = _Connection(path.resolve(), connection, self._schedule, self._weather)
        self._opened.append((self._schedule.process, found))
        return found


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
    """A connection to a file whose statements wait.

    Args:
        path: of the file, without links.
        connection: the real one.
        schedule: decides who goes on after each statement.
        weather: draws which transactions fail.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, schedule: Schedule, weather: Weather) -> None:
        self._path = path
        self._connection = connection
        self._schedule = schedule
        self._weather = weather
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql in ("BEGIN IMMEDIATE", "COMMIT") and self._weather.before():
            raise sqlite3.OperationalError("disk I/O error")
        cursor = self._connection.execute(sql.replace("synchronous=FULL", "synchronous=OFF"), *values)
        self._cursors.add(cursor)
        self._schedule.pause(0)
        return cursor

    def close(self) -> None:
        self._connection.close()

    def end(self) -> None:
        """Release the locks, and change nothing: SQLite leaves a file as it is that is not under its name."""
        away = self._path.with_name("away")
        with suppress(FileNotFoundError):
            self._path.rename(away)
        for cursor in [*self._cursors]:
            cursor.close()  # else the file stays open
        self._connection.close()
        with suppress(FileNotFoundError):
            away.rename(self._path)
