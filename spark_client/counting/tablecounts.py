"""Counts from a control table of a database."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyspark.sql import SparkSession

from spark_client.counting.countreaders import Found
from spark_client.counting.givenvalues import count_of, when_of
from spark_client.errors import UsageError
from spark_client.plan import timetable
from spark_client.plan.loads import ControlTable


class TableCounts:
    """The counts that a control table has.

    Args:
        front: that is promised, bound to its source.
        spark: the session, in which times are read.
    """

    failing = "the control table cannot be read"

    def __init__(self, front: ControlTable, spark: SparkSession) -> None:
        self._front = front
        self._spark = spark
        self._last: tuple[Any, list[tuple[Any, ...]]] | None = None

    def read(self) -> Found | None:
        """Read it.

        Raises:
            UsageError: its rows are of another form.
        """
        found = self._rows()
        if found == self._last:
            return None
        through, rows = found
        rule = self._front.rule
        place = 0 if rule.scope is None else 1
        listed = []
        for row in rows:
            values = list(row)
            if len(values) > place + 1:
                values[place : place + 2] = [when_of(row[place], rule, repr(self._front)), count_of(row[place + 1])]
            listed.append(values)
        counts = timetable.read(self._spark, listed, rule)
        self._last = found
        return Found(counts, when_of(through, rule, repr(self._front)))

    def _rows(self) -> tuple[Any, list[tuple[Any, ...]]]:
        """Return what the statements return: first how far it is complete, so that a row which that covers is there."""
        connection = self._front.connect()
        try:
            cursor = connection.cursor()
            through = None
            if self._front.through is not None:
                cursor.execute(self._front.through)
                first = cursor.fetchone()
                if first is not None and len(first) != 1:
                    raise UsageError(f"{self._front!r}: through= returns {len(first)} columns: select one time")
                through = None if first is None else first[0]
                connection.rollback()  # else `select` might see no more than `through` did
            cursor.execute(self._front.select)
            return through, [tuple(row) for row in cursor.fetchall()]
        finally:
            with suppress(Exception):
                connection.close()
