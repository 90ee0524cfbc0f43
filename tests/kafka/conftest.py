"""A real broker for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from examples.services.jars import MissingError
from examples.services.kafka import Kafka, topic_name
from tests.spark.conftest import feed, job, spark, tracker

__all__ = ["feed", "job", "spark", "tracker"]


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    try:
        kafka = Kafka(tmp_path_factory.mktemp("kafka"))
    except MissingError as error:
        pytest.skip(str(error))
    with kafka:
        yield kafka


@pytest.fixture
def topic(broker: Kafka) -> str:
    """Return a topic of the test's own."""
    name = topic_name("test")
    broker.create(name)
    return name


def write_numbers(spark: SparkSession, broker: Kafka, topic: str, count: int) -> list[str]:
    """Write the numbers below one as values of a topic, and return them in order."""
    numbers = [str(number) for number in range(count)]
    rows = spark.createDataFrame([(number,) for number in numbers], "value string")
    rows.write.format("kafka").option("kafka.bootstrap.servers", broker.servers).option("topic", topic).save()
    return numbers
