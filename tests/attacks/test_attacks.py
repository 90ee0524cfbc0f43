"""Each attack in a short form: it is answered as it should, memory is bounded, and another client is served meanwhile.

``python -m tests.attacks`` runs them in full and prints how long the other client waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.processes import Servers, launcher

from .__main__ import run
from .attacks import ATTACKS


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with launcher() as servers:
        yield servers


def attack(servers: Servers, directory: Path, name: str, scale: float, seconds: float, quotas: bool = False) -> None:
    seen = run(servers, directory, name, scale, seconds, "sqlite", quotas)
    assert set(seen.answers) <= ATTACKS[name].answers | ({"QUOTA"} if quotas else set())
    assert seen.took, "the other client was not served"
    assert seen.memory.most < 600 * scale + 150
    assert seen.journal < 40


@pytest.mark.thorough
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_takes_the_server_from_nobody(servers: Servers, tmp_path: Path, name: str) -> None:
    attack(servers, tmp_path, name, 0.02, 0.1)


@pytest.mark.parametrize("name", ["new names as fast as they go", "200 connections and 50 streams that dribble"])
def test_a_client_with_quotas_takes_the_server_from_nobody(servers: Servers, tmp_path: Path, name: str) -> None:
    attack(servers, tmp_path, name, 0.1, 0.1, quotas=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_in_full_takes_the_server_from_nobody(servers: Servers, tmp_path: Path, name: str) -> None:
    attack(servers, tmp_path, name, 1.0, 3.0)
