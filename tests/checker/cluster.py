"""The cluster under test: two trackers with one journal, each behind lines of its own, and the Redis they write to."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import redis

from tests.checker.history import History
from tests.checker.store import Disk, RedisStore
from tests.checker.weather import RECOVERING, Weather
from tests.client.processes import Line, Server
from tracker.client import TrackerClient, TrackerUnavailable

PLACES: Final = 2
_LOOK_S: Final = 0.1
_PATIENT_S: Final = 120.0
_STOPS_S: Final = 10.0  # for a leader that hands over
_LOSS: Final = "--accept-loss"  # in the message of a tracker that does not start because records are lost


class Place:
    """The place of a tracker: it is started again whenever it has ended, as a service manager does it.

    Args:
        number: of the place.
        directory: of its logs.
        journal: the journal's address, as seen from there.
        wire: the line to the journal; None: there is none.
        lines: how many lines of clients lead to it.
        plant: a fault to plant; empty: none.
    """

    def __init__(self, number: int, directory: Path, journal: str, wire: Line | None, lines: int, plant: str) -> None:
        directory.mkdir(parents=True)
        self.number = number
        self.wire = wire
        self.weather = Weather(directory / "weather")
        self.is_down = False  #: it is not to be started
        self.sleeps = 0  #: how many faults have put it to sleep
        self.starts = 0
        self._read = 0  # of its log
        self.weather.set()
        launcher = [sys.executable, "-m", "tests.checker.launcher", f"--weather={directory / 'weather'}"]
        program = [*launcher, f"--plant={plant}", "--"]
        self.server = Server(directory, journal, "--standby", waits=None, program=[*program, "serve"])
        self.lines = [Line(self.server.address) for _ in range(lines)]

    @property
    def process(self) -> str:
        """The process that runs now, as PLACE.START; a leader that has handed over begins again."""
        return f"{self.number}.{self.starts}"

    @property
    def stands_by(self) -> bool:
        """True if the tracker runs and waits for the other one's end."""
        words = self.last_words
        return self.server.is_running and "standing by" in words and "msg=serving" not in words

    @property
    def recovers(self) -> bool:
        """True if the tracker has got the journal, and does not serve yet."""
        words = self.last_words
        return self.server.is_running and RECOVERING in words and "msg=serving" not in words

    def restart(self, *more: str) -> None:
        """Start the tracker again."""
        self._read = len(self.server.log)
        self.starts += 1
        self.server.start(waits=True, more=more)

    def begins_again(self) -> None:
        """Wait until the tracker has given the journal back: it stands by then, and answers in another term."""
        until = time.monotonic() + _STOPS_S
        while "msg=stopped" not in self.last_words:
            if time.monotonic() > until or not self.server.is_running:
                return
            time.sleep(_LOOK_S)
        self._read = len(self.server.log)
        self.starts += 1

    @property
    def last_words(self) -> str:
        """The log since the last start."""
        return self.server.log[self._read :]


