"""A real broker for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.services.jars import MissingError
from examples.services.kafka import Kafka, topic_name
from tests.spark.conftest import feed, job, spark, tracker

__all__ = ["feed", "job", "spark", "tracker"]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    try:
        broker = Kafka(tmp_path_factory.mktemp("kafka"))
    except MissingError as error:
        pytest.skip(str(error))
    with broker:
        yield broker


@pytest.fixture
def topic(kafka: Kafka) -> str:
    """A topic of the test's own."""
    name = topic_name("test")
    kafka.create(name)
    return name
