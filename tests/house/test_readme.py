"""tests/README.md names each folder of tests, and no other."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_the_readme_names_each_folder_once() -> None:
    rows = re.findall(r"^\| (`.+) \|.+\|$", (TESTS / "README.md").read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    folders = [path.name for path in TESTS.iterdir() if path.is_dir() and any(path.glob("*.*"))]
    assert sorted(named) == sorted(folders)
