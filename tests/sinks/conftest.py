"""A real PostgreSQL server for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.services.jars import MissingError
from examples.services.postgres import Postgres
from tests.spark.conftest import feed, job, spark, tracker

__all__ = ["feed", "job", "spark", "tracker"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres()
    except MissingError as error:
        pytest.skip(str(error))
    with server:
        yield server
