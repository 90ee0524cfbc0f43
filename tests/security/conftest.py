from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.security.authority import Authority
from tests.security.secured import Secured
from tests.server.processes import Servers, launcher
from tests.spark.conftest import spark

__all__ = ["authority", "job", "own", "servers", "shared", "spark"]

_numbers = count()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with launcher() as servers:
        yield servers


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def shared(servers: Servers, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Secured:
    """Return a tracker with TLS and tokens, for all tests that leave its files as they are."""
    return Secured(servers, authority, tmp_path_factory.mktemp("secured"))


@pytest.fixture
def own(servers: Servers, authority: Authority, tmp_path: Path) -> Secured:
    """Return a tracker of the test's own."""
    return Secured(servers, authority, tmp_path)


@pytest.fixture
def job() -> str:
    """Return a name that no other test has."""
    return f"job-{next(_numbers)}"
