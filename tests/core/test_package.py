"""The first page of the package, where a reader begins."""

from __future__ import annotations

from pathlib import Path

import tracker.core


def test_the_first_page_names_every_module() -> None:
    assert tracker.core.__file__ is not None
    assert tracker.core.__doc__ is not None
    modules = {path.stem for path in Path(tracker.core.__file__).parent.glob("*.py")} - {"__init__"}
    assert {name for name in modules if f"`{name}`" not in tracker.core.__doc__} == set()
