"""docs/design/reliability.md: each promise of its table leads to a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "design" / "reliability.md"
_DEFINITION = re.compile(r"^\[(\d+)\]: (\S+)#(\S+)$", re.MULTILINE)


def test_each_promise_leads_to_its_test() -> None:
    page = PAGE.read_text()
    tests = {number: (PAGE.parent / path, name) for number, path, name in _DEFINITION.findall(page)}
    used = re.findall(r"\]\[(\d+)\]", page)
    assert len(used) > 30
    assert {*used} == tests.keys()
    for path, name in tests.values():
        assert re.search(rf"^def {name}\(", path.read_text(), re.MULTILINE), f"{path} has no {name}"
