from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.client.processes import Line, Server
from tracker.client import JobSpec, TrackerClient

_numbers = count()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield one tracker for all tests that do not disturb it."""
    server = Server(tmp_path_factory.mktemp("tracker"), "memory")
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Yield a tracker of the test's own, which may be killed: its journal is a file."""
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def client(shared_server: Server) -> Iterator[TrackerClient]:
    with TrackerClient(shared_server.address) as client:
        yield client


@pytest.fixture
def line(shared_server: Server) -> Iterator[Line]:
    """Yield a line to the shared tracker that may be cut."""
    line = Line(shared_server.address)
    yield line
    line.close()


@pytest.fixture
def job() -> str:
    """Return a name that no other test has."""
    return f"job-{next(_numbers)}"


def spec(job: str, **rules: object) -> JobSpec:
    """Return a job with one segment, ``raw``, and no fronts, unless the rules say otherwise."""
    return JobSpec(**{"job": job, "deployment": "d1", "segments": {"raw": []}} | rules)  # type: ignore[arg-type]
