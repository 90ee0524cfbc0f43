"""Rows of a source that belong to a substream, and what to do with those that do not.

A row is bad if it cannot be counted under any substream: its scope, name or time is null, or is nothing that the
tracker takes. The conditions are native column arithmetic, made where the source is declared. One bad row must not be
published before it is found: what is in a channel stands, and whoever receives it would fail on it for ever. So a bad
row either fails the batch while it is read (requirement), or never leaves the source (`Belonging.good`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import (
    TRACKER,
    ColumnOrName,
    check_types,
    column,
    is_utf8,
    named,
    quoted,
    resolve,
    text_in_sql,
)
from spark_client.errors import TrackingError
from spark_client.spark_internals.errors import has_text
from spark_client.spark_internals.plans import is_plain
from spark_client.windows.eventtime import is_zone, is_zone_sql

OnBadRows: TypeAlias = Literal["fail", "quarantine"]

LONGEST: Final = 512  #: bytes of a scope or a name, at the tracker
_END_TIMES: Final = 2**61  #: microseconds on either side of 1970 that the tracker takes
_REVISION: Final = "#r[1-9][0-9]*$"
_YEARS: Final = 70_000  #: on either side of year 0: surely within that
BAD_ROWS: Final = "_bad"  #: what the number of a batch's bad rows is called among what is observed of it
MARK: Final = "TRACKER_BAD_ROW"
_SHOWN: Final = 200  #: characters of an example
_SHORT: Final = (T.NumericType, T.BooleanType, T.DateType, T.TimestampType, T.TimestampNTZType)


@dataclass(frozen=True)
class Condition:
    """Condition for a row to be countable.

    Attributes:
        holds: the condition; null counts as false.
        fault: what is wrong with a row for which it does not hold.
        sql: the condition as SQL over the source's rows; None if it is over an expression.
    """

    holds: Column
    fault: str
    sql: str | None


@dataclass(frozen=True)
class Belonging:
    """The conditions of one source.

    Attributes:
        conditions: in the order in which a row's fault is looked for.
        on_bad_rows: what is done with rows for which one does not hold.
    """

    conditions: tuple[Condition, ...]
    on_bad_rows: OnBadRows

    @property
    def sets_aside(self) -> bool:
        """Return whether bad rows are set aside instead of failing the batch."""
        return self.on_bad_rows == "quarantine"

    @property
    def good(self) -> Column:
        """Return whether a row is counted under a substream: never null."""
        good = F.lit(True)
        for condition in self.conditions:
            good = good & condition.holds
        return F.coalesce(good, F.lit(False))

    @property
    def fault(self) -> Column:
        """Return what is wrong with a row, as text; null: nothing."""
        fault: Column = F.lit(None).cast("string")
        for condition in reversed(self.conditions):
            fault = F.when(F.coalesce(condition.holds, F.lit(False)), fault).otherwise(F.lit(condition.fault))
        return fault

    @property
    def number_of_bad(self) -> Column:
        """Return how many rows are bad: an aggregate, null if there was no row."""
        return F.when(F.count("*") > 0, F.count_if(~self.good))

    def guarded(self, value: Column) -> Column:
        """Return a value for good rows only: null in the others, in which it may not even be computable."""
        return F.when(self.good, value)

    def requiring(self, condition: Condition) -> Belonging:
        """Return the same with a condition more, which is known only after the source was declared."""
        return replace(self, conditions=(*self.conditions, condition))

    def faulty(self, rows: DataFrame) -> DataFrame:
        """Return the bad rows of a batch, as JSON: ``data``, ``reason``."""
        data = F.to_json(F.struct(*[named(name) for name in rows.columns if not name.startswith(TRACKER)]))
        return rows.select(data.alias("data"), self.fault.alias("reason")).where("reason is not null")

    def refusal(self, rows: DataFrame, segment: str) -> TrackingError | None:
        """Return the error for the bad rows of a batch; None: it has none.

        Args:
            rows: of the batch, as the source gives them.
        """
        faults = self.faulty(rows).groupBy("reason").agg(F.count("*").alias("rows"), F.min("data").alias("example"))
        by_fault = {row["reason"]: row for row in faults.collect()}
        if not by_fault:
            return None
        listed = "; ".join(
            f"in {by_fault[condition.fault]['rows']} {condition.fault}, such as "
            f"{_shortened(by_fault[condition.fault]['example'])}"
            for condition in self.conditions
            if condition.fault in by_fault
        )
        known = [condition.sql for condition in self.conditions if condition.fault in by_fault]
        kept = " and ".join(sql for sql in known if sql is not None)
        advice = (
            f"raw.where({kept!r})" if None not in known else "raw.where(…), by the expressions that the source is given"
        )
        number = sum(row["rows"] for row in by_fault.values())
        return TrackingError(
            f"{number} rows of segment {segment!r} belong to no substream: {listed}. The batch was not committed, and "
            "nothing of it was published. Start the query again, with the same checkpoint, after one of two repairs: "
            f"drop these rows before they are tracked, {advice}; or have such rows set aside, "
            "source(…, on_bad_rows='quarantine')"
        )


def partition_within(df: DataFrame, value: ColumnOrName, partitions: Sequence[int | str], what: str) -> Condition:
    """Return the condition that a row is of one of the partitions that its source was declared with.

    Args:
        value: the column of the partition's number.
        what: has declared them, for messages.
    """
    field = resolve(df, value, what)
    sql = _sql(df, value)
    called = _called(df, value) if sql else "the partition"
    if not isinstance(partitions, range):
        reason = "and its partitions have names: cast it"
        check_types([field], lambda kind: isinstance(kind, T.StringType), what, reason)
        names = ", ".join(text_in_sql(str(each)) for each in partitions)
        fault = f"{called} is none of the partitions that the front declares"
        return Condition(column(value).isin(*partitions), fault, sql and f"{sql} in ({names})")
    reason = "and its partitions have numbers: cast it to int"
    check_types([field], lambda kind: isinstance(kind, T.IntegralType | T.StringType), what, reason)
    last = len(partitions) - 1
    fault = f"{called} is no partition from 0 to {last}, as the front declares them"
    return Condition(column(value).between(0, last), fault, sql and f"{sql} between 0 and {last}")


def not_negative(df: DataFrame, value: ColumnOrName, what: str) -> Condition:
    """Return the condition that a number of a row is none below 0; it may be null.

    Args:
        what: takes the number, for messages.
    """
    resolve(df, value, what)
    sql = _sql(df, value)
    called = _called(df, value) if sql else "the number"
    holds = F.coalesce(column(value) >= 0, F.lit(True))
    return Condition(holds, f"{called} is negative", sql and f"coalesce({sql} >= 0, true)")


def not_null(df: DataFrame, value: ColumnOrName, what: str) -> Condition:
    """Return the condition that a row has a value, which is an integer.

    Args:
        what: takes the value, for messages.

    Raises:
        UsageError: the rows have no such column, or it is none of integers.
    """
    reason = "and identities of rows are integers: give a bigint, or xxhash64(…)"
    check_types([resolve(df, value, what)], lambda kind: isinstance(kind, T.IntegralType), what, reason)
    sql = _sql(df, value)
    called = _called(df, value) if sql else "the identity"
    return Condition(column(value).isNotNull(), f"{called} is null", sql and f"{sql} is not null")


def no_revision(name: str) -> Condition:
    """Return the condition that a substream is not called as revisions are."""
    sql = f"not {quoted(name)} rlike '{_REVISION}'"
    return Condition(~named(name).rlike(_REVISION), f"{name} is like that of a revision", sql)


def tells_of_bad_rows(error: BaseException) -> bool:
    """Return whether a batch has failed since a row did not meet the requirement."""
    return has_text(error, MARK)


def of_steps(segment: str) -> TrackingError:
    """Return the error for rows that belonged to no substream only after the steps of the stream."""
    return TrackingError(
        f"rows of segment {segment!r} belong to no substream after the steps of the stream: a right or full join makes "
        "rows that come from the other side alone, or a step has changed '_tracker'. The batch was not committed, and "
        "nothing of it was published. Change the step (an inner or left join, or a filter after it), and start the "
        "query again with the same checkpoint"
    )


def of_text(df: DataFrame, value: ColumnOrName, what: str) -> Iterator[Condition]:
    """Yield the conditions for a scope or a name."""
    kind = resolve(df, value, what).dataType
    given, sql = column(value), _sql(df, value)
    called = _called(df, value) if sql else f"the {what}"
    yield Condition(given.isNotNull(), f"{called} is null", sql and f"{sql} is not null")
    if isinstance(kind, _SHORT):
        return
    text = given.cast("string")
    if isinstance(kind, T.StringType | T.BinaryType):
        cast = f"cast({sql} as string)" if isinstance(kind, T.BinaryType) else sql
        yield Condition(is_utf8(text), f"{called} is not UTF-8", sql and f"is_valid_utf8({cast})")
    cast = sql and f"octet_length(cast({sql} as string))"
    if what == "scope":
        fault = f"{called} is longer than {LONGEST} bytes"
        yield Condition(F.octet_length(text) <= LONGEST, fault, cast and f"{cast} <= {LONGEST}")
        fault = f"{called} is '*', which stands for every scope"
        yield Condition(text != "*", fault, sql and f"cast({sql} as string) <> '*'")
    else:
        fault = f"{called} is empty or longer than {LONGEST} bytes"
        yield Condition(F.octet_length(text).between(1, LONGEST), fault, cast and f"{cast} between 1 and {LONGEST}")


def of_time(df: DataFrame, value: ColumnOrName, reach: int) -> Iterator[Condition]:
    """Yield the conditions for the time of a window."""
    kind = resolve(df, value, "window").dataType
    given, sql = column(value), _sql(df, value)
    called = _called(df, value) if sql else "the time"
    yield Condition(given.isNotNull(), f"{called} is null", sql and f"{sql} is not null")
    if isinstance(kind, T.TimestampType):
        most = _END_TIMES - reach
        holds, cast = F.unix_micros(given).between(-most, most), f"unix_micros({sql}) between {-most} and {most}"
    else:
        holds, cast = F.year(given).between(-_YEARS, _YEARS), f"year({sql}) between {-_YEARS} and {_YEARS}"
    yield Condition(holds, f"{called} is out of the tracker's range", sql and cast)


def of_zone(df: DataFrame, value: Column) -> Iterator[Condition]:
    """Yield the conditions for the time zone of a row."""
    sql = _sql(df, value)
    called = _called(df, value) if sql else "the time zone"
    yield Condition(value.isNotNull(), f"{called} is null", sql and f"{sql} is not null")
    yield Condition(is_zone(value), f"{called} is no time zone that Spark has", sql and is_zone_sql(sql))


def _sql(df: DataFrame, value: ColumnOrName) -> str | None:
    """Return a plain column as SQL; None for an expression."""
    return quoted(_called(df, value)) if is_plain(df, value) else None


def _called(df: DataFrame, value: ColumnOrName) -> str:
    return resolve(df, value, "column").name


def _shortened(example: Any) -> str:
    text = str(example)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
