"""Stores under a journal that fail before or after a request, are away, and come back older, empty or partly gone.

A request is a point where others may go on, and where its process may end: before it, or when it has had its effect.
Redis is a real server, whose connections are interrupted; its keys' times to live pass with the virtual clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from random import Random
from typing import Any, Protocol

import pytest
import redis
import redis.connection
import redis.utils

from tracker.backup import Checked, Draft
from tracker.journal.interface import FollowableJournal, Journal
from tracker.journal.objects.journal import ObjectsJournal
from tracker.journal.objects.log import LOSS
from tracker.journal.redis import RedisAddress, RedisJournal
from tracker.server import backups
from tracker.server.backups import Restored
from tracker.store import NoAnswerError

from .machines import Machines
from .schedule import Process, Schedule

LEASE_S = 2.0
_WRITES = re.compile(rb"\r\n(EVAL|EVALSHA|SET|DEL|HSET|HDEL|XADD|XDEL|XTRIM|SADD|SREM|RENAME)\r\n")
_STOP_TIME = """
local lefts = {}
for i, key in ipairs(KEYS) do
    lefts[i] = redis.call('PTTL', key)
    if lefts[i] > 0 then redis.call('PERSIST', key) end
end
return lefts
"""
_OUTSIDE = "outside"  # the name of connections that are not the trackers'


class Store(Protocol):
    """A store of a journal."""

    alone: bool  #: whether it comes back older, or loses something, only while no tracker uses it
    machines: Machines

    @property
    def cut_off(self) -> Container[Process]:
        """The processes that reach only what it was once."""

    def journal(self) -> Journal:
        """Open the journal as a standby does."""

    def copy(self) -> Any:
        """Return all that is kept."""

    def put_back(self, copy: Any) -> None:
        """Keep what a copy has, and nothing else."""

    def lose(self, random: Random, end: bool) -> str:
        """Lose one thing, and return its name; empty: there is none.

        Args:
            end: lose the newest records.
        """

    def has_note(self) -> bool:
        """Return whether a loss is written down."""

    def restore(self, backup: Checked) -> Restored:
        """Let the journal continue with a backup."""

    def read(self) -> Checked:
        """Return what is in a journal that no tracker uses."""


def made(draft: Draft) -> bytes:
    """Return a backup's bytes."""
    draft.seal()
    return b"".join(draft.parts())


class Weather:
    """The drawn fates of requests.

    Args:
        schedule: decides who goes on meanwhile.
        faults: the share of requests that fail.
    """

    def __init__(self, schedule: Schedule, faults: float) -> None:
        self._schedule = schedule
        self.faults = faults
        self.away_until = 0.0

    def before(self) -> str:
        """Wait for the request's turn, and return its fate: "", "lost" or "unanswered"."""
        self._schedule.pause(self._schedule.random.choice((0, 0, 0, 0.001, 0.01)))
        if self._schedule.now < self.away_until:
            return "lost"
        drawn = self._schedule.random.random()
        return "lost" if drawn < self.faults / 2 else "unanswered" if drawn < self.faults else ""

    def after(self) -> None:
        """Wait for the answer."""
        self._schedule.pause(0)


