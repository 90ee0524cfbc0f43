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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.errors import UsageError
from spark_client.substreams import (
    ColumnOrName,
    Duration,
    Substream,
    Substreams,
    column,
    declare,
    microseconds,
    names_of,
    resolve,
)
from tracker.client import Finish, Frontier, Report, SubstreamStatus

Group = tuple[Substream, Mapping[str, Any]]  #: a substream of a batch with its aggregates


@dataclass(slots=True)
class Promises:
    """What a batch lets a source promise."""

    closed: list[Substream] = field(default_factory=list)
    frontiers: list[Frontier] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.closed or self.frontiers)

    def add_to(self, report: Report, front: str) -> None:
        """Puts them into the report of the epoch that made them."""
        for frontier in self.frontiers:
            report.frontier(frontier.front, frontier.time, frontier.scope)
        for scope, name, end_time in self.closed:
            report.close(scope, name, end_time, front)


class Front(ABC):
    """Base of what `Tracking.source(front=…)` takes. One instance serves one source.

    Attributes:
        moves_progress: whether it promises, from global aggregates alone, times for all scopes, as an exact watermark
            needs them.
    """

    moves_progress = False

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns that it looks at, beside those that make substreams; None: not known."""
        return frozenset()

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        """Learns which source it speaks for, before anything flows.

        Args:
            name: the front's.
            rows: the source's.
            rule: how they fall into substreams.
            keys: the scope of a row, and its window's end in microseconds or its substream's name.
            time: the column that windows are over; None: substreams are named.
        """
        self.name = name
        self.rule = rule
        del rows, keys, time  # for those that need them

    @property
    def names(self) -> list[str]:
        """The fronts of the tracker that it speaks for."""
        return [self.name]

    def finish(self) -> list[Finish]:
        """The promise that nothing more will come at all."""
        return [Finish(name) for name in self.names]

    def observed(self) -> dict[str, Column] | None:
        """The global aggregates it needs, all null if there was no row; None: it needs `grouped` ones."""
        return {}

    def grouped(self) -> dict[str, Column]:
        """The aggregates it needs of each substream in a batch."""
        return {}

    def resume(  # noqa: B027 - most have nothing to learn
        self, segment: str, substreams: Iterable[SubstreamStatus], frontiers: Mapping[str, int]
    ) -> None:
        """Learns where the tracker stands, when a run begins.

        Args:
            segment: the source's.
            substreams: all that the tracker still knows.
            frontiers: what this front has promised, by scope; ``"*"`` for every scope.
        """

    @abstractmethod
    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        """The promises that a batch's global aggregates allow."""

    @abstractmethod
    def of_groups(self, groups: Sequence[Group]) -> Promises:
        """The promises that a batch's aggregates by substream allow; each `_rows` says how many rows there were."""


class Unspoken(Front):
    """A front that promises nothing until it is finished: by `Tracking.finish`, or a drain."""

    moves_progress = True

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        return Promises()

    def of_groups(self, groups: Sequence[Group]) -> Promises:  # noqa: ARG002
        return Promises()


class Marks(Front):
    """Rows that say they are the last of their substream.

    Args:
        last: a boolean column. A substream is closed with the batch in which a row of it says true.

    >>> Marks("is_last")
    Marks('is_last')
    """

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
        scope, key = self._keys
        named = F.struct(scope.alias("scope"), key.alias("key"))
        # As JSON: what is observed in Spark 4.0 comes to Python without its arrays.
        marked = F.to_json(F.collect_set(F.when(column(self._last), named)))
        return {"marked": F.when(F.count("*") > 0, marked)}

    def grouped(self) -> dict[str, Column]:
        return {"_last": F.bool_or(column(self._last))}

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        keys = [(mark.get("scope"), mark.get("key")) for mark in json.loads(row["marked"] or "[]")]
        windows = self.rule.windows
        return Promises(
            closed=[
                self.rule.substream(scope, None if windows else key, key if windows else None) for scope, key in keys
            ]
        )

    def of_groups(self, groups: Sequence[Group]) -> Promises:
        return Promises(closed=[substream for substream, aggregates in groups if aggregates["_last"]])


