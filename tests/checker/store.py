"""The Redis of a cluster, with what may happen to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import redis

from tests.client.processes import Line
from tests.journal.redis_server import RedisServer, replica_of

_DISK: Final = "256m"  # of a file system that is filled
_KEY: Final = "{tracker}"
_LOOK_S: Final = 0.02
_PATIENT_S: Final = 5.0  # for a standby that reads the log
_STEP: Final = 10_000  # bytes less, until it has to remove something
_DATA: Final = "appendonlydir"


class Disk:
    """A small file system, which can be filled.

    Args:
        directory: where it is; what was there is hidden.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(directory)], check=True)

    @staticmethod
    def can_be_had() -> bool:
        """Return whether a file system can be made here."""
        return os.geteuid() == 0

    def fill(self) -> None:
        """Leave no room on the disk."""
        with suppress(OSError), (self._directory / "filler").open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()

    def free(self) -> None:
        """Give the disk room again."""
        (self._directory / "filler").unlink(missing_ok=True)

    def end(self) -> None:
        """Remove the disk."""
        subprocess.run(["umount", "--lazy", str(self._directory)], check=False)


class RedisStore:
    """A Redis that can be killed, filled, and replaced by a replica.

    Args:
        directory: of its data.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._copy = directory / "copy"
        self._count = 0
        self._lines: list[Line] = []
        self._disk: Disk | None = None
        self.server = RedisServer(self._new_directory())
        self._sleeps = 0  # how many faults have put it to sleep
        self.replica: RedisServer | None = None
        self._replication: Line | None = None

    def _new_directory(self) -> Path:
        self._count += 1
        return self._directory / str(self._count)

    def line(self) -> Line:
        """Return a new line to the server."""
        line = Line(f"127.0.0.1:{self.server.port}")
        self._lines.append(line)
        return line

    @property
    def answers(self) -> bool:
        """True if the server runs, and is not asleep."""
        return self.server.is_running and not self._sleeps

    def kill(self) -> None:
        """Kill the server by SIGKILL."""
        self._sleeps = 0
        self.server.kill()

    def sleep(self) -> None:
        """Let the store stand still."""
        self._sleeps += 1
        self.server.freeze()

    def wake(self) -> None:
        """End one sleep."""
        if self._sleeps:
            self._sleeps -= 1
        if self.answers:
            self.server.thaw()

    def holder(self) -> Any:
        """Return the holder of the lease, as the tracker has written it."""
        return self.server.client().get(f"{_KEY}:lease")

    @property
    def awaits_backup(self) -> bool:
        """True if the journal was set aside for a backup that is not in its place yet."""
        return bool(self.server.client().hexists(f"{_KEY}:top", "restoring"))

    def end_lease(self) -> None:
        """End the lease at once, as a jump of this machine's clock does."""
        self.server.client().pexpire(f"{_KEY}:lease", 1)

    # ---------------------------------------------------------------- no room

    def fill(self) -> None:
        """Leave the server no memory."""
        self.server.client().config_set("maxmemory-policy", "noeviction")
        self.server.client().config_set("maxmemory", "1mb")

    def empty(self) -> None:
        """Give the server memory again, if it answers: one that is started again has enough."""
        if self.answers:
            with suppress(redis.RedisError):
                self.server.client().config_set("maxmemory", "0")

    def use_a_small_disk(self) -> None:
        """Move to a small file system of its own; to be called before there is data."""
        self.server.kill()
        directory = self._new_directory()
        self._disk = Disk(directory)
        self.server = RedisServer(directory)
        for line in self._lines:
            line.lead_to(f"127.0.0.1:{self.server.port}")

    def fill_the_disk(self) -> None:
        """Leave the server no room on its disk. A server that syncs each write ends then."""
        assert self._disk is not None
        self._disk.fill()

    def free_the_disk(self) -> None:
        """Give the server room again, and start it if it has ended."""
        assert self._disk is not None
        self._disk.free()
        self.start_again()

    def start_again(self) -> None:
        """Start the server if it has ended."""
        if not self.server.is_running:
            self.kill()  # forgets the process that has ended
            self.server.start()

    # ---------------------------------------------------------------- what is lost

    @property
    def last(self) -> int:
        """The newest record that it has."""
        return self._last(self.server)

    def keep_a_copy(self) -> int:
        """Keep the data as they are now. Return the newest record, which may have come a moment later."""
        self.server.freeze()
        try:
            shutil.rmtree(self._copy, ignore_errors=True)
            shutil.copytree(self.server.directory / _DATA, self._copy)
        finally:
            self.server.thaw()
        return self.last

    def has_been_read(self) -> bool:
        """Wait until a standby has looked at the log again, twice. Return whether it has."""
        looks, until = self._looks(), time.monotonic() + _PATIENT_S
        while self._looks() < looks + 3:
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_S)
        return True

    def _looks(self) -> int:
        return int(self.server.client().info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])

    def lose(self, how: str) -> int:
        """Lose data while nobody is connected. Return how many records are lost.

        Args:
            how: ``older``: it has the copy; ``empty``: it has nothing; ``no log`` or ``no top``: that key is gone;
                ``evicted``: it has removed keys to make room.
        """
        for line in self._lines:
            line.refuses = True
            line.cut()
        had = self.last
        getattr(self, f"_lose_{how.replace(' ', '_')}")()
        client = self.server.client()
        kept = max((int(entry.partition("-")[2]) for entry in client.hkeys(f"{_KEY}:snapshots")), default=0)
        if client.exists(f"{_KEY}:log"):
            kept = self.last or had  # its end can be found again
        for line in self._lines:
            line.refuses = False
        return had - kept

    def _lose_older(self) -> None:
        self.kill()
        shutil.rmtree(self.server.directory / _DATA)
        shutil.copytree(self._copy, self.server.directory / _DATA)
        self.server.start()

    def _lose_empty(self) -> None:
        self.server.client().flushall()

    def _lose_no_log(self) -> None:
        self.server.client().delete(f"{_KEY}:log")

    def _lose_no_top(self) -> None:
        self.server.client().delete(f"{_KEY}:top")

    def _lose_evicted(self) -> None:
        client = self.server.client()
        client.config_set("maxmemory-policy", "allkeys-random")
        room = client.info("memory")["used_memory"]
        while not client.info("stats")["evicted_keys"]:
            room -= _STEP
            client.config_set("maxmemory", room)
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")

    # ---------------------------------------------------------------- replicas

    def add_replica(self) -> None:
        """Start a replica that has caught up."""
        self._replication = Line(f"127.0.0.1:{self.server.port}")
        port = int(self._replication.address.rpartition(":")[2])
        self.replica = replica_of(self.server, self._new_directory(), port)

    def hold_replication(self) -> None:
        """Let the replica lag from now on."""
        assert self._replication is not None
        self._replication.hold()

    def promote(self, waits: bool) -> int:
        """Kill the server and promote the replica. Return how many records the replica lacks.

        Args:
            waits: until the replica has everything.
        """
        replica = self.replica
        assert replica is not None
        assert self._replication is not None
        for line in self._lines:  # what was written before is all that counts
            line.refuses = True
            line.cut()
        self.heal()
        had = self._last(self.server)
        if waits:
            replica.wait_until(lambda: self._last(replica) == had)
        self.kill()
        self._replication.close()
        replica.promote()
        self.server, self.replica, self._replication = replica, None, None
        lost = had - self._last(self.server)
        for line in self._lines:
            line.lead_to(f"127.0.0.1:{self.server.port}")
            line.refuses = False
        return lost

    def _last(self, server: RedisServer) -> int:
        return int(server.client().hget(f"{_KEY}:top", "last") or 0)

    def heal(self) -> None:
        """End all faults of the server."""
        if self._disk is not None:
            self._disk.free()
        self._sleeps = 0
        if self.server.is_running:
            self.server.thaw()
        self.start_again()
        self.empty()

    def end(self) -> None:
        """End the server, and its replica."""
        self.server.kill()
        if self.replica is not None:
            self.replica.kill()
        if self._replication is not None:
            self._replication.close()
        if self._disk is not None:
            self._disk.end()
