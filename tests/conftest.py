"""For all tests: what hypothesis tries has no deadline, since no test depends on the speed of a machine.

The JVMs that tests start share an archive of classes, if `make test` has made one.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.classes import share

share()

settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests with Spark first: their files are the longest, and no worker is left with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
