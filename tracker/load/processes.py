"""Starts and ends server processes, among them one that does nothing, for comparison."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Server:
    """A server process that listens.

    Attributes:
        address: where it listens.
        log: what it has logged; empty until it has ended.
    """

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address
        self.log = ""

    def processor_seconds(self) -> float:
        """Returns the processor time that all its threads have used, in seconds; 0 if the system has no /proc."""
        status = Path(f"/proc/{self._process.pid}/stat")
        if not status.exists():
            return 0.0
        fields = status.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def bare_server() -> Iterator[Server]:
    """Runs a gRPC server that does nothing, while the context lasts."""
    with server_process(["tracker.load.bare"]) as server:
        yield server


@contextmanager
def server_process(module: list[str]) -> Iterator[Server]:
    """Runs a Python module that serves, as a process, while the context lasts.

    Args:
        module: its name and its arguments.

    Raises:
        RuntimeError: it has not started.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([sys.executable, "-m", *module], stdout=subprocess.PIPE, stderr=log, text=True)
        server = None
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("listening on "):
                log.seek(0)
                raise RuntimeError(f"the server has not started: {log.read()}")
            server = Server(process, line.split()[-1])
            yield server
        finally:
            process.terminate()
            process.communicate()
            if server is not None:
                log.seek(0)
                server.log = log.read()
