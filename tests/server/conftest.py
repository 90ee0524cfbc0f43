from __future__ import annotations

from collections.abc import Iterator

import pytest

from .processes import Servers, launcher


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    with launcher() as servers:
        yield servers
