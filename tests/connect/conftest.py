"""One server of Spark Connect and one tracker for all tests of this directory; what a test kills is its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.services.connect import ConnectServer
from tests.spark.conftest import feed, job, settings, tracker

__all__ = ["connect", "feed", "job", "tracker"]


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """Yield a server that no test disturbs."""
    with ConnectServer(tmp_path_factory.mktemp("connect"), settings()) as server:
        yield server
        server.kill()
