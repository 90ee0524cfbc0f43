"""`Marks`: a row of the source's is marked as the last one of its substream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, check_types, column, names_of, resolve
from spark_client.errors import UsageError
from spark_client.fronts.front import Front, Group, Partitions, Promiser, Promises, SourceRows, silence
from spark_client.windows.belonging import Condition
from spark_client.windows.lengths import Duration

_OBSERVED: Final = 100  #: marks of a batch that are observed on the way; more are read by an action of their own


class Marks(Front):
    """Rows that are marked as the last ones of their substream.

    Args:
        last: a boolean column. A substream is closed with the batch in which it is true in one of its rows.
        partition: the column with the part of the source that a row came from, such as an uploader. Each part marks its
            own last row of a substream, which is closed when all parts have.
        partitions: how many there are, numbered from 0, or their names; each is a front of its own.
        idle_after: a partition that has marked nothing for so long, while others do, is not waited for: what waits for
            nothing else ends as ``idle``, at the next trigger. It is a rule of the job, so all fronts that name it have
            the same length, as ``Tracking(front_idle_after=)``. None: never.

    >>> Marks("is_last")
    Marks('is_last')
    """

    trusts = "the marked row is not followed by others of its substream in later batches"

    def __init__(
        self,
        last: ColumnOrName,
        partition: ColumnOrName | None = None,
        partitions: int | Sequence[str] = 1,
        *,
        idle_after: Duration | None = None,
    ) -> None:
        self._last = last
        self._partitions = Partitions(partition, partitions, "Marks")
        self._idle_after = idle_after
        if idle_after is not None and partition is None:
            raise UsageError("Marks: idle_after= is for partitions: give partition= and partitions=")

    def __repr__(self) -> str:
        parts = "" if self._partitions.column is None else f", partitions={self._partitions.all}"
        idle = "" if self._idle_after is None else f", idle_after={self._idle_after!r}"
        return f"Marks({self._last!r}{parts}{idle})"

    @property
    def reads(self) -> frozenset[str] | None:
        return names_of([self._last, *self._partitions.columns])

    def conditions(self, rows: DataFrame) -> list[Condition]:
        return self._partitions.conditions(rows)

    @property
    def names(self) -> list[str]:
        return self._partitions.names(self.name)

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        last = resolve(source.rows, self._last, "Marks")
        reason = "and has to be boolean: give a condition, such as F.col('what') == 'logout'"
        check_types([last], lambda kind: isinstance(kind, T.BooleanType), repr(self), reason)
        self._keys = source.scope, source.key
        if self._idle_after is not None:
            self.idle_after = silence(source, self._idle_after, "Marks", ["front_idle_after"])

    def observed(self) -> dict[str, Column]:
        # Spark keeps what is observed, in a hundred batches' progress: so these are few, and how many there are.
        # As JSON: what is observed in Spark 4.0 comes to Python without its arrays.
        marked = F.collect_set(F.when(self._marked, F.struct(*self._named)))
        some = F.to_json(F.slice(marked, 1, _OBSERVED))
        read = F.count("*") > 0
        return {"marks": F.when(read, F.size(marked)), "marked": F.when(read, some)}

    def suffices(self, row: Mapping[str, Any]) -> bool:
        return int(row["marks"] or 0) <= _OBSERVED

    def read(self, rows: DataFrame) -> Mapping[str, Any]:
        return {"keys": [tuple(mark) for mark in rows.where(self._marked).select(*self._named).distinct().collect()]}

    @property
    def _named(self) -> list[Column]:
        scope, key = self._keys
        return [scope.alias("scope"), key.alias("key"), self._partitions.of_row.cast("int").alias("part")]

    @property
    def _marked(self) -> Column:
        return column(self._last) & self._keys[1].isNotNull()

    def values(self) -> dict[str, Column]:
        return {f"_last_{number}": last for number, last in enumerate(self._partitions.split(column(self._last)))}

    @property
    def promiser(self) -> Promiser:
        return partial(_marked, self.names)

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        keys = row.get("keys")
        if keys is None:
            marks = json.loads(row["marked"] or "[]")
            keys = [(mark.get("scope"), mark.get("key"), mark.get("part")) for mark in marks]
        names = self.names
        return Promises([(names[part], self.rule.substream(scope, key)) for scope, key, part in keys])


def _marked(names: Sequence[str], groups: Sequence[Group]) -> Promises:
    """Close the substreams of a batch that have a mark, each for the front of the partition that has marked it."""
    numbered = list(enumerate(names))
    return Promises([(name, each) for each, marked in groups for number, name in numbered if marked[f"_last_{number}"]])
