"""A short run of ``python -m tests.fuzz``: whatever is sent, nobody is answered with a fault, and nothing breaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.processes import Servers, launcher

from .sending import many, one_by_one, view


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with launcher() as servers:
        yield servers


def fuzz(servers: Servers, directory: Path, seed: int, at_once: int, one_by: int) -> None:
    server = servers.start(directory, "sqlite", "--snapshot-every", "0")
    outcome = one_by_one(server, seed, one_by)
    assert not outcome.faults, outcome.faults[0]
    assert outcome.refusals > one_by // 5
    assert outcome.answers["OK"] > one_by // 10
    outcome = many(server, seed, at_once, 8)
    assert not outcome.faults, outcome.faults[0]
    before = view(server)
    assert "kept a snapshot" in server.log
    server.kill()
    server = servers.start(directory, "sqlite")
    assert view(server) == before
    assert server.stop() == 0
    assert "level=error" not in server.log


def test_no_message_breaks_anything(servers: Servers, tmp_path: Path) -> None:
    fuzz(servers, tmp_path, 8, 1_500, 300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
def test_no_message_breaks_anything_at_length(servers: Servers, tmp_path: Path, seed: int) -> None:
    fuzz(servers, tmp_path, seed, 50_000, 3_000)
