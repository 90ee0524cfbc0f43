"""`Schedule`: counts that the user gives, in a table, by a function, or by calls, before, while, or after rows come.

Or the rows have them: each message is one of sixteen, or the first one has how many there are. Such a number rides in
the report of the batch that brings it, so no driver has to keep it. A drain ends what is open; of such a substream, the
rows that it has released are taken from the number that further rows have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from functools import reduce
from operator import xor
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import ColumnOrName, check_types, column, names_of, resolve
from spark_client.errors import UsageError
from spark_client.fronts import timetable
from spark_client.fronts.counts import ByCount, Found, HowManyParts, LiveCounts, Parts
from spark_client.fronts.front import READ_ONCE, Front, GivenCounts, Group, LiveFront, Promises, Rows, SourceRows
from spark_client.spark_internals.columns import expression_form
from spark_client.storage.folder import Folder
from spark_client.windows.belonging import Condition, not_negative
from spark_client.windows.substreams import Substream
from tracker.client import IDENTITIES, Expected

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


class Counts(NamedTuple):
    """Counts as a function gives them to `Schedule`.

    Attributes:
        rows: of (scope, when, count), or of (when, count) if the source has no scope.
        through: a time up to whose window these, and those given before, are all there will be: what is not among them
            will not come. None: others may follow, of any time.
    """

    rows: Rows
    through: datetime | date | None = None


class Schedule(ByCount):
    """Counts: how many rows each substream will have.

    A substream is closed with the batch that brings its last row, whatever the order of the rows. It is known from the
    moment its count is given: `tracker substreams` and `explain` show 0 of 20, then 16 of 20.

    Args:
        expected: rows of (scope, when, count), or of (when, count) if the source has no scope: a DataFrame, or a list
            of tuples. `when` is the substream's name, or any time in the window, of the type that the source's time
            column has; a date stands for a day where windows are whole days. Or a function without arguments that gives
            such rows, or `Counts`: all that are known when it is called. It is called when the query starts and then
            every `refresh` seconds, whether or not rows come, so it can read a control file or a table that grows; it
            should be quick, since Spark's commits are followed in the same thread. Without: counts are given by
            `Tracking.expect` while the query runs.
        complete: whether there will be no other substreams up to the last window given. Rows of others then are late,
            and an exact watermark (`with_watermark`) moves. None: yes for a list or a DataFrame, no for a function.
        revise: a count that was given before as another number takes its place, while its substream is open. Without,
            another number is refused.
        part: the column that names the part of a substream which a count is of, such as an uploader; of tuples the last
            value, or the one before the number of parts. `Tracking.expect` gives whole counts.
        parts: how many parts a substream has, their names, or the column that has the number, of which the greatest
            holds. Their counts are added up when all of them are there; a part that comes twice alike is one.
        identity: 64 bits of each row that name it for ever, such as ``F.xxhash64("order_id")``. A count then comes with
            the XOR of those of its rows, after all other values or in the column ``xor``, and a copy cannot stand for
            a missing row. Of what a drain has cut short, the rest is counted only.
        refresh: seconds between two calls of the function.

    >>> Schedule([("JFK", date(2013, 1, 1), 297), ("LGA", date(2013, 1, 1), 240)])             # doctest: +SKIP
    >>> Schedule(lambda: spark.read.csv("/control", schema="shop string, day date, orders int"))  # doctest: +SKIP
    """

    moves_progress = True
    trusts = f"the counts that you give, and that {READ_ONCE}"

    def __init__(
        self,
        expected: Rows | Callable[[], Rows | Counts] = (),
        *,
        complete: bool | None = None,
        revise: bool = False,
        part: str | None = None,
        parts: HowManyParts = None,
        identity: ColumnOrName | None = None,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(revise, refresh)
        self.identity = identity
        if identity is not None:
            self.trusts = "the counts that you give, and the identities of their rows"
            self.needs = IDENTITIES
        self._parts = Parts(part, parts, "Schedule")
        self.read_counts = expected if callable(expected) else None
        # A list, since another source may take the same schedule: an iterator gives its rows once.
        listed = () if callable(expected) else expected
        self._expected: Rows = listed if isinstance(listed, DataFrame) else [tuple(row) for row in listed]
        # Counts of `Tracking.expect` are given once; those of a table or a function are given again.
        self.remembers = callable(expected) or isinstance(listed, DataFrame) or bool(self._expected)
        self.complete = complete if complete is not None else (self.remembers and not callable(expected))

    @staticmethod
    def in_rows(number: ColumnOrName, *, revise: bool = False) -> InRows:
        """Return a front for rows that have how many rows their substream has: each is one of 16, or the first has it.

        Args:
            number: the column; null in rows that do not have it. The greatest of a substream in a batch counts.
            revise: another number in a later batch takes its place, while the substream is open; without, that batch
                fails.

        >>> Schedule.in_rows("parts")
        Schedule.in_rows('parts')
        """
        return InRows(number, revise)

    def __repr__(self) -> str:
        return "Schedule(<function>)" if self.read_counts is not None else "Schedule(<table>)"

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        if self.identity is not None:
            self.identified = expression_form(source.rows, column(self.identity))
        self.table = {}  # of this source alone
        if self.read_counts is None:
            self.table, self.table_identities, _ = self.totals(source.rows.sparkSession, self._expected)
        self._expected = ()  # a table is of the session

    def totals(self, spark: SparkSession, rows: Rows) -> tuple[dict[Substream, int], dict[Substream, int], bool]:
        """Return the counts of substreams of which all parts are there, with the XOR of their rows' identities.

        Returns:
            The counts, the XORs, and whether these are all that rows name.

        Raises:
            UsageError: a part has two counts, or more parts come than were to; or parts are missing of what was said
                to be complete.
        """
        if not self._parts.keys:
            if self.identity is None:
                return timetable.read(spark, rows, self.rule), {}, True
            return *timetable.read_identified(spark, rows, self.rule), True
        counts: dict[Substream, int] = {}
        identities: dict[Substream, int] = {}
        keys = [*self._parts.keys, *([] if self.identity is None else [timetable.XOR])]
        found = timetable.by_part(spark, rows, self.rule, keys)
        for substream, given in found.items():
            by_part: dict[str, tuple[tuple[int, int], int]] = {}
            for count, values in given:
                part, number = self._part(substream, values)
                what = count, 0 if self.identity is None else timetable.identity_of(values[timetable.XOR])
                before, most = by_part.get(part, (what, number))
                if before != what:
                    raise UsageError(
                        f"Schedule: part {part!r} of {substream.name!r} of scope {substream.scope!r} has {before[0]} "
                        f"and {count} rows{', others' if before[0] == count else ''}: give it one count"
                    )
                by_part[part] = what, max(most, number)
            numbers = {part: number for part, (_, number) in by_part.items()}
            if self._parts.are_all(substream, numbers):
                counts[substream] = sum(count for (count, _), _ in by_part.values())
                if self.identity is not None:
                    identities[substream] = reduce(xor, (each for (_, each), _ in by_part.values()))
            elif self.complete:
                raise UsageError(
                    f"Schedule: {substream.name!r} of scope {substream.scope!r} has {sorted(by_part)} of "
                    f"{max(numbers.values())} parts, and its table is complete: add the others, or give complete=False"
                )
        return counts, identities, len(counts) == len(found)

    def _part(self, substream: Substream, values: dict[str, Any]) -> tuple[str, int]:
        if None in values.values():
            raise UsageError(f"Schedule: a row of {substream.name!r} of scope {substream.scope!r} has a null: {values}")
        return self._parts.of(values, "Schedule")

    def live(self, spark: SparkSession) -> LiveCounts:
        return LiveCounts(self, spark) if self.read_counts is None else _LiveFunction(self, spark)


class _LiveFunction(LiveCounts):
    """A `Schedule` of a function while its query runs."""

    front: Schedule
    failing = "the function that gives the counts has failed"

    def find(self) -> Found:
        assert self.front.read_counts is not None
        given = self.front.read_counts()
        counts = given if isinstance(given, Counts) else Counts(given)
        rows = counts.rows if isinstance(counts.rows, DataFrame) else list(counts.rows)
        found, identities, whole = self.front.totals(self._spark, rows)
        # A part that is missing is not covered by `through`.
        return Found(found, counts.through if whole else None, identities)
