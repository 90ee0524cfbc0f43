from __future__ import annotations

import pytest

from tests.cli.shell import Shell
from tests.client.conftest import client, job, server, shared_server  # noqa: F401 - fixtures
from tests.client.processes import Server


@pytest.fixture
def shell(shared_server: Server) -> Shell:  # noqa: F811
    return Shell(shared_server.address)
