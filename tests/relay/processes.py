"""A real relay, and a real node with workers, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.client.processes import TRACKER, Server
from tracker.journal import open_journal
from tracker.wire.codec import Method, parse
from tracker.wire.gen import tracker_pb2

ROOT = Path(__file__).parents[2]


class Relay:
    """A relay that keeps its address from one start to the next."""

    def __init__(self, directory: Path, server: str, *options: str, listen: str | None = None) -> None:
        self.log_file = directory / "relay.log"
        self.address = f"unix:{directory / 'relay.sock'}" if listen is None else listen
        self._command = [*TRACKER, "relay", "--server", server, *options]
        self.metrics = ""  #: the URL, with the option --metrics
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def start(self) -> None:
        """Start the relay and wait until it is ready."""
        listen = ["--listen", self.address] if self.address else []
        with self.log_file.open("a") as log:
            self._process = subprocess.Popen([*self._command, *listen], stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said.startswith("listening on "), self.log
        self.address = said.split()[-1]
        if "--metrics" in self._command:
            self.metrics = self._process.stdout.readline().split()[-1]

    def kill(self) -> None:
        """Kill the process by SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """Stop the process by SIGTERM; return the exit status."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill the process, and start a successor at the same address."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Let the process stand still, its connections open."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _end(self, number: signal.Signals) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        status = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return status


class Node:
    """Workers of one node, forked from one process as an engine forks them, each with its unit in every epoch."""

    def __init__(self, directory: Path, server: Server, workers: int, environment: dict[str, str]) -> None:
        self._stop = directory / "stop"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.relay.node", server.address, str(workers), str(self._stop)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | environment,
        )

    def stop(self) -> list[dict[str, Any]]:
        """Let the workers finish the report in hand. Return what each has done."""
        self._stop.touch()
        said, _ = self._process.communicate()
        assert self._process.returncode == 0
        return [json.loads(line) for line in said.splitlines()]


def messages(directory: Path) -> Counter[str]:
    """Count the reports that a killed tracker had journaled, by producer."""
    journal = open_journal(f"sqlite:{directory / 'tracker.db'}")
    recovery = journal.recover()
    assert recovery.state is None
    counted = Counter(
        parse(tracker_pb2.ReportRequest, record.payload).producer
        for record in recovery.records
        if record.method == Method.REPORT
    )
    journal.close()
    return counted
