"""Which room of the tracker may import which: imports run one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tracker

#: The rooms that programs are made of, and what each of them may import beside itself.
ROOMS: dict[str, set[str]] = {
    "contract": set(),
    "wire": {"contract"},
    "core": {"contract"},
    "journal": set(),
    "client": {"contract", "wire"},
    "sharded": {"client", "contract"},
    "relay": {"client", "contract", "wire"},
    "server": {"contract", "core", "journal", "wire"},
}


def imported(room: str) -> set[str]:
    """The rooms that a room's modules name in imports, wherever in them, but not for type checkers alone."""
    found = set()
    for path in (Path(tracker.__file__).parent / room).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in found if name.startswith("tracker.")} - {room}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    assert imported(room) - {"python310"} <= ROOMS[room]


def test_the_contract_loads_nothing_that_does_io() -> None:
    code = (
        "import sys; before = set(sys.modules); import tracker.contract.callers, tracker.contract.bounds\n"
        "loaded = set(sys.modules) - before\n"
        "print([name for name in ('grpc', 'google.protobuf', 'sqlite3', 'asyncio') if name in loaded])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
