"""A plugin of pytest: runs the tests that found the most first, then the quickest, and prints which one failed.

It reads and writes a file of JSON (`--order-file`): by the name of each test, how many seconds it took and how often it
was the first to fail. A test that takes far longer than it did is given up: the change has made it endless.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypedDict

import pytest
from hypothesis import Phase, settings

_PATIENCE_S, _PATIENCE = 30, 10  # a test may take so much more, and so many times as long, as it took unchanged


class Known(TypedDict):
    """Duration and kills of a test."""

    seconds: float
    kills: int


class Ordering:
    """Orders one run, and notes how long its tests take or which fails.

    Args:
        file: what is known of the tests, by name; may be missing.
        note: where to write what this run shows.
    """

    def __init__(self, file: Path, note: Path) -> None:
        self._known: dict[str, Known] = json.loads(file.read_text()) if file.exists() else {}
        self._note = note
        self._seconds: dict[str, float] = {}
        self._failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not self._known:
            return
        never: Known = {"seconds": 0.0, "kills": 0}
        items.sort(key=lambda item: rank(self._known.get(item.nodeid, never)))
        for item in items:
            limit = _PATIENCE_S + _PATIENCE * self._known.get(item.nodeid, never)["seconds"]
            item.add_marker(pytest.mark.timeout(limit), append=False)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self._failed:
            self._failed = report.nodeid

    def pytest_sessionfinish(self) -> None:
        self._note.write_text(json.dumps({"seconds": self._seconds, "failed": self._failed}))


def rank(known: Known) -> tuple[float, float]:
    """Return the place of a test in the order, smallest first: by what it costs for each change that it finds."""
    return known["seconds"] / (1 + 10 * known["kills"]), known["seconds"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order-file", type=Path, required=True)
    parser.addoption("--note-file", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Ordering(config.getoption("--order-file"), config.getoption("--note-file")))
    # Nobody reads how a test failed: what fails is not made any shorter.
    settings.register_profile("mutants", deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    settings.load_profile("mutants")


def pytest_collection_finish() -> None:
    differential: Any = sys.modules.get("tests.core.differential")
    if differential is not None:
        differential.shrink = lambda lines, fails: list(lines)
