"""Kafka topics, through Spark's connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import UsageError

HEADER: Final = "tracker"  #: of a record: what this package has to know of it


def write(records: DataFrame, topic: str, servers: str, options: Mapping[str, str]) -> None:
    """Write records (key, value, headers) to a topic, and return when the brokers have them.

    Raises:
        UsageError: Spark has no Kafka connector.
    """
    writer = records.write.format("kafka").options(**options).option("topic", topic)
    with needing_a_connector():
        writer.option("kafka.bootstrap.servers", servers).save()


def load(reader: Any) -> DataFrame:
    """Return what a reader of Spark's Kafka source reads."""
    with needing_a_connector():
        return cast(DataFrame, reader.load())


@contextmanager
def needing_a_connector() -> Iterator[None]:
    """Refuse a session without Spark's Kafka connector; other errors pass."""
    try:
        yield
    except Exception as error:
        if "Failed to find data source: kafka" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise UsageError(
                "Spark has no Kafka connector: start the session with spark.jars.packages="
                "org.apache.spark:spark-sql-kafka-0-10_2.13:<your Spark's version>"
            ) from error
        raise


def header(name: str, value: Column) -> Column:
    """Return a header of a record."""
    return F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value"))
