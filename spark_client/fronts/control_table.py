"""`ControlTable`: counts that a table of a database has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from spark_client.errors import UsageError, check_kind
from spark_client.fronts import timetable
from spark_client.fronts.counts import ByCount, Found, LiveCounts
from spark_client.fronts.front import READ_ONCE, SourceRows
from spark_client.fronts.timetable import count_of
from spark_client.windows.substreams import Ability


class ControlTable(ByCount):
    """A control table of a database: trusts the counts that it has, and the time up to which they are complete.

    Args:
        connect: makes a DB-API 2 connection; called in the driver, at every look.
        select: the statement that returns all rows of (scope, when, count), or of (when, count) if the source has no
            scope. `when` is the substream's name, or a time in its window, as in `Schedule`; a text is one in ISO 8601.
        through: a statement that returns one time, or null: up to its window the counts are complete, and what is not
            among them has no rows. It runs before `select`, so a count that is written together with the time, or
            before it, is not missed.
        revise: another count than before takes its place, while the substream is open; without, it is refused.
        refresh: seconds between two looks at the table.

    >>> import psycopg                                                                        # doctest: +SKIP
    >>> ControlTable(lambda: psycopg.connect(dsn), "select shop, day, orders from control")   # doctest: +SKIP
    """

    trusts = f"the table's counts, and that {READ_ONCE}; with `through`, that nothing else comes up to it"

    def __init__(
        self,
        connect: Callable[[], Any],
        select: str,
        *,
        through: str | None = None,
        revise: bool = False,
        refresh: float = 1.0,
    ) -> None:
        super().__init__(revise, refresh)
        check_kind(
            "ControlTable: connect",
            connect,
            Callable,
            "give a function that makes a connection: lambda: psycopg.connect(dsn)",
        )
        self.connect = connect
        self.select = select
        self.through = through
        self.moves_progress = through is not None

    def __repr__(self) -> str:
        return f"ControlTable({self.select!r})"

    def bind(self, source: SourceRows) -> None:
        super().bind(source)
        if self.through is not None:
            source.rule.require(Ability.THROUGH, repr(self))

    def live(self, spark: SparkSession) -> LiveCounts:
        return _LiveTable(self, spark)


class _LiveTable(LiveCounts):
    """A `ControlTable` while its query runs."""

    front: ControlTable
    failing = "the control table cannot be read"
    _table: tuple[Any, list[tuple[Any, ...]]] | None = None  # as it was read last

    def find(self) -> Found | None:
        found = self._rows()
        if found == self._table:
            return None
        through, rows = found
        rule = self._rule
        place = 0 if rule.scope is None else 1
        listed = []
        for row in rows:
            values = list(row)
            if len(values) > place + 1:
                values[place : place + 2] = [rule.when_of(row[place], repr(self.front)), count_of(row[place + 1])]
            listed.append(values)
        counts = timetable.read(self._spark, listed, rule)
        self._table = found
        return Found(counts, rule.when_of(through, repr(self.front)))

    def _rows(self) -> tuple[Any, list[tuple[Any, ...]]]:
        """Return what the statements return: first how far it is complete, so that a row which that covers is there."""
        connection = self.front.connect()
        try:
            cursor = connection.cursor()
            through = None
            if self.front.through is not None:
                cursor.execute(self.front.through)
                first = cursor.fetchone()
                if first is not None and len(first) != 1:
                    raise UsageError(f"{self.front!r}: through= returns {len(first)} columns: select one time")
                through = None if first is None else first[0]
                connection.rollback()  # else `select` might see no more than `through` did
            cursor.execute(self.front.select)
            return through, [tuple(row) for row in cursor.fetchall()]
        finally:
            with suppress(Exception):
                connection.close()
