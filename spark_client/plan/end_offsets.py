"""`EndOffsets`: a hand-off by Kafka that is bounded by offsets, which somebody has fixed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, column, names_of, resolve
from spark_client.errors import UsageError
from spark_client.plan.fronts import Front, Group, Promises
from spark_client.windows.belonging import Condition

Positions = Mapping[str, Mapping[str, int]]  #: by topic, then by partition, as Spark writes them


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
    trusts = "the offsets are the ends of what is handed off; Spark's log of positions"

    def __init__(
        self,
        offsets: str | Mapping[str, Mapping[Any, int]],
        *,
        topic: ColumnOrName = "topic",
        partition: ColumnOrName = "partition",
        offset: ColumnOrName = "offset",
    ) -> None:
        try:
            given = json.loads(offsets) if isinstance(offsets, str) else offsets
            ends = {str(name): {str(int(n)): int(end) for n, end in of.items()} for name, of in given.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise UsageError(
                f'EndOffsets: {offsets!r} is nothing like {{"orders": {{0: 1204, 1: 98}}}}: give the end of each '
                "partition, by topic"
            ) from error
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

    def check_overlapping(self) -> None:
        """Take them: all of them are promised at once."""

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

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        return Promises()  # it depends on what Spark has committed: see `spark_client.counting.livefronts`

    def of_groups(self, groups: Sequence[Group]) -> Promises:  # noqa: ARG002
        return Promises()


def _partitions(positions: Mapping[str, Any], topic: str) -> Mapping[str, int]:
    """Return a source's positions in a topic; of a source that is none of Kafka's there are none."""
    found = positions.get(topic)
    return found if isinstance(found, Mapping) else {}
