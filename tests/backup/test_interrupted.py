"""A restore is one step: killed anywhere, it leaves the old journal, the backup, or a refusal with the way out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.journal.redis_server import RedisServer, needs_redis


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["file", "objects", pytest.param("redis", marks=needs_redis)])
def test_a_restore_killed_at_any_step_never_leaves_an_empty_tracker(tmp_path: Path, kind: str) -> None:
    server = RedisServer(tmp_path / "redis") if kind == "redis" else None
    where = str(server.port) if server is not None else kind
    command = [sys.executable, "-m", "tests.backup.interrupting", str(tmp_path), where]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    finally:
        if server is not None:
            server.kill()
    assert ran.returncode == 0, ran.stderr
    steps = [line.split("\t") for line in ran.stdout.splitlines()]
    in_order = ["serves ['old']", "refuses", "serves ['new']"]
    outcomes = [first.split(":")[0] for _, _, first, _ in steps]
    assert set(outcomes) == set(in_order)
    if kind != "objects":  # its signs of life are steps, too, and come at any time
        assert outcomes == sorted(outcomes, key=in_order.index)
    for _, _, first, again in steps:
        if first.startswith("refuses"):
            assert again == "serves ['new']"
            assert "again: `tracker restore FILE --journal ADDRESS --replace`" in first
