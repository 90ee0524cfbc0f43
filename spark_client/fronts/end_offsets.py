"""`EndOffsets`: a hand-off by Kafka that is bounded by offsets, which somebody has fixed.

`end_offsets` fixes them: as they are at one moment, which is written down.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, column, names_of, resolve
from spark_client.errors import TrackingError, UsageError, refused
from spark_client.fronts.front import Front, LiveFront
from spark_client.spark_internals import kafka
from spark_client.spark_internals.checkpoints import positions
from spark_client.storage.directories import local_path, read_json, write_first
from spark_client.storage.folder import Folder
from spark_client.windows.belonging import Condition

Positions = Mapping[str, Mapping[str, int]]  #: by topic, then by partition, as Spark writes them

_ISOLATION: Final = "kafka.isolation.level"


class EndOffsets(Front):
    """Kafka's offsets at which a hand-off ends: trusts that they are its ends, and that Spark's positions are its own.

    The source finishes, and with it all its substreams, when Spark has read each partition up to its offset, in all
    streams of the query that read it. That is
    looked up in Spark's log of offsets, not counted by rows: transactions and compaction leave offsets without a
    record.

    Args:
        offsets: by topic and partition the first offset that is no part of it, as Kafka's end offsets and Spark's
            ``endingOffsets`` have it: ``{"orders": {0: 1204, 1: 98}}``, or the same as JSON. `end_offsets` asks Kafka.
        topic: the column of the topic.
        partition: the column of the partition.
        offset: the column of the offset.

    Records at and behind these offsets, and of other partitions, belong to no substream: drop them before `source` with
    ``raw.where(ends.within())``.

    >>> EndOffsets({"orders": {0: 1204, 1: 98}})
    EndOffsets({"orders": {"0": 1204, "1": 98}})
    """

    moves_progress = True
    overlapping = True
    trusts = "the offsets are the ends of what is handed off; Spark's log of positions"

    def __init__(
        self,
        offsets: str | Mapping[str, Mapping[Any, int]],
        *,
        topic: ColumnOrName = "topic",
        partition: ColumnOrName = "partition",
        offset: ColumnOrName = "offset",
    ) -> None:
        like = f'EndOffsets: {offsets!r} is nothing like {{"orders": {{0: 1204, 1: 98}}}}'
        with refused(like, "Give the end of each partition, by topic", (AttributeError, TypeError, ValueError)):
            given = json.loads(offsets) if isinstance(offsets, str) else offsets
            ends = {str(name): {str(int(n)): int(end) for n, end in of.items()} for name, of in given.items()}
        if not any(ends.values()) or any(end < 0 for of in ends.values() for end in of.values()):
            raise UsageError(
                f"EndOffsets: {offsets!r}: an end is 0 or more, for one partition at least; Kafka's -1 and -2 "
                "stand for no offset: end_offsets(spark, servers, topic, keep=…) asks for the latest"
            )
        self.ends: Positions = ends
        self._columns = (topic, partition, offset)

    def __repr__(self) -> str:
        return f"EndOffsets({json.dumps(self.ends)})"

    @property
    def reads(self) -> frozenset[str] | None:
        return names_of([*self._columns])

    def within(self) -> Column:
        """Return whether a record is part of the hand-off."""
        topic, partition, offset = (column(each) for each in self._columns)
        ends = [(F.lit(f"{n}/{name}"), F.lit(end)) for name, of in self.ends.items() for n, end in of.items()]
        end = F.create_map(*chain.from_iterable(ends))[F.concat(partition.cast("string"), F.lit("/"), topic)]
        return F.coalesce(offset < end, F.lit(False))

    def conditions(self, rows: DataFrame) -> list[Condition]:
        for value in self._columns:
            resolve(rows, value, "EndOffsets")
        fault = "is no part of the hand-off, by its end offsets: drop such records with raw.where(ends.within())"
        return [Condition(self.within(), fault, None)]

    def reached(self, sources: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether all partitions have been read up to their ends.

        Args:
            sources: up to which each source of the query has read. A partition that several of them read has been read
                as far as by the slowest.
        """
        return all(
            min((of[topic][partition] for of in sources if partition in _partitions(of, topic)), default=0) >= end
            for topic, partitions in self.ends.items()
            for partition, end in partitions.items()
        )

    def live(self, spark: SparkSession) -> LiveFront:  # noqa: ARG002
        return _LiveEndOffsets(self)


class _LiveEndOffsets(LiveFront):
    """An `EndOffsets` while its query runs: it finishes when what Spark has committed comes up to the ends."""

    def __init__(self, front: EndOffsets) -> None:
        super().__init__(front)
        self._ends = front
        self._seen: tuple[Folder, int | None] | None = None
        self._finished = False

    def look(self, checkpoint: Folder, epoch: int | None, at_once: bool = False) -> None:  # noqa: ARG002
        if self._finished or (epoch is not None and self._seen == (checkpoint, epoch)):
            return
        self._seen = checkpoint, epoch
        if self._ends.reached(positions(checkpoint, epoch)):
            self._finished = True
            self.promise(self.finish())


def _partitions(positions: Mapping[str, Any], topic: str) -> Mapping[str, int]:
    """Return a source's positions in a topic; of a source that is none of Kafka's there are none."""
    found = positions.get(topic)
    return found if isinstance(found, Mapping) else {}


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
        spark: the session, with Spark's Kafka connector.
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
                f"a transaction is open in {', '.join(still)}, whose records may be part of the hand-off: call "
                "end_offsets again when its writer has committed or aborted it"
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
    raw = kafka.load(reader.option("kafka.bootstrap.servers", servers).option("startingOffsets", "latest"))
    with tempfile.TemporaryDirectory() as directory:
        query = (
            raw.writeStream.format("noop").option("checkpointLocation", directory).trigger(availableNow=True).start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            raise TrackingError(f"the end offsets of {_listed(asked)} cannot be read: {error}") from error
        found = positions(Folder(directory), None)
    if missing := asked - {name for name, partitions in (found[0] if found else {}).items() if partitions}:
        raise TrackingError(
            f"the end offsets of {_listed(missing)} cannot be read: Spark has found no partition of it. Give "
            "topics that exist"
        )
    return found[0]
