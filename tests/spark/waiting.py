"""Waiting for what comes by itself, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable


def soon(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)
