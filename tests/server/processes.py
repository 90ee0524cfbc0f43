"""Real server processes for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from tracker.wire.gen import tracker_pb2_grpc

ROOT = Path(__file__).parents[2]


class Server:
    """A running server: its process, its addresses, its log."""

    def __init__(self, servers: Servers, pid: int, address: str, log: Path, metrics: str = "") -> None:
        self._servers = servers
        self.pid = pid
        self.address = address
        self.metrics = metrics  #: the URL, if it was started with ``--metrics``
        self.log_file = log
        self.channel: Any = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.stub = tracker_pb2_grpc.TrackerStub(self.channel)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def kill(self) -> None:
        """Kill the process by SIGKILL."""
        self.channel.close()
        os.kill(self.pid, signal.SIGKILL)
        assert self._servers.wait(self.pid) == -signal.SIGKILL

    def stop(self) -> int:
        """End the server by SIGTERM. Return the exit status."""
        os.kill(self.pid, signal.SIGTERM)
        status = self._servers.wait(self.pid)
        self.channel.close()
        return status


class Servers:
    """A starter of servers; those that still run in the end are killed."""

    def __init__(self) -> None:
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.server.launcher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._running: set[int] = set()
        self._asked = 0

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to this request; earlier ones, given up by a timeout or Ctrl-C, are passed over."""
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._asked += 1
        print(json.dumps({**request, "number": self._asked}), file=self._launcher.stdin, flush=True)
        while True:
            answer: dict[str, Any] = json.loads(self._launcher.stdout.readline())
            if answer["number"] == self._asked:
                return answer
            if "pid" in answer:
                self._running.add(answer["pid"])  # started for a test that was given up
            else:
                self._running.discard(answer["waited_for"])

    def start(self, directory: Path, journal: str = "memory", *arguments: str) -> Server:
        """Start a server that listens, logging to ``directory/log``. ``sqlite`` keeps its file there, too."""
        if journal == "sqlite":
            journal = f"sqlite:{directory}/tracker.db"
        log = directory / "log"
        said = self._ask(
            {"start": ["serve", "--listen", "127.0.0.1:0", "--journal", journal, *arguments], "log": str(log)}
        )
        if said["address"] is None:
            raise StartFailedError(self.wait(said["pid"]), log.read_text())
        self._running.add(said["pid"])
        return Server(self, said["pid"], said["address"], log, said["metrics"])

    def wait(self, pid: int) -> int:
        status: int = self._ask({"wait": pid})["status"]
        self._running.discard(pid)
        return status

    def close(self) -> None:
        self._ask({})  # whatever was started meanwhile is known from here on
        for pid in list(self._running):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.wait(pid)
        assert self._launcher.stdin is not None
        self._launcher.stdin.close()
        self._launcher.wait()


class StartFailedError(Exception):
    """A server ended instead of listening."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(f"exit status {status}:\n{log}")
        self.status = status
        self.log = log


@contextmanager
def launcher() -> Iterator[Servers]:
    servers = Servers()
    try:
        yield servers
    finally:
        servers.close()
