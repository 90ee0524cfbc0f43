"""`Schedule`: how many rows each substream will have, told before, while, or after they come.

Nothing is counted here. The source's rows are counted where all rows are, and the tracker closes a substream when as
many were sent as its front expects, whoever gave the number and in whatever order. So what is still missing can be seen
there, of silent tenants, too, and a restart has nothing to find out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession

from spark_client.errors import UsageError
from spark_client.plan import timetable
from spark_client.plan.fronts import Front, GivenCounts, Group, Promises
from spark_client.plan.substreams import Substream, Substreams
from tracker.client import Expected, Frontier

Rows: TypeAlias = DataFrame | Iterable[Sequence[Any]]

_log = logging.getLogger("spark_client")

_AT_ONCE = 10_000  #: numbers in one message
_PATIENCE = 60.0  #: seconds for which the function may fail, before the query does


class Counts(NamedTuple):
    """What a function gives to `Schedule`, or a driver to `Tracking.expect`.

    Attributes:
        rows: of (scope, when, count), or of (when, count) if the source has no scope.
        through: a time up to whose window these, and those given before, are all there will be: what is not among them
            will not come. None: others may follow, of any time.
    """

    rows: Rows
    through: datetime | date | None = None


class Schedule(Front):
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

    counts = True
    moves_progress = True

    def __init__(
        self,
        expected: Rows | Callable[[], Rows | Counts] = (),
        *,
        complete: bool | None = None,
        revise: bool = False,
        refresh: float = 1.0,
    ) -> None:
        if not refresh > 0:
            raise UsageError(f"Schedule: refresh={refresh!r} seconds: has to be above zero")
        self._read = expected if callable(expected) else None
        # A list, since another source may take the same schedule: an iterator gives its rows once.
        listed = () if callable(expected) else expected
        self._expected: Rows = listed if isinstance(listed, DataFrame) else [tuple(row) for row in listed]
        # What `Tracking.expect` gives is given once; a table, or what a function reads, is given again.
        self._remembers = self._read is not None or isinstance(listed, DataFrame) or bool(self._expected)
        self._complete = complete if complete is not None else (self._remembers and self._read is None)
        self._revise = revise
        self._refresh = refresh

    def __repr__(self) -> str:
        return "Schedule(<function>)" if self._read is not None else "Schedule(<table>)"

    def bind(
        self, name: str, rows: DataFrame, rule: Substreams, keys: tuple[Column, Column], time: Column | None
    ) -> None:
        super().bind(name, rows, rule, keys, time)
        self._spark: SparkSession = rows.sparkSession
        self._lock = threading.Lock()
        self._due: dict[Substream, tuple[int, bool]] = {}  # counts that the tracker has not been given yet
        self._through: int | None = None  # likewise
        self._said: int | None = None  # up to where the tracker was told that the counts are complete
        self._known: dict[Substream, int] = {}  # what the function gave last
        self._ledger: GivenCounts | None = None
        self._next = 0.0
        self._failing = float("inf")  # since when the function fails
        if self._read is None:
            self.add(self._expected)

    def add(self, rows: Rows, through: datetime | date | None = None, revise: bool = False) -> None:
        """Takes counts, to be given to the tracker.

        Raises:
            UsageError: rows of another form, a substream twice, a time that does not fit the source's.
        """
        due = timetable.read(self._spark, rows, self.rule)
        ends = [substream.end_time for substream in due if substream.end_time is not None]
        last = max(ends, default=None) if self._complete else None
        if through is not None:
            if not self.rule.windows:
                raise UsageError("through= is a time, and the source's substreams have none: it is for windows")
            row = (through, 0) if self.rule.scope is None else ("", through, 0)
            (window,) = timetable.read(self._spark, [row], self.rule)
            ends.append(window.end_time or 0)
            last = max(ends) if self._complete else window.end_time
        with self._lock:
            self._due.update({substream: (count, revise or self._revise) for substream, count in due.items()})
            if last is not None:
                self._through = last if self._through is None else max(last, self._through)

    def begin(self, given: GivenCounts) -> None:
        """Learns what earlier deployments were given, when the query starts.

        Raises:
            UsageError: substreams that were left out of a table that was complete are given now.
        """
        _refuse(given.too_late(self._due))
        with self._lock:
            given.keep_only(self._due.keys())
            self._due = {each: count for each, count in self._due.items() if self._goes_on(each, given)}
            self._ledger = given

    def _goes_on(self, substream: Substream, ledger: GivenCounts) -> bool:
        """Whether it is not done with already: another deployment has not seen it to its end."""
        return substream not in ledger.done or substream in ledger.taken

    def _missing(self, substream: Substream, count: int) -> int:
        """What is expected of a count now, after what a drain has released of it."""
        return max(0, count - (self._ledger.taken.get(substream, 0) if self._ledger is not None else 0))

    def look(self, at_once: bool = False) -> None:
        """Calls the function, if there is one and it is time.

        Args:
            at_once: it is time.

        Raises:
            UsageError: what it gives is of another form.
        """
        if self._ledger is not None:
            self._ledger.follow()
        if self._read is None or not (at_once or time.monotonic() >= self._next):
            return
        try:
            given = self._read()
        except Exception as error:
            now = time.monotonic()
            self._next, self._failing = now + self._refresh, min(self._failing, now)
            if at_once or now - self._failing > _PATIENCE:
                raise UsageError(f"{self!r}: the function that gives the counts has failed: {error}") from error
            _log.warning("%r: the function that gives the counts has failed, and is called again: %s", self, error)
            return
        self._next, self._failing = time.monotonic() + self._refresh, float("inf")
        found = given if isinstance(given, Counts) else Counts(given)
        rows = found.rows if isinstance(found.rows, DataFrame) else list(found.rows)
        known = timetable.read(self._spark, rows, self.rule)
        news = {substream: count for substream, count in known.items() if self._known.get(substream) != count}
        said = self._said
        left_out = [each for each in news if each not in self._known and each.end_time is not None]
        _refuse([each for each in left_out if said is not None and (each.end_time or 0) <= said])
        self.add([], found.through)
        with self._lock:
            ledger = self._ledger
            for substream, count in news.items():
                if ledger is None or self._goes_on(substream, ledger):
                    self._due[substream] = count, self._revise
            ends = [substream.end_time for substream in known if substream.end_time is not None]
            if self._complete and ends:
                self._through = max(ends) if self._through is None else max(*ends, self._through)
        self._known = known

    def due(self) -> list[Expected | Frontier]:
        """The next promises to be made: counts first, and how far they are complete when all of them are made."""
        with self._lock:
            some = list(self._due.items())[:_AT_ONCE]
            if not some:
                return [] if self._through is None else [Frontier(self.name, self._through, None)]
            if self._ledger is not None and self._remembers:
                self._ledger.give(substream for substream, _ in some)
        return [
            Expected(
                self.name,
                self.name,  # a source's front is called as the segment that it feeds
                substream.scope,
                substream.name,
                self._missing(substream, count),
                substream.end_time,
                revise,
            )
            for substream, (count, revise) in some
        ]

    def promised(self, promises: Sequence[Expected | Frontier]) -> None:
        """The tracker has taken these."""
        with self._lock:
            for promise in promises:
                if isinstance(promise, Frontier):
                    self._said = promise.time
                    if self._through is not None and self._through <= promise.time:
                        self._through = None
                    continue
                substream = Substream(promise.scope, promise.name, promise.end_time)
                count, _ = self._due.get(substream, (-1, False))
                if self._missing(substream, count) == promise.elements:
                    self._due.pop(substream, None)

    def of_observed(self, row: Mapping[str, Any]) -> Promises:  # noqa: ARG002
        with self._lock:
            done = self._due or self._through is None
            return Promises() if done else Promises(frontiers=[Frontier(self.name, self._through or 0, None)])

    def of_groups(self, groups: Sequence[Group]) -> Promises:  # noqa: ARG002
        return self.of_observed({})


def _refuse(missed: Sequence[Substream]) -> None:
    """Substreams of which it was promised that they will not come."""
    if missed:
        raise UsageError(
            f"Schedule: {len(missed)} substreams, such as {missed[0].name} of {missed[0].scope!r}, are given only now, "
            "and the counts given before were said to be complete to a later time, so their rows are late. Take them "
            "out, and give them to the next deployment; and give complete=False, or no through=, if others may follow"
        )
