from __future__ import annotations

from tests.server.conftest import servers

__all__ = ["servers"]