class Objects:
    """An object store in memory."""

    alone = False
    cut_off = frozenset[Process]()

    def __init__(self, schedule: Schedule, weather: Weather, machines: Machines) -> None:
        self._schedule = schedule
        self._weather = weather
        self.machines = machines
        self._objects: dict[str, bytes] = {}

    def journal(self) -> FollowableJournal:
        return ObjectsJournal(self, "objects", LEASE_S, self.machines.marks, True, lambda: self._schedule.now)

    def copy(self) -> Any:
        return dict(self._objects)

    def put_back(self, copy: Any) -> None:
        self._objects = dict(copy)

    def lose(self, random: Random, end: bool) -> str:  # what follows on a missing object is lost, too
        names = sorted(name for name in self._objects if name.startswith("log/"))[-40 if end else -4 :]
        name = random.choice(names) if names else ""
        self._objects.pop(name, None)
        return name

    def has_note(self) -> bool:
        return LOSS in self._objects

    def restore(self, backup: Checked) -> Restored:
        with self.named():
            return backups.restore("objects", backup, replace=True)

    def read(self) -> Checked:
        with self.named():
            return Checked([made(backups.of_journal("objects"))], "journal")

    @contextmanager
    def named(self) -> Iterator[None]:
        """Let the operator's commands find the journal."""

        def opened(_: str, must_exist: bool = False, restoring: bool = False) -> ObjectsJournal:
            return ObjectsJournal(
                self, "objects", LEASE_S, self.machines.marks, clock=lambda: self._schedule.now, restoring=restoring
            )

        def set_aside(where: str) -> str:
            with closing(opened(where, restoring=True)) as journal:
                return journal.move_aside()

        with pytest.MonkeyPatch.context() as change:
            change.setattr(backups, "open_journal", opened)
            change.setattr(backups, "set_journal_aside", set_aside)
            yield

    def _ask(self, request: Callable[[], Any]) -> Any:
        fate = self._weather.before()
        if fate == "lost":
            raise NoAnswerError("the request was lost")
        answer = request()
        self._weather.after()
        if fate:
            raise NoAnswerError("the answer was lost")
        return answer

    def create(self, name: str, data: bytes) -> bool:
        def create() -> bool:
            if name in self._objects:
                return False
            self._objects[name] = bytes(data)
            return True

        return bool(self._ask(create))

    def put(self, name: str, data: bytes) -> None:
        self._ask(lambda: self._objects.__setitem__(name, bytes(data)))

    def get(self, name: str, first: int | None = None, soon: bool = False) -> bytes | None:
        found: bytes | None = self._ask(lambda: self._objects.get(name))
        return found if found is None else found[:first]

    def names(self, folder: str, after: str = "") -> Sequence[str]:
        found: list[str] = self._ask(
            lambda: sorted(name for name in self._objects if name.startswith(f"{folder}/") and name > after)
        )
        return found

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._ask(lambda name=name: self._objects.pop(name, None))  # type: ignore[misc]


