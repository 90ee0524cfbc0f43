"""The processes that a benchmark starts and ends: trackers, relays, bare servers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Server:
    """A server process that has said where it listens.

    Attributes:
        address: where.
        log: what it has logged; empty until it has ended.
    """

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address
        self.log = ""

    def processor_seconds(self) -> float:
        """How much processor time it has used, in all its threads; 0 where the system does not say."""
        status = Path(f"/proc/{self._process.pid}/stat")
        if not status.exists():
            return 0.0
        fields = status.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def tracker(journal: str) -> Iterator[Server]:
    """A tracker of its own, stopped at the end.

    Args:
        journal: as `tracker serve --journal` takes it.
    """
    with _server(["tracker.cli.main", "serve", "--listen", "127.0.0.1:0", "--journal", journal]) as server:
        yield server


@contextmanager
def relay(server: str) -> Iterator[Server]:
    """A relay to the tracker at an address."""
    with (
        tempfile.TemporaryDirectory() as directory,
        _server(
            ["tracker.cli.main", "relay", "--server", server, "--listen", f"unix:{directory}/relay.sock"]
        ) as started,
    ):
        yield started


@contextmanager
def bare_server() -> Iterator[Server]:
    """A gRPC server that does nothing."""
    with _server(["tracker.bench.bare"]) as server:
        yield server


@contextmanager
def _server(module: list[str]) -> Iterator[Server]:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, "-m", *module], stdout=subprocess.PIPE, stderr=log, text=True)
        server = None
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            if not said.startswith("listening on "):
                log.seek(0)
                raise RuntimeError(f"the server has not started: {log.read()}")
            server = Server(process, said.split()[-1])
            yield server
        finally:
            process.terminate()
            process.communicate()
            if server is not None:
                log.seek(0)
                server.log = log.read()
