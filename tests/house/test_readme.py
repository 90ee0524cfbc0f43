"""tests/README.md names each folder of tests, and no other."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_the_readme_names_each_folder_once() -> None:
    rows = re.findall(r"^\| (`.+) \|.+\|$", (TESTS / "README.md").read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    files = (path.relative_to(TESTS) for path in TESTS.rglob("*.*") if "__pycache__" not in path.parts)
    folders = {path.parts[0] for path in files if len(path.parts) > 1}
    assert sorted(named) == sorted(folders)