class Redis:
    """Keys on a real server, under a prefix of their own.

    Args:
        port: the server's.
        prefix: of the keys.
        schedule: its time passes for the keys.
        weather: draws what fails.
        machines: of the trackers.
    """

    alone = False

    def __init__(self, port: int, prefix: str, schedule: Schedule, weather: Weather, machines: Machines) -> None:
        self.machines = machines
        self._where = f"redis://127.0.0.1:{port}/0?prefix={prefix}&lease={LEASE_S}&durability=memory"
        self._base = f"{{{prefix}}}:"
        self._client: Any = redis.Redis(port=port, client_name=_OUTSIDE)
        self._clock: Any = redis.Connection(port=port, client_name=_OUTSIDE)  # asked so often that a client is too slow
        self._client.script_flush()  # else a seed would depend on what was played before
        self._schedule = schedule
        self._weather = weather
        self._ends: dict[str, float] = {}
        self._cut_off: dict[Process, float] = {}  # processes that reach only a demoted master, and until when
        schedule.passed = self._pass

    @property
    def where(self) -> str:
        """The address, for the process that asks."""
        return f"{self._where}&marks={self.machines.marks}"

    def journal(self) -> FollowableJournal:
        return RedisJournal(RedisAddress.parse(self.where), follow=True)

    def copy(self) -> Any:
        passing = {f"{self._base}lease", f"{self._base}standby"}
        return {name: self._client.dump(name) for name in self._names() if name not in passing}

    def put_back(self, copy: Any) -> None:
        self.clear()
        for name, content in copy.items():
            self._client.restore(name, 0, content)

    def lose(self, random: Random, end: bool) -> str:
        name = "end" if end else random.choice(("log", "log", "top", "end"))
        if name != "end":
            return name if self._client.delete(self._base + name) else ""
        log = f"{self._base}log"
        *lost, last = [entry for entry, _ in self._client.xrevrange(log, count=random.randint(2, 40))] or [b"0-0"]
        if lost:
            self._client.xdel(log, *lost)
            self._client.execute_command("XSETID", log, last)  # as a log of an earlier time has it
        return name if lost else ""

    def has_note(self) -> bool:
        return bool(self._client.hexists(f"{self._base}top", "lost"))

    def restore(self, backup: Checked) -> Restored:
        return backups.restore(self.where, backup, replace=True)

    def read(self) -> Checked:
        return Checked([made(backups.of_journal(self.where))], "journal")

    def demote(self, process: Process, seconds: float) -> None:
        """Let a process reach only a master that is one no longer, as it was when it was demoted."""
        if self.cut_off:
            return
        for name in self._names():
            self._client.copy(name, name, destination_db=1, replace=True)
        self._cut_off[process] = self._schedule.now + seconds

    @property
    def cut_off(self) -> frozenset[Process]:
        return frozenset(process for process, until in self._cut_off.items() if self._schedule.now < until)

    def _database(self) -> int:
        """Return where the keys are for the process that asks."""
        return int(self._schedule.process in self.cut_off)

    def clear(self) -> None:
        """Remove all keys."""
        self._ends.clear()
        if names := self._names():
            self._client.delete(*names)

    def close(self) -> None:
        """Remove all keys, and disconnect."""
        self.clear()
        self._client.execute_command("SELECT", 1)
        self.clear()
        self._client.close()
        self._clock.disconnect()

    def _names(self) -> list[str]:
        pattern = self._base.replace("[", "\\[") + "*"
        return sorted(name.decode() for name in self._client.keys(pattern))

    def _pass(self, seconds: float) -> None:
        for name, end in [*self._ends.items()]:
            if end <= self._schedule.now + seconds:
                del self._ends[name]
                self._client.delete(name)

    def _renewed(self) -> None:
        """Let a key's time to live pass on the virtual clock."""
        names = [f"{self._base}lease", f"{self._base}standby"]
        self._clock.send_command("EVAL", _STOP_TIME, 2, *names)
        for name, left in zip(names, self._clock.read_response(), strict=True):
            if left > 0:
                self._ends[name] = self._schedule.now + LEASE_S
            elif left == -2:
                self._ends.pop(name, None)

    @contextmanager
    def interrupted(self) -> Iterator[None]:
        """Let the weather meet every request of a thread of the simulation."""
        kind = redis.connection.AbstractConnection
        send, read = kind.send_packed_command, kind.read_response
        store = self

        def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
            if self.client_name == _OUTSIDE or not store._schedule.is_inside:
                return send(self, command, check_health)
            self.fate = store._weather.before()
            if self.fate == "lost":
                self.disconnect()
                raise redis.ConnectionError("the request was lost")
            data = b"".join(command) if isinstance(command, list) else bytes(command)
            if (database := store._database()) and _WRITES.search(data):
                raise redis.ReadOnlyError("READONLY You can't write against a read only replica.")
            self.asks_role = bool(database) and b"ROLE" in data
            if not self._sock:
                self.database = 0
            if database != getattr(self, "database", 0):
                self.connect()
                send(self, self.pack_command("SELECT", database), check_health=False)
                read(self)
                self.database = database
            self.leases = b":lease" in data
            return send(self, command, check_health)

        def read_response(self: Any, *arguments: Any, **options: Any) -> Any:
            if self.client_name == _OUTSIDE or not store._schedule.is_inside:
                return read(self, *arguments, **options)
            try:
                answer = read(self, *arguments, **options)
                if getattr(self, "asks_role", False):
                    self.asks_role = False
                    return [b"slave"]
                return answer
            finally:
                if getattr(self, "leases", False):
                    self.leases = False
                    store._renewed()
                store._weather.after()
                if getattr(self, "fate", ""):
                    self.fate = ""
                    self.disconnect()
                    raise redis.ConnectionError("the answer was lost")

        with pytest.MonkeyPatch.context() as change:
            change.setattr(kind, "send_packed_command", send_packed_command)
            change.setattr(kind, "read_response", read_response)
            # Each new client asks for it, and reads a package's files.
            change.setattr(redis.utils, "get_lib_version", lambda: redis.__version__)
            yield
