from __future__ import annotations

from tests.client.conftest import client, job, server, shared_server

__all__ = ["client", "job", "server", "shared_server"]
