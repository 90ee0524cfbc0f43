"""Counts in the rows themselves: each message is one of sixteen, or the first one has how many there are.

The number rides in the report of the batch that brings it, so no driver has to keep it. A drain ends what is open; of
such a substream, the rows that it has released are taken from the number that further rows have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, check_types, column, names_of, resolve
from spark_client.fronts.front import READ_ONCE, Front, GivenCounts, Group, LiveFront, Promises, SourceRows
from spark_client.storage.folder import Folder
from spark_client.windows.belonging import Condition, not_negative
from spark_client.windows.substreams import Substream
from tracker.client import Expected

_NUMBER: Final = "_number"  #: the greatest of a substream's rows in a batch


class InRows(Front):
    """Rows that have how many rows their substream has: see `Schedule.in_rows`."""

    counts = True
    trusts = f"the number that rows have, and that {READ_ONCE}"
    not_by_tasks = "none of which knows what a drain has released: give Schedule a function"

    def __init__(self, number: ColumnOrName, revise: bool) -> None:
        self._number = number
        self.revise = revise

    def __repr__(self) -> str:
        return f"Schedule.in_rows({self._number!r})"

    @property
    def reads(self) -> frozenset[str] | None:
        return names_of([self._number])

    def conditions(self, rows: DataFrame) -> list[Condition]:
        return [not_negative(rows, self._number, repr(self))]

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        number = resolve(source.rows, self._number, repr(self))
        reason = "and a number of rows is an integer: cast it to bigint"
        check_types([number], lambda kind: isinstance(kind, T.IntegralType), repr(self), reason)

    def observed(self) -> None:
        """Ask for aggregates of each substream: each has a number of its own."""

    def values(self) -> dict[str, Column]:
        return {_NUMBER: column(self._number).cast("bigint")}

    def live(self, spark: SparkSession) -> LiveFront:  # noqa: ARG002
        return _LiveInRows(self)


class _LiveInRows(LiveFront):
    """An `InRows` while its query runs."""

    front: InRows
    _given: GivenCounts | None = None

    def begin(self, given: GivenCounts) -> None:
        self._given = given

    def look(self, checkpoint: Folder, epoch: int | None, at_once: bool = False) -> None:
        if self._given is not None:
            self._given.follow()
        super().look(checkpoint, epoch, at_once)

    def of_groups(self, groups: Sequence[Group], epoch: int) -> Promises:  # noqa: ARG002
        released: Mapping[Substream, int] = {} if self._given is None else self._given.released
        name = self.front.name  # a source's front is called as the segment that it feeds
        return Promises(
            expected=[
                Expected(
                    name,
                    name,
                    substream.scope,
                    substream.name,
                    max(0, values[_NUMBER] - released.get(substream, 0)),
                    substream.end_time,
                    self.front.revise,
                )
                for substream, values in groups
                if values[_NUMBER] is not None
            ]
        )
