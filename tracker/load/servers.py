"""The tracker under test: one at an address, or one that the test starts, measures, kills and starts again."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracker.load import processes


@dataclass(frozen=True, slots=True)
class Use:
    """Resource use of a server."""

    memory: int  #: bytes
    disk: int  #: bytes of its journal and of all files beside it
    processor_seconds: float
    waiting_seconds: float  #: seconds in which it had work to do and no processor was free


class Target(Protocol):
    """A tracker to which the test sends traffic."""

    address: str

    def use(self) -> Use | None:
        """Return what it uses now; None if the test has not started it."""

    def restart(self) -> None:
        """Kill it and starts it again, on the same journal and address."""


class ServerFailedError(Exception):
    """The tracker could not start, or has ended by itself."""


class Remote:
    """A tracker that the test has not started.

    Args:
        address: `host:port`.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def use(self) -> None:
        return None

    def restart(self) -> None:
        raise NotImplementedError(f"this test has not started the tracker at {self.address}, so it cannot restart it")


class Started:
    """A tracker that runs only for this load test, made by `started`."""

    def __init__(self, journal: str, log: Path) -> None:
        self._journal = journal
        self._log = log
        self._used = self._waited = 0.0  # of its processes that were killed
        self.address = "127.0.0.1:0"
        self._process = self._start()

    def use(self) -> Use:
        """Return what it uses now.

        Raises:
            ServerFailedError: it has ended by itself.
        """
        if self._process.poll() is not None:
            raise ServerFailedError(f"the tracker has ended: {self._log.read_text()}")
        pid = self._process.pid
        return Use(
            memory=processes.memory(pid),
            disk=self._disk(),
            processor_seconds=self._used + processes.processor_seconds(pid),
            waiting_seconds=self._waited + processes.waiting_seconds(pid),
        )

    def restart(self) -> None:
        self._used += processes.processor_seconds(self._process.pid)
        self._waited += processes.waiting_seconds(self._process.pid)
        self._end(signal.SIGKILL)
        self._process = self._start()

    def stop(self) -> None:
        """Stop it for good."""
        self._end(signal.SIGTERM)

    def _start(self) -> subprocess.Popen[str]:
        command = ["tracker.cli.main", "serve", "--listen", self.address, "--journal", self._journal]
        with self._log.open("a") as log:
            # In a session of its own, so that Ctrl-C reaches only the load test, which then stops the tracker.
            process = subprocess.Popen(
                [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            process.wait()
            raise ServerFailedError(f"the tracker has not started: {self._log.read_text()}")
        self.address = line.split()[-1]
        return process

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.communicate()

    def _disk(self) -> int:
        kind, _, path = self._journal.partition(":")
        if kind == "memory":
            return 0
        journal = Path(path)
        total = 0
        for file in journal.parent.glob(f"{journal.name}*"):
            try:
                total += file.stat().st_blocks * 512
            except FileNotFoundError:  # a snapshot was just replaced
                continue
        return total


@contextmanager
def started(journal: str) -> Iterator[Started]:
    """Start a tracker, which is stopped when the context ends.

    Args:
        journal: ``memory``, ``sqlite`` (in a directory that is removed at the end) or ``sqlite:PATH``.

    Raises:
        ServerFailedError: the tracker could not start.
    """
    with tempfile.TemporaryDirectory(prefix="tracker-load-") as directory:
        place = f"sqlite:{directory}/tracker.db" if journal == "sqlite" else journal
        server = Started(place, Path(directory) / "tracker.log")
        try:
            yield server
        finally:
            server.stop()