class Cluster:
    """Two trackers with one journal.

    Args:
        directory: of logs and data.
        kind: of the journal: ``redis``, ``sqlite`` or ``objects``, which are files of a directory.
        groups: how many groups of clients there are.
        history: notes what happens to processes.
        plant: a fault to plant in the trackers; empty: none.
        options: of the journal's address, unless it is a file of SQLite.
    """

    def __init__(
        self, directory: Path, kind: str, groups: int, history: History, plant: str = "", options: str = ""
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.kind = kind
        self.accepts_loss = False  #: whether the operator accepts a loss that keeps trackers from starting
        self._history = history
        self._ends = threading.Event()
        self.store = RedisStore(directory / "redis") if kind == "redis" else None
        self.data = directory.absolute() / "data"  #: where the journal's files are, unless it is in Redis
        self.data.mkdir()
        self._disk: Disk | None = None
        self._options = options
        self.places: list[Place] = []
        for number in range(PLACES):
            wire = None if self.store is None else self.store.line()
            where = self.journal if wire is None else self._redis(wire.address)
            self.places.append(Place(number, directory / str(number), where, wire, 2 * groups, plant))
        self._lock = threading.RLock()
        self._managing = threading.Thread(target=self._manage, name="service manager", daemon=True)

    @property
    def journal(self) -> str:
        """The journal's address, past all lines."""
        if self.store is not None:
            return self._redis(f"127.0.0.1:{self.store.server.port}")
        objects = f"file://{self.data}/objects?marks={self.data.parent}/marks&{self._options}"
        return objects if self.kind == "objects" else f"sqlite:{self.data / 'tracker.db'}"

    def _redis(self, address: str) -> str:
        return f"redis://{address}/0?{self._options}"

    @property
    def awaits_backup(self) -> bool:
        """True if the journal was set aside for a backup that is not in its place yet."""
        return (self.data / "tracker.db-restoring").exists() if self.store is None else self.store.awaits_backup

    def start(self) -> None:
        """Start the trackers; one of them leads."""
        for place in self.places:
            place.restart()
        self._managing.start()

    def addresses(self, group: int) -> tuple[str, str]:
        """Return the tracker's addresses for those who report in a group, and for those who read, in another order."""
        to_report = [place.lines[2 * group].address for place in self.places]
        to_read = [place.lines[2 * group + 1].address for place in reversed(self.places)]
        return "+".join(to_report), "+".join(to_read)

    @property
    def direct(self) -> str:
        """The tracker's addresses, past all lines."""
        return "+".join(place.server.address for place in self.places)

    def process(self, address: str) -> str:
        """Return the process that listens behind an address now; empty: none that is known."""
        for place in self.places:
            if any(line.address == address for line in place.lines):
                return place.process
        return ""

    def wait_until_it_serves(self) -> None:
        """Wait until the tracker answers."""
        with TrackerClient(self.direct, timeout=2, retry_for=_PATIENT_S) as client:
            client.server_info()

    # ---------------------------------------------------------------- who is who

    def leader(self) -> Place | None:
        """Return the leader's place; None: nowhere, or it cannot be found out."""
        if self.store is None or not self.store.answers:
            return next((place for place in self.places if self._serves(place)), None)
        with suppress(redis.RedisError, ValueError, TypeError):
            pid = json.loads(self.store.holder())["pid"]
            return next((place for place in self.places if place.server.is_running and place.server.pid == pid), None)
        return None

    def place(self, target: str) -> Place:
        """Return the place that a fault is meant for: ``leader``, ``standby`` or a number."""
        if target.isdecimal():
            return self.places[int(target)]
        leader = self.leader() or self.places[0]
        return leader if target == "leader" else self.places[1 - leader.number]

    def _serves(self, place: Place) -> bool:
        with (
            suppress(TrackerUnavailable),
            TrackerClient(place.server.address, timeout=_LOOK_S, retry_for=0) as client,
        ):
            return client.server_info().leader
        return False

    # ---------------------------------------------------------------- the disk

    def use_a_small_disk(self) -> None:
        """Move the journal to a small file system of its own; to be called before there is data."""
        if self.store is not None:
            self.store.use_a_small_disk()
        else:
            self._disk = Disk(self.data)

    def fill_the_disk(self) -> None:
        """Leave no room on the journal's disk."""
        if self.store is not None:
            self.store.fill_the_disk()
        elif self._disk is not None:
            self._disk.fill()

    def free_the_disk(self) -> None:
        """Give the journal's disk room again."""
        if self.store is not None:
            self.store.free_the_disk()
        elif self._disk is not None:
            self._disk.free()

    # ---------------------------------------------------------------- starting and ending

    def down(self, place: Place, work: Callable[[], None]) -> None:
        """End a tracker for a while.

        Args:
            place: where it runs.
            work: ends it.
        """
        with self._lock:
            place.is_down = True
            place.sleeps = 0
            work()

    def up(self, place: Place) -> None:
        """Let a tracker be started again."""
        with self._lock:
            place.is_down = False

    def _manage(self) -> None:
        while not self._ends.wait(_LOOK_S):
            with self._lock:
                for place in self.places:
                    if not place.is_down and not place.server.is_running and not self._ends.is_set():
                        self._start(place)

    def _start(self, place: Place) -> None:
        accepted = self.accepts_loss and _LOSS in place.last_words
        asked = {"fault": "restart", "place": place.number, "accepts_loss": accepted}
        self._history.note("manager", "fault", "", asked, last=place.last_words[-300:])
        if accepted:
            place.restart(_LOSS)
        else:
            place.restart()

    def restart_all(self) -> None:
        """Kill both trackers, and wait until one has read the journal again."""
        with self._lock:
            for place in self.places:
                place.server.kill()
            for place in self.places:
                place.restart()
        self.wait_until_it_serves()

    def heal(self) -> None:
        """End all faults of lines, processes and clocks; those of Redis are `RedisStore`'s."""
        for place in self.places:
            for line in [*place.lines, *([place.wire] if place.wire else [])]:
                line.refuses, line.delay = False, 0.0
                line.release()
            place.weather.set()
            with self._lock:
                if place.server.is_running:
                    place.server.thaw()
                place.is_down, place.sleeps = False, 0
        if self.store is not None:
            self.store.heal()
        elif self._disk is not None:
            self._disk.free()

    def end(self) -> None:
        """End everything."""
        self._ends.set()
        if self._managing.is_alive():
            self._managing.join()
        for place in self.places:
            place.server.kill()
            for line in [*place.lines, *([place.wire] if place.wire else [])]:
                line.close()
        if self.store is not None:
            self.store.end()
        elif self._disk is not None:
            self._disk.end()
