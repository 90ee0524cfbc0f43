"""The tracker that is driven: one at an address, or one that is started here, watched, killed and started again."""

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

from tracker.load import procfs


@dataclass(frozen=True, slots=True)
class Use:
    """What a server uses."""

    memory: int  #: bytes
    disk: int  #: bytes, of its journal and all that stands beside it
    processor_seconds: float
    waiting_seconds: float  #: in which it had work to do and no processor was free


class Target(Protocol):
    """A tracker to send traffic to."""

    address: str

    def use(self) -> Use | None:
        """What it uses now; None: nobody here can say."""

    def restart(self) -> None:
        """Kills it and starts it again, on the same journal and address."""


class ServerFailedError(Exception):
    """The tracker that was started here could not start, or has ended."""


class Remote:
    """A tracker that somebody else runs."""

    def __init__(self, address: str) -> None:
        self.address = address

    def use(self) -> None:
        return None

    def restart(self) -> None:
        raise NotImplementedError(f"the tracker at {self.address} is somebody else's: start one to kill it")


class Started:
    """A tracker that runs for this load test alone: made by `started`."""

    def __init__(self, journal: str, log: Path) -> None:
        self._journal = journal
        self._log = log
        self._used = self._waited = 0.0  # by those that were killed
        self.address = "127.0.0.1:0"
        self._process = self._start()

    def use(self) -> Use:
        """
        Raises:
            ServerFailedError: it has ended by itself.
        """
        if self._process.poll() is not None:
            raise ServerFailedError(f"the tracker has ended: {self._log.read_text()}")
        pid = self._process.pid
        return Use(
            memory=procfs.memory(pid),
            disk=self._disk(),
            processor_seconds=self._used + procfs.processor_seconds(pid),
            waiting_seconds=self._waited + procfs.waiting_seconds(pid),
        )

    def restart(self) -> None:
        self._used += procfs.processor_seconds(self._process.pid)
        self._waited += procfs.waiting_seconds(self._process.pid)
        self._end(signal.SIGKILL)
        self._process = self._start()

    def stop(self) -> None:
        """Stops it for good."""
        self._end(signal.SIGTERM)

    def _start(self) -> subprocess.Popen[str]:
        command = ["tracker.cli.main", "serve", "--listen", self.address, "--journal", self._journal]
        with self._log.open("a") as log:
            # In a session of its own: Ctrl-C is for the load test, which then stops it.
            process = subprocess.Popen(
                [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith("listening on "):
            process.wait()
            raise ServerFailedError(f"the tracker has not started: {self._log.read_text()}")
        self.address = said.split()[-1]
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
            except FileNotFoundError:  # a snapshot that has just been replaced
                continue
        return total


@contextmanager
def started(journal: str) -> Iterator[Started]:
    """A tracker of its own, stopped at the end.

    Args:
        journal: ``memory``, ``sqlite`` (in a directory that is removed at the end) or ``sqlite:PATH``.

    Raises:
        ServerFailedError: it could not start.
    """
    with tempfile.TemporaryDirectory(prefix="tracker-load-") as directory:
        place = f"sqlite:{directory}/tracker.db" if journal == "sqlite" else journal
        server = Started(place, Path(directory) / "tracker.log")
        try:
            yield server
        finally:
            server.stop()
