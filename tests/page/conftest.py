from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page import jobs
from tests.page.browsing import Opens, Window, chromium
from tests.server.conftest import servers
from tests.server.processes import Server, Servers

__all__ = ["servers"]


@pytest.fixture(scope="session")
def site(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Yield a server with jobs that nobody changes."""
    server = servers.start(tmp_path_factory.mktemp("site"), "memory", "--metrics", "127.0.0.1:0")
    with jobs.client_of(server) as client:
        jobs.flights(client)
        jobs.hostile(client)
        jobs.many(client, 120)
    yield server
    assert server.stop() == 0


@pytest.fixture
def own_site(servers: Servers, tmp_path: Path) -> Server:
    """Return a server of one's own."""
    return servers.start(tmp_path, "memory", "--metrics", "127.0.0.1:0")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield a browser for one module: while it runs, so does an event loop in this thread, and no test has its own."""
    with chromium() as browser:
        yield browser


@pytest.fixture
def window(browser: Any) -> Iterator[Opens]:
    """Open tabs; at the end, nothing may have gone wrong in any."""
    windows: list[Window] = []

    def opens(server: Server, **options: Any) -> Window:
        windows.append(Window(browser, server.metrics, **options))
        return windows[-1]

    yield opens
    for each in windows:
        each.close()
