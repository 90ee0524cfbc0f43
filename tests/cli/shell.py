"""Runs the command `tracker` as a person or a script does, and reads what it prints."""

from __future__ import annotations

import io
import os
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from tests.client.processes import TRACKER
from tracker.cli.main import main


class Shell:
    """A shell that runs `tracker` with the server's address in the environment."""

    def __init__(self, address: str) -> None:
        self.environment = os.environ | {"TRACKER_SERVER": address, "TRACKER_CONFIG": "/nonexistent/config.toml"}

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """Run a command in this process. Return its stdout, or its stderr if it is to fail."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with patch.dict(os.environ, self.environment, clear=True), redirect_stdout(out), redirect_stderr(err):
            returned = main(arguments)
        return self._checked(out.buffer.getvalue().decode(), err.buffer.getvalue().decode(), returned, status)

    def process(self, *arguments: str, status: int = 0) -> str:
        """Run a command in a process of its own, while others run."""
        ran = subprocess.run(
            [*TRACKER, *arguments], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        return self._checked(ran.stdout, ran.stderr, ran.returncode, status)

    @staticmethod
    def _checked(printed: str, complaints: str, returned: int, status: int) -> str:
        assert returned == status, complaints
        assert "Traceback" not in complaints
        return complaints if status else printed


def table(printed: str) -> list[dict[str, str]]:
    """Return a printed table, by its header: columns begin where a header's word begins or end where it ends."""
    header, *rows = printed.splitlines()
    return [dict(zip(split(header), split(row), strict=False)) for row in rows]


def split(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("  ") if cell.strip()]
