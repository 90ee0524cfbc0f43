from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.client.processes import Server
from tests.relay.processes import Relay
from tracker.client import TrackerClient

_numbers = count()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a directory of the test's own, whose path leaves room for a socket's name: the system takes 107 bytes, and
    pytest's own directories are named after whoever runs the tests, and after the test.
    """
    with TemporaryDirectory(prefix="relay-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide all relays but the test's own."""
    monkeypatch.delenv("TRACKER_RELAY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield one tracker for all tests that do not disturb it."""
    server = Server(tmp_path_factory.mktemp("tracker"), "memory")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_relay(shared_server: Server) -> Iterator[Relay]:
    """Yield the server's relay, which nobody finds by himself."""
    with TemporaryDirectory(prefix="relay-", dir="/tmp") as directory:
        relay = Relay(Path(directory), shared_server.address)
        yield relay
        relay.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Yield a tracker of the test's own, which may be killed: its journal is a file."""
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def relay(server: Server, tmp_path: Path) -> Iterator[Relay]:
    """Yield a relay of the test's own to that."""
    relay = Relay(tmp_path, server.address)
    yield relay
    relay.kill()


@pytest.fixture
def client(shared_server: Server) -> Iterator[TrackerClient]:
    with TrackerClient(shared_server.address) as client:
        yield client


@pytest.fixture
def job() -> str:
    """Return a name that no other test has."""
    return f"job-{next(_numbers)}"
