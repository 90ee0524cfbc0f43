"""Where a hand-off by Kafka ends: its topics' offsets as they were at one moment, which is written down."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark_client.errors import TrackingError, UsageError
from spark_client.plan.end_offsets import EndOffsets, Positions
from spark_client.spark_internals.checkpoints import positions
from spark_client.storage import topics
from spark_client.storage.directories import local_path, read_json, write_first

_ISOLATION: Final = "kafka.isolation.level"


def end_offsets(
    spark: SparkSession,
    servers: str,
    topic: str,
    *,
    keep: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
) -> EndOffsets:
    """Return the end offsets of a topic as of the first call: trusts that nothing of the hand-off is written after it.

    Spark's own source asks the brokers, by a query that reads nothing; so no other client of Kafka is needed.

    Args:
        spark: the session.
        servers: the brokers' addresses, ``host:port,host:port``.
        topic: the topic; or several, with commas between.
        keep: a file that the first call writes the offsets to. Later ones, as after a restart, read it.
        options: of Spark's Kafka source, such as ``kafka.security.protocol``.

    Raises:
        UsageError: Spark has no Kafka connector; the file has the offsets of other topics.
        TrackingError: a topic is not there, a transaction is open in it, or the brokers cannot be reached.

    >>> ends = end_offsets(spark, "kafka:9092", "orders", keep="/data/handed-off.json")       # doctest: +SKIP
    >>> orders = tracking.source(raw.where(ends.within()), "orders", substream="load", front=ends)   # doctest: +SKIP
    """
    path = local_path(keep, "keep=")
    asked = {each.strip() for each in topic.split(",")} - {""}
    known = read_json(path)
    if known is None:
        given = {name: value for name, value in (options or {}).items() if name.lower() != _ISOLATION}
        last = _latest(spark, servers, asked, {**given, _ISOLATION: "read_uncommitted"})
        decided = _latest(spark, servers, asked, {**given, _ISOLATION: "read_committed"})
        if still := _undecided(last, decided):
            raise TrackingError(
                f"a transaction is open in {', '.join(still)}, and nobody can tell whether its records are part of the "
                "hand-off: call end_offsets again when its writer has committed or aborted it"
            )
        known = write_first(path, last)
    ends = EndOffsets(known)
    if ends.ends.keys() != asked:
        raise UsageError(
            f"{path} has the ends of {_listed(ends.ends)}, not of {_listed(asked)}: give another file in keep=, "
            "or remove this one if no query uses it any more"
        )
    return ends


def _listed(topics: Iterable[str]) -> str:
    return repr(",".join(sorted(topics)))


def _undecided(ends: Positions, decided: Positions) -> list[str]:
    """Return the partitions with records before their ends that are neither committed nor aborted.

    Args:
        ends: the offsets after the last records.
        decided: those up to which transactions have ended, asked for later: new records only move them on.
    """
    return [
        f"partition {partition} of {topic!r}"
        for topic, partitions in ends.items()
        for partition, end in partitions.items()
        if decided[topic][partition] < end
    ]


def _latest(spark: SparkSession, servers: str, asked: Set[str], options: Mapping[str, str]) -> Positions:
    reader = spark.readStream.format("kafka").options(**options).option("subscribe", ",".join(sorted(asked)))
    raw = topics.load(reader.option("kafka.bootstrap.servers", servers).option("startingOffsets", "latest"))
    with tempfile.TemporaryDirectory() as directory:
        query = (
            raw.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True).start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            raise TrackingError(f"the end offsets of {_listed(asked)} cannot be read: {error}") from error
        found = positions(Path(directory), None)
    if missing := asked - {name for name, partitions in (found[0] if found else {}).items() if partitions}:
        raise TrackingError(f"the end offsets of {_listed(missing)} cannot be read: Spark has found no partition of it")
    return found[0]
