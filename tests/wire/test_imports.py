"""Modules that an executor loads with the contract's values."""

from __future__ import annotations

import subprocess
import sys


def test_the_contract_loads_nothing_that_does_io() -> None:
    code = (
        "import sys; before = set(sys.modules); import tracker.contract.status, tracker.contract.bounds\n"
        "loaded = set(sys.modules) - before\n"
        "print([name for name in ('grpc', 'google.protobuf', 'sqlite3', 'asyncio') if name in loaded])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