class Schedule(Front):
    """A timetable: how many rows each substream will have.

    A substream is closed with the batch that brings its last row, whatever the order of the rows. How many have come is
    known again after a restart, since the tracker has counted what was committed. In each scope the front's frontier
    follows the substreams that are complete up to it, and over all scopes the least of them.

    Args:
        expected: rows of (scope, when, count), or of (when, count) if the source has no scope: a DataFrame, or a list
            of tuples. `when` is any time in the window, or the substream's name. It has to be complete: what is not in
            it is never closed by it.

    >>> Schedule([("JFK", date(2013, 1, 1), 297), ("LGA", date(2013, 1, 1), 240)])             # doctest: +SKIP
    """

    def __init__(self, expected: DataFrame | Iterable[Sequence[Any]]) -> None:
        self._expected = expected
        self._due: dict[Substream, int] = {}
        self._seen: dict[Substream, int] = {}
        self._order: dict[str, list[Substream]] = {}
        self._promised: dict[str | None, int] = {}

    def __repr__(self) -> str:
        return f"Schedule(<{len(self._due)} substreams>)"

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        table = self._expected
        if not isinstance(table, DataFrame):
            table = rows.sparkSession.createDataFrame([tuple(row) for row in table])
        width = 2 if rule.scope is None else 3
        if len(table.columns) != width:
            wanted = "(when, count)" if width == 2 else "(scope, when, count)"
            raise UsageError(f"Schedule takes rows of {wanted}, not of {len(table.columns)} columns: {table.columns}")
        *scope, when, count = table.columns
        rule_scope = scope[0] if scope else None
        window = (when, f"{rule.length} microseconds") if rule.windows else None
        _, scope_column, name_column, end_column = declare(table, rule_scope, window, None if rule.windows else when)
        if rule.windows:
            end_column = rule.end_of(F.col(when))
        due = table.select(scope_column, name_column, F.unix_micros(end_column), F.col(count).cast("long")).collect()
        for scope_value, name_value, end_value, rows_due in due:
            substream = rule.substream(scope_value, name_value, end_value)
            if substream in self._due:
                raise UsageError(f"Schedule names the substream {substream.name!r} of scope {substream.scope!r} twice")
            self._due[substream] = int(rows_due)
        for substream in sorted(self._due, key=lambda s: s.end_time or 0):
            self._order.setdefault(substream.scope, []).append(substream)

    def observed(self) -> None:
        return None

    def resume(self, segment: str, substreams: Iterable[SubstreamStatus], frontiers: Mapping[str, int]) -> None:
        self._promised = {None if scope == "*" else scope: time for scope, time in frontiers.items()}
        everywhere = frontiers.get("*", -(2**63))
        self._seen = {
            substream: due
            for substream, due in self._due.items()
            if substream.end_time is not None
            and substream.end_time <= max(everywhere, frontiers.get(substream.scope, everywhere))
        }
        for status in substreams:
            counted = next((account for account in status.segments if account.segment == segment), None)
            if counted is not None:
                substream = Substream(status.scope, status.name, status.end_time)
                self._seen[substream] = self._due.get(substream, 0) if counted.ended else counted.sent

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        raise AssertionError("a schedule counts by substream")

    def of_groups(self, groups: Sequence[Group]) -> Promises:
        promises = Promises()
        for substream, aggregates in groups:
            before = self._seen.get(substream, 0)
            self._seen[substream] = before + int(aggregates["_rows"])
            if substream in self._due and self._complete(substream):
                promises.closed.append(substream)
        if self.rule.windows:
            promises.frontiers = self._advance()
        return promises

    def _complete(self, substream: Substream) -> bool:
        return self._seen.get(substream, 0) >= self._due[substream]

    def _advance(self) -> list[Frontier]:
        """The frontiers that have moved: for each scope up to its first substream that is not complete, and for all."""
        frontiers = []
        reached = []
        for scope, substreams in self._order.items():
            done = 0
            while done < len(substreams) and self._complete(substreams[done]):
                done += 1
            if done == len(substreams):
                time = substreams[-1].end_time
            else:
                time = (substreams[done].end_time or 0) - self.rule.length
            assert time is not None
            reached.append(time)
            frontiers.append(Frontier(self.name, time, scope))
        if reached:
            frontiers.append(Frontier(self.name, min(reached), None))
        moved = [frontier for frontier in frontiers if frontier.time > self._promised.get(frontier.scope, -(2**63))]
        self._promised.update({frontier.scope: frontier.time for frontier in moved})
        return moved


