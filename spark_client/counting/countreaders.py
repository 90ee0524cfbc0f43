"""Where counts are found while a query runs, and what a function of the user's gives of them.

A reader is asked every `refresh` seconds, in the thread that follows Spark's commits: so it looks at what is new only,
as far as it can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

from spark_client.plan import timetable
from spark_client.plan.schedule import Counts, Schedule
from spark_client.windows.substreams import Substream


class Found(NamedTuple):
    """What a reader has found.

    Attributes:
        counts: all that are known: those found before are among them, as far as they are still there.
        through: a time up to whose window these are all there will be; None: others may follow.
    """

    counts: Mapping[Substream, int]
    through: datetime | date | None = None


class CountReader(Protocol):
    """Finds counts.

    Attributes:
        failing: what is wrong when `read` fails, for the message.
    """

    @property
    def failing(self) -> str: ...

    def read(self) -> Found | None:
        """Return what is known now; None: nothing has come since the last call.

        Raises:
            UsageError: what is there can be promised by nobody. Any other error passes, or the query fails with it
                after some time.
        """
        ...


class FunctionCounts:
    """Counts that a function of the user's gives.

    Args:
        schedule: that has it.
        spark: the session, in which times are read.
    """

    failing = "the function that gives the counts has failed"

    def __init__(self, schedule: Schedule, spark: SparkSession) -> None:
        assert schedule.read_counts is not None
        self._read = schedule.read_counts
        self._rule = schedule.rule
        self._spark = spark

    def read(self) -> Found:
        """Call it."""
        given = self._read()
        counts = given if isinstance(given, Counts) else Counts(given)
        rows = counts.rows if isinstance(counts.rows, DataFrame) else list(counts.rows)
        return Found(timetable.read(self._spark, rows, self._rule), counts.through)
