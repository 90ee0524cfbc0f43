from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.client.processes import Server

_numbers = count()


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Yield three trackers, for all tests that do not disturb them."""
    servers = [Server(tmp_path_factory.mktemp("tracker"), "memory") for _ in range(3)]
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[list[Server]]:
    """Yield three trackers of the test's own, which may be killed: their journals are files."""
    servers = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        servers.append(Server(tmp_path / str(number)))
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
def job() -> str:
    """Return a name that no other test has."""
    return f"job-{next(_numbers)}"
