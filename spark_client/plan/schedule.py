"""`Schedule`: how many rows each substream will have, told before, while, or after they come.

`ByCount` is what it has in common with fronts that find such numbers by themselves. Nothing is counted here. The
source's rows are counted where all rows are, and the tracker closes a substream when as many were sent as its front
expects, whoever gave the number and in whatever order. So what is still missing can be seen there, of silent tenants,
too, and a restart has nothing to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame

from spark_client.errors import UsageError
from spark_client.plan import timetable
from spark_client.plan.fronts import Front, Promises
from spark_client.windows.substreams import Substream, Substreams

Rows: TypeAlias = DataFrame | Iterable[Sequence[Any]]


class Counts(NamedTuple):
    """What a function gives to `Schedule`, or a driver to `Tracking.expect`.

    Attributes:
        rows: of (scope, when, count), or of (when, count) if the source has no scope.
        through: a time up to whose window these, and those given before, are all there will be: what is not among them
            will not come. None: others may follow, of any time.
    """

    rows: Rows
    through: datetime | date | None = None


class ByCount(Front):
    """Base of fronts that promise how many rows each substream will have.

    Args:
        revise: a count that was given before as another number takes its place, while its substream is open.
        refresh: seconds between two looks at where the counts are.

    Attributes:
        table: counts that are known when the source is declared.
        looks: whether counts are looked for while the query runs.
        remembers: whether what was given is given again by the next start; else it was given once, by a call.
        complete: whether there will be no other substreams up to the last window given.
    """

    counts = True
    moves_progress = False
    looks = True
    remembers = True
    complete = False

    def __init__(self, revise: bool, refresh: float) -> None:
        if not refresh > 0:
            raise UsageError(f"{type(self).__name__}: refresh={refresh!r} seconds: has to be above zero")
        self.revise = revise
        self.refresh = refresh
        self.table: dict[Substream, int] = {}

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        return Promises()  # it depends on what was promised before: see `spark_client.counting.livefronts`


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
        refresh: seconds between two calls of the function.

    >>> Schedule([("JFK", date(2013, 1, 1), 297), ("LGA", date(2013, 1, 1), 240)])             # doctest: +SKIP
    >>> Schedule(lambda: spark.read.csv("/control", schema="shop string, day date, orders int"))  # doctest: +SKIP
    """

    moves_progress = True
    trusts = "the counts that you give, and that no row is read twice"

    def __init__(
        self,
        expected: Rows | Callable[[], Rows | Counts] = (),
        *,
        complete: bool | None = None,
        revise: bool = False,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(revise, refresh)
        self.read_counts = expected if callable(expected) else None
        self.looks = self.read_counts is not None
        # A list, since another source may take the same schedule: an iterator gives its rows once.
        listed = () if callable(expected) else expected
        self._expected: Rows = listed if isinstance(listed, DataFrame) else [tuple(row) for row in listed]
        # What `Tracking.expect` gives is given once; a table, or what a function reads, is given again.
        self.remembers = self.looks or isinstance(listed, DataFrame) or bool(self._expected)
        self.complete = complete if complete is not None else (self.remembers and not self.looks)

    def __repr__(self) -> str:
        return "Schedule(<function>)" if self.read_counts is not None else "Schedule(<table>)"

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        self.table = {}  # of this source alone
        if self.read_counts is None:
            self.table = timetable.read(rows.sparkSession, self._expected, rule)
        self._expected = ()  # a table is of the session
