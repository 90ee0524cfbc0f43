"""What a source can promise: which substreams it will add nothing more to.

A front says which aggregates of a batch it has to see, and turns them into promises that ride in the batch's epoch. It
reads no rows itself and talks to no tracker.

Two ways lead to the aggregates. `observed` ones are global and ride in the pass over the rows that is made anyway.
Where a front needs a figure for each substream, it asks for `grouped` ones, which cost a native aggregation of the
source's rows, unless a release makes that aggregation anyway.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, column, names_of, resolve
from spark_client.errors import UsageError
from spark_client.windows import durations, eventtime
from spark_client.windows.belonging import Condition, partition_within
from spark_client.windows.durations import Duration
from spark_client.windows.substreams import Substream, Substreams
from tracker.client import Finish, Frontier, Report

Group = tuple[Substream, Mapping[str, Any]]  #: a substream of a batch with its aggregates


_OBSERVED: Final = 100  #: marks of a batch that are observed on the way; more are read by an action of their own


@dataclass(slots=True)
class Promises:
    """What a batch lets a source promise."""

    closed: list[Substream] = field(default_factory=list)
    frontiers: list[Frontier] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.closed or self.frontiers)

    def add_to(self, report: Report, front: str) -> None:
        """Put them into the report of the epoch that made them."""
        for frontier in self.frontiers:
            report.frontier(frontier.front, frontier.time, frontier.scope)
        for scope, name, end_time in self.closed:
            report.close(scope, name, end_time, front)


Promiser: TypeAlias = Callable[[Sequence[Group]], Promises]  #: what a front makes of groups; can be pickled


@dataclass(frozen=True)
class _Marked:
    """What `Marks` promises."""

    def __call__(self, groups: Sequence[Group]) -> Promises:
        return Promises(closed=[substream for substream, aggregates in groups if aggregates["_last"]])


@dataclass(frozen=True)
class _Newest:
    """What a `BoundedOutOfOrderness` promises of the newest times.

    Attributes:
        names: of the fronts, one for each partition.
        delay: that is allowed, in microseconds.
        per_scope: whether it promises for each scope by itself.
    """

    names: tuple[str, ...]
    delay: int
    per_scope: bool

    def __call__(self, groups: Sequence[Group]) -> Promises:
        if not self.per_scope:
            return Promises(frontiers=self.frontiers([aggregates for _, aggregates in groups], None))
        by_scope: dict[str, list[Mapping[str, Any]]] = {}
        for substream, aggregates in groups:
            by_scope.setdefault(substream.scope, []).append(aggregates)
        return Promises(frontiers=[f for scope, rows in by_scope.items() for f in self.frontiers(rows, scope)])

    def frontiers(self, rows: Sequence[Mapping[str, Any]], scope: str | None) -> list[Frontier]:
        """Return the times that can be promised for a scope; None: for all."""
        frontiers = []
        for number, name in enumerate(self.names):
            times = [row[f"_newest_{number}"] for row in rows if row[f"_newest_{number}"] is not None]
            if times:
                frontiers.append(Frontier(name, max(max(times) - self.delay, -eventtime.LIMIT), scope))
        return frontiers


def _nothing(groups: Sequence[Group]) -> Promises:  # noqa: ARG001
    """Return what a front promises that no row moves."""
    return Promises()


class Front(ABC):
    """Base of what `Tracking.source(front=…)` takes: each source binds a copy of its own.

    So one object may be given to several sources and several `Tracking`s. What a front learns in `bind` it keeps in
    attributes that `bind` makes, and nothing after that: a bound front is data. What happens to a front while its query
    runs is in `spark_client.counting.livefronts`.

    Attributes:
        moves_progress: whether it promises, from global aggregates alone, times for all scopes, as an exact watermark
            needs them.
        counts: whether its promises are about how many rows there are, so that all have to be counted by substream.
        trusts: words on what has to be true for its ends to be the user's, for receipts.
    """

    moves_progress = False
    counts = False
    trusts = ""

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns that it looks at, beside those that make substreams; None: not known."""
        return frozenset()

    def conditions(self, rows: DataFrame) -> list[Condition]:  # noqa: ARG002 - most need nothing
        """Return what has to hold for a row of the source, beside what its substream asks: see `belonging`."""
        return []

    def check_overlapping(self) -> None:
        """Refuse windows that overlap, if it cannot promise of each which of them it means.

        Raises:
            UsageError: it cannot.
        """
        raise UsageError(
            f"{self!r} names one window by a time, or by a row, and of sliding, session, nested there are several: "
            "use Frontier('10 minutes'), or no front and tracking.finish(source)"
        )

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        """Learn which source it speaks for, before anything flows.

        Args:
            name: the front's.
            rows: the source's.
            rule: how they fall into substreams.
            keys: the scope of a row, and its window's end in microseconds or its substream's name; null in rows that
                belong to no substream.
            time: the column that windows are over, null in such rows, too; None: substreams are named.
        """
        self.name = name
        self.rule = rule
        del rows, keys, time  # for those that need them

    @property
    def names(self) -> list[str]:
        """The fronts of the tracker that it speaks for."""
        return [self.name]

    def finish(self) -> list[Finish]:
        """Return the promise that nothing more will come at all."""
        return [Finish(name) for name in self.names]

    def observed(self) -> dict[str, Column] | None:
        """Return the global aggregates it needs, all null if there was no row; None: it needs `grouped` ones."""
        return {}

    def suffices(self, row: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return whether what was observed of a batch is all that it needs; else it is asked to `read` the batch."""
        return True

    def read(self, rows: DataFrame) -> Mapping[str, Any]:
        """Return what `of_observed` takes, by an action of its own.

        Args:
            rows: of the batch, as the source gives them.
        """
        aggregates = self.observed() or {}
        collected = rows.agg(*[value.alias(name) for name, value in aggregates.items()]).collect()[0]
        return cast(Mapping[str, Any], collected.asDict())

    def values(self) -> dict[str, Column]:
        """Return the values it needs of each row: the greatest of each substream in a batch are what it is asked
        about."""
        return {}

    def grouped(self) -> dict[str, Column]:
        """Return the aggregates it needs of each substream in a batch."""
        return {name: F.max(value) for name, value in self.values().items()}

    @property
    def promiser(self) -> Promiser:
        """What makes promises of `grouped` aggregates, without columns: tasks have no session."""
        return _nothing

    @abstractmethod
    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        """Return the promises that a batch's global aggregates allow."""

    def of_groups(self, groups: Sequence[Group]) -> Promises:
        """Return the promises that a batch's aggregates by substream allow; each `_rows` says how many rows there
        were."""
        return self.promiser(groups)


class ManualFront(Front):
    """A front that promises nothing until it is finished: by `Tracking.finish`, or a drain."""

    moves_progress = True
    trusts = "the call that finished it, or the drain"

    def check_overlapping(self) -> None:
        """Take them: all of them are promised at once."""

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        return Promises()


class Marks(Front):
    """Rows that say they are the last of their substream.

    Args:
        last: a boolean column. A substream is closed with the batch in which a row of it says true.

    >>> Marks("is_last")
    Marks('is_last')
    """

    trusts = "the marked row is not followed by others of its substream in later batches"

    def __init__(self, last: ColumnOrName) -> None:
        self._last = last

    def __repr__(self) -> str:
        return f"Marks({self._last!r})"

    @property
    def reads(self) -> frozenset[str] | None:
        return names_of([self._last])

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        if resolve(rows, self._last, "Marks").dataType.simpleString() != "boolean":
            raise UsageError(f"{self!r}: the column has to be boolean")
        self._keys = keys

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
        return [scope.alias("scope"), key.alias("key")]

    @property
    def _marked(self) -> Column:
        return column(self._last) & self._keys[1].isNotNull()

    def values(self) -> dict[str, Column]:
        return {"_last": column(self._last)}

    def grouped(self) -> dict[str, Column]:
        return {"_last": F.bool_or(column(self._last))}

    @property
    def promiser(self) -> Promiser:
        return _Marked()

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        keys = row.get("keys")
        if keys is None:
            keys = [(mark.get("scope"), mark.get("key")) for mark in json.loads(row["marked"] or "[]")]
        return Promises(closed=[self.rule.substream(scope, key) for scope, key in keys])


class BoundedOutOfOrderness(Front):
    """Time as the rows tell it, with an allowed delay: exported as `Frontier`.

    The source promises that no row will come that is more than `allowed_delay` older than the newest one of its
    partition. That is the guess a watermark makes; the tracker takes it for each partition of the source by itself, and
    the slowest one counts, so that a partition that lags behind loses nothing.

    Args:
        allowed_delay: how much older than the newest row of its partition a row may be: ``"10 minutes"``, a timedelta;
            ``"0 seconds"`` where each partition is in order.
        partition: a column that says which partition of the source a row came from, 0 to `partitions` - 1.
        partitions: how many there are; each is a front of its own.
        per_scope: promise for each scope by itself, by the newest row of that scope: where each tenant's rows come in
            the order of its own clock. Costs an aggregation of the source's rows by substream; such promises do not
            move `Advanced`, since a scope may yet appear.

    >>> BoundedOutOfOrderness("10 minutes", partition="partition", partitions=4).names      # doctest: +SKIP
    ['flights/0', 'flights/1', 'flights/2', 'flights/3']
    """

    trusts = "no row is later than the delay: a guess, as a watermark"

    def __init__(
        self,
        allowed_delay: Duration,
        partition: ColumnOrName | None = None,
        partitions: int = 1,
        per_scope: bool = False,
    ) -> None:
        self._allowed = allowed_delay
        self._delay = 0
        if (partition is None) != (partitions == 1) or partitions < 1:
            raise UsageError("Frontier: give partition='column' and partitions=n (2 or more) together, or neither")
        self._partition = partition
        self._partitions = partitions
        self._per_scope = per_scope
        self.moves_progress = not per_scope

    def check_overlapping(self) -> None:
        """Take them: a time is promised, whatever windows there are."""

    def __repr__(self) -> str:
        return f"Frontier({self._allowed!r}, partitions={self._partitions}, per_scope={self._per_scope})"

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        if time is None:
            raise UsageError("Frontier promises times: the source needs window=('time_column', '1 day')")
        if self._partition is not None:
            resolve(rows, self._partition, "Frontier(partition)")
        if self._per_scope and rule.scope is None:
            raise UsageError("Frontier(per_scope=True) needs a source with a scope")
        self._delay = durations.microseconds(rows.sparkSession, self._allowed, "Frontier's delay")
        if self._delay < 0:
            raise UsageError(f"Frontier's delay {self._allowed!r} is below zero: '0 seconds' is the least")
        self._time = rule.micros(time)

    @property
    def reads(self) -> frozenset[str] | None:
        return names_of([] if self._partition is None else [self._partition])

    def conditions(self, rows: DataFrame) -> list[Condition]:
        if self._partition is None:
            return []
        return [partition_within(rows, self._partition, self._partitions)]

    @property
    def names(self) -> list[str]:
        if self._partition is None:
            return [self.name]
        return [f"{self.name}/{partition}" for partition in range(self._partitions)]

    def observed(self) -> dict[str, Column] | None:
        return None if self._per_scope else self.grouped()

    def values(self) -> dict[str, Column]:
        if self._partition is None:
            return {"_newest_0": self._time}
        partition = column(self._partition)
        return {f"_newest_{number}": F.when(partition == number, self._time) for number in range(self._partitions)}

    @property
    def promiser(self) -> Promiser:
        return self._newest

    @property
    def _newest(self) -> _Newest:
        return _Newest(tuple(self.names), self._delay, self._per_scope)

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        return Promises(frontiers=self._newest.frontiers([row], None))
