"""The tracker that the five commands of docs/howto/security.md make, as they are written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from examples.services.processes import free_port

_PAGE = Path(__file__).parents[2] / "docs" / "howto" / "security.md"


class QuickStart:
    """A directory in which commands run as a user's shell would run them.

    Attributes:
        port: where the tracker listens.
        last: the last of the five commands, which asks the tracker.
    """

    def __init__(self, directory: Path, **environment: str) -> None:
        self._directory = directory
        (directory / "tracker").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tracker.cli.main "$@"\n')
        (directory / "tracker").chmod(0o755)
        known = {"PATH": f"{directory}:{os.environ['PATH']}", "TRACKER_CONFIG": "/nonexistent"}
        self._environment: Mapping[str, str] = os.environ | known | environment
        self.port = free_port()
        block = re.search(r"```sh\n(.*?)```", _PAGE.read_text(), re.DOTALL)
        assert block is not None
        text = block[1].replace("\\\n", " ").replace("7654", str(self.port)).replace("0.0.0.0", "127.0.0.1")
        *self._make, self._serve, self.last = (line for line in text.splitlines() if line)
        assert len(self._make) == 3

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command until it ends."""
        return subprocess.run(
            command, shell=True, cwd=self._directory, env=self._environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    @contextmanager
    def tracker(self) -> Iterator[None]:
        """Carry out the first four commands; the tracker is there for as long as the body runs."""
        for command in self._make:
            made = self.run(command)
            assert made.returncode == 0, made.stderr
        with self.serving(f"exec {self._serve} --journal memory"):
            yield

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """Run a command that serves for as long as the body runs."""
        server = subprocess.Popen(
            command, shell=True, cwd=self._directory, env=self._environment,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("listening on ")
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate()
