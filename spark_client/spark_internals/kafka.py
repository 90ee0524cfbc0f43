"""Kafka, through Spark's connector: its topics, and its source in a query that reads a batch again.

Since 4.1 the connector fails a query after such a batch: it reports how far the query is behind without having asked
the broker (SPARK-55271). The batch is committed by then, and a second start goes on. A query that stops between two
batches has often logged the next one, so tracked queries would meet this at every other start.

Relies on ``SharedState.activeStreamingQueries``, ``StreamExecution.uniqueSources`` and ``availableOffsets``, and on
``KafkaMicroBatchStream.latestOffset`` keeping the broker's answer for that report. Fails open: where they are
missing, a query on such a connector fails once, as it does untracked. Since Spark 4.1.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import UsageError
from spark_client.spark_internals.errors import NOT_SHOWN

_log = logging.getLogger("spark_client")

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


def ask_for_latest_offsets(spark: SparkSession, query: str) -> None:
    """Let the Kafka sources of a query learn their latest offsets, in the query's first batch.

    Args:
        spark: any session of the query's Spark.
        query: its id; it runs.
    """
    try:
        jvm = spark._jvm
        identifier = jvm.java.util.UUID.fromString(query)  # type: ignore[union-attr]
        execution = spark._jsparkSession.sharedState().activeStreamingQueries().get(identifier)
        sources = execution.uniqueSources().keysIterator()
        while sources.hasNext():
            source = sources.next()
            if source.getClass().getSimpleName() == "KafkaMicroBatchStream":
                everything = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()  # type: ignore[union-attr]
                reached = execution.availableOffsets().get(source).get()
                source.latestOffset(source.deserializeOffset(reached.json()), everything)
    except (*NOT_SHOWN, TypeError) as error:
        _log.debug("query %s: its sources cannot be asked for their latest offsets: %s", query, error)
