"""A broker and a tracker for all tests of this directory; each test has topics and a job of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from examples.services.kafka import Kafka, topic_name
from tests.client.processes import Server
from tests.kafka.conftest import broker
from tests.services.shop import Shop, create
from tests.spark.conftest import spark
from tracker.client import TrackerClient

__all__ = ["broker", "spark"]

_numbers = count()


@pytest.fixture(scope="session")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tracker"))
    yield server
    server.stop()


@pytest.fixture
def topic(broker: Kafka) -> str:
    """Return a topic of the test's own, with two partitions."""
    name = topic_name("test")
    create(broker, name)
    return name


@pytest.fixture
def shop(tracker: Server, broker: Kafka, topic: str) -> Iterator[Shop]:
    """Yield a job with one segment, whose messages go through a topic of its own."""
    with TrackerClient(tracker.address) as client:
        yield Shop(client, f"shop{next(_numbers)}", broker.servers, topic)
