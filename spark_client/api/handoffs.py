"""Where a hand-off by Kafka ends: its topics' offsets as they were at one moment, which is written down."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from spark_client.errors import TrackingError
from spark_client.plan.end_offsets import EndOffsets
from spark_client.spark_internals.checkpoints import positions
from spark_client.storage import topics
from spark_client.storage.directories import local_path, read_json, write_first


def end_offsets(
    spark: SparkSession,
    servers: str,
    topic: str,
    *,
    keep: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
) -> EndOffsets:
    """The end offsets of a topic as of the first call: trusts that nothing of the hand-off is written after it.

    Spark's own source asks the brokers, by a query that reads nothing; so no other client of Kafka is needed.

    Args:
        spark: the session.
        servers: the brokers' addresses, ``host:port,host:port``.
        topic: the topic; or several, with commas between.
        keep: a file that the first call writes the offsets to. Later ones, as after a restart, read it.
        options: of Spark's Kafka source, such as ``kafka.security.protocol``.

    Raises:
        UsageError: Spark has no Kafka connector.
        TrackingError: the topic is not there, or the brokers cannot be reached.

    >>> ends = end_offsets(spark, "kafka:9092", "orders", keep="/data/handed-off.json")       # doctest: +SKIP
    >>> orders = tracking.source(raw.where(ends.within()), "orders", substream="load", front=ends)   # doctest: +SKIP
    """
    path = local_path(keep, "keep=")
    known = read_json(path)
    if known is None:
        known = write_first(path, _latest(spark, servers, topic, options or {}))
    return EndOffsets(known)


def _latest(spark: SparkSession, servers: str, topic: str, options: Mapping[str, str]) -> Mapping[str, object]:
    reader = spark.readStream.format("kafka").options(**options).option("subscribe", topic)
    raw = topics.load(reader.option("kafka.bootstrap.servers", servers).option("startingOffsets", "latest"))
    with tempfile.TemporaryDirectory() as directory:
        query = (
            raw.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True).start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            raise TrackingError(f"the end offsets of {topic!r} cannot be read: {error}") from error
        found = positions(Path(directory), None)
    if not found or not found[0]:
        raise TrackingError(f"the end offsets of {topic!r} cannot be read: Spark has found no partition of it")
    return found[0]
