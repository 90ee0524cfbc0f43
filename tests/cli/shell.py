"""Runs the command `tracker` as a person or a script does, and reads what it prints."""

from __future__ import annotations

import os
import subprocess

from tests.client.processes import TRACKER


class Shell:
    """Runs `tracker` with the server's address in the environment."""

    def __init__(self, address: str) -> None:
        self.environment = os.environ | {"TRACKER_SERVER": address, "TRACKER_CONFIG": "/nonexistent/config.toml"}

    def __call__(self, *arguments: str, status: int = 0) -> str:
        """What it printed: on stdout, or where it failed on stderr."""
        ran = subprocess.run(
            [*TRACKER, *arguments], env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == status, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran.stderr if status else ran.stdout


def table(printed: str) -> list[dict[str, str]]:
    """A printed table, by its header: columns begin where a header's word begins or end where it ends."""
    header, *rows = printed.splitlines()
    return [dict(zip(split(header), split(row), strict=False)) for row in rows]


def split(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("  ") if cell.strip()]
