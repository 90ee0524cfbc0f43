"""The tests of one process share its Spark session: a JVM has one, and a test that stops it stops all that follow."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.house.trees import parsed

TESTS = Path(__file__).resolve().parents[1]


def test_one_fixture_starts_and_stops_the_shared_spark_session() -> None:
    defined = [
        path.relative_to(TESTS).as_posix()
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(parsed(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "spark" and node.decorator_list
    ]
    assert defined == ["spark/conftest.py"]
