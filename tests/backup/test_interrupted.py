"""A restore is one step: killed anywhere, it leaves the old journal, the backup, or a refusal with the way out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.journal.redis_server import RedisServer, needs_redis

KINDS = ["file", "objects", pytest.param("redis", marks=needs_redis)]


def killed_at_each_step(what: str, directory: Path, kind: str) -> list[list[str]]:
    """Return what was found after each kill, as `tests.backup.interrupting` prints it."""
    server = RedisServer(directory / "redis") if kind == "redis" else None
    where = str(server.port) if server is not None else kind
    command = [sys.executable, "-m", "tests.backup.interrupting", str(directory), where, what]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=550)
    finally:
        if server is not None:
            server.kill()
    assert ran.returncode == 0, ran.stderr
    return [line.split("\t") for line in ran.stdout.splitlines()]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_an_import_killed_at_any_step_leaves_one_tracker(tmp_path: Path, kind: str) -> None:
    outcomes = set()
    for _, _, driver, service, *again in killed_at_each_step("import", tmp_path, kind):
        outcomes.add((driver.split(":")[0], service.split(":")[0]))
        assert "name 'tracker:7654' as the server" in again[0]
        assert again[1] == "serves ['shop']"
        if driver.startswith("refuses"):
            assert "name 'tracker:7654' as the server" in driver
            assert service == "serves ['shop']" or "tracker import JOURNAL --into ADDRESS" in service
    assert outcomes == {
        ("serves ['shop']", "serves []"),
        ("serves ['shop']", "refuses"),
        ("refuses", "refuses"),  # all of it is there, and the command is repeated
        ("refuses", "serves ['shop']"),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_restore_killed_at_any_step_never_leaves_an_empty_tracker(tmp_path: Path, kind: str) -> None:
    steps = killed_at_each_step("restore", tmp_path, kind)
    in_order = ["serves ['old']", "refuses", "serves ['new']"]
    outcomes = [first.split(":")[0] for _, _, first, _ in steps]
    assert set(outcomes) == set(in_order)
    if kind != "objects":  # its signs of life are steps, too, and come at any time
        assert outcomes == sorted(outcomes, key=in_order.index)
    for _, _, first, again in steps:
        if first.startswith("refuses"):
            assert again == "serves ['new']"
            assert "again: `tracker restore FILE --journal ADDRESS --replace`" in first
