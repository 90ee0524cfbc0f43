"""Server processes, started and ended; among them one that does nothing, for comparison."""

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
def bare_server() -> Iterator[Server]:
    """A gRPC server that does nothing."""
    with server_process(["tracker.load.bare"]) as server:
        yield server


@contextmanager
def server_process(module: list[str]) -> Iterator[Server]:
    """A Python module that serves, run as a process.

    Args:
        module: its name, and what it is called with.

    Raises:
        RuntimeError: it has not started.
    """
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