class WithDelay(Front):
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

    >>> WithDelay("10 minutes", partition="partition", partitions=4).names                    # doctest: +SKIP
    ['flights/0', 'flights/1', 'flights/2', 'flights/3']
    """

    def __init__(
        self,
        allowed_delay: Duration,
        partition: ColumnOrName | None = None,
        partitions: int = 1,
        per_scope: bool = False,
    ) -> None:
        text = allowed_delay if isinstance(allowed_delay, str) else ""
        zero = not allowed_delay if not isinstance(allowed_delay, str) else text.strip().split(" ")[0] == "0"
        self._delay = 0 if zero else microseconds(allowed_delay)
        if (partition is None) != (partitions == 1) or partitions < 1:
            raise UsageError("Frontier: give partition='column' and partitions=n (2 or more) together, or neither")
        self._partition = partition
        self._partitions = partitions
        self._per_scope = per_scope
        self.moves_progress = not per_scope

    def __repr__(self) -> str:
        return f"Frontier({self._delay} microseconds, partitions={self._partitions}, per_scope={self._per_scope})"

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
        self._time = time.cast("timestamp")

    @property
    def reads(self) -> frozenset[str] | None:
        return names_of([] if self._partition is None else [self._partition])

    @property
    def names(self) -> list[str]:
        if self._partition is None:
            return [self.name]
        return [f"{self.name}/{partition}" for partition in range(self._partitions)]

    def observed(self) -> dict[str, Column] | None:
        return None if self._per_scope else self.grouped()

    def grouped(self) -> dict[str, Column]:
        if self._partition is None:
            return {"_newest_0": F.unix_micros(F.max(self._time))}
        partition = column(self._partition)
        newest = {
            f"_newest_{number}": F.unix_micros(F.max(F.when(partition == number, self._time)))
            for number in range(self._partitions)
        }
        outside = F.max(F.when(~partition.between(0, self._partitions - 1) | partition.isNull(), F.lit(1)))
        return {**newest, "_outside": outside}

    def of_observed(self, row: Mapping[str, Any]) -> Promises:
        return Promises(frontiers=self._frontiers([row], None))

    def of_groups(self, groups: Sequence[Group]) -> Promises:
        if not self._per_scope:
            return Promises(frontiers=self._frontiers([aggregates for _, aggregates in groups], None))
        by_scope: dict[str, list[Mapping[str, Any]]] = {}
        for substream, aggregates in groups:
            by_scope.setdefault(substream.scope, []).append(aggregates)
        return Promises(frontiers=[f for scope, rows in by_scope.items() for f in self._frontiers(rows, scope)])

    def _frontiers(self, rows: Sequence[Mapping[str, Any]], scope: str | None) -> list[Frontier]:
        if any(row.get("_outside") for row in rows):
            raise UsageError(
                f"Frontier: rows have a partition outside 0 to {self._partitions - 1}: declare partitions= as many as "
                "the source has"
            )
        frontiers = []
        for number, name in enumerate(self.names):
            times = [row[f"_newest_{number}"] for row in rows if row[f"_newest_{number}"] is not None]
            if times:
                frontiers.append(Frontier(name, max(times) - self._delay, scope))
        return frontiers
