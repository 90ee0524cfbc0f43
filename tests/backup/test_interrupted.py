"""A restore is one step: killed anywhere, it leaves the old journal, the backup, or a refusal with the way out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.journal.redis_server import RedisServer, needs_redis


@pytest.mark.parametrize("kind", ["file", pytest.param("redis", marks=needs_redis)])
def test_a_restore_that_is_killed_at_any_step_never_leaves_an_empty_tracker(tmp_path: Path, kind: str) -> None:
    server = RedisServer(tmp_path / "redis") if kind == "redis" else None
    command = [
        sys.executable,
        "-m",
        "tests.backup.interrupting",
        str(tmp_path),
        *([str(server.port)] if server else []),
    ]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    finally:
        if server is not None:
            server.kill()
    assert ran.returncode == 0, ran.stderr
    steps = [line.split("\t") for line in ran.stdout.splitlines()]
    outcomes = [first.split(":")[0] for _, _, first, _ in steps]
    assert set(outcomes) == {"serves ['old']", "refuses", "serves ['new']"}
    assert outcomes == sorted(
        outcomes, key=["serves ['old']", "refuses", "serves ['new']"].index
    )  # one after the other
    for _, _, first, again in steps:
        if first.startswith("refuses"):
            assert "Run it again: `tracker restore FILE --journal ADDRESS --replace`" in first
            assert again == "again: serves ['new']"
