"""The rows of a user's schedule, read: how many rows each substream will have, in whatever form times are given.

A time in a schedule is read as the type of the source's time column demands, or refused: never cast on the way, since a
cast goes through the session's time zone and would give a day the count of the day before it. Nothing here
depends on a tracker.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import INTEGERS, check_present, check_types, quoted, session_zone, text_of
from spark_client.errors import UsageError, refused
from spark_client.windows import eventtime
from spark_client.windows.belonging import LONGEST
from spark_client.windows.eventtime import DATE, DAY, INSTANT, WALL, is_zone, midnight_of
from spark_client.windows.substreams import Substream, Substreams, Windows

XOR: Final = "xor"  #: the field of a schedule that has the XOR of identities
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]*")
#: How texts of a type look that need no cast, as they are written as Spark writes them.
_AS_TEXT: Final = {
    "string": re.compile(".*", re.DOTALL),
    "date": re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    **dict.fromkeys(INTEGERS, _WHOLE),
}
_Row = tuple[Any, Any, Any, Sequence[Any]]  #: scope or None, end in microseconds or name, count, what it has beside


def read(spark: SparkSession, expected: DataFrame | Iterable[Sequence[Any]], rule: Substreams) -> dict[Substream, int]:
    """Return the rows that each substream will have.

    Args:
        expected: rows of (scope, when, count), or of (when, count) if the rule has no scope: a DataFrame, or tuples.
            With a time zone as their last column, if each row of the source has its own.
        rule: how the source's rows fall into substreams.

    Raises:
        UsageError: rows of another form, a time that does not fit the source's, a substream twice, a count that is no
            number of rows.
    """
    return {each: count for each, (count, _) in _once(spark, expected, rule).items()}


def read_identified(
    spark: SparkSession, expected: DataFrame | Iterable[Sequence[Any]], rule: Substreams
) -> tuple[dict[Substream, int], dict[Substream, int]]:
    """Return the rows that each substream will have, and the XOR of their identities, as unsigned 64 bits.

    Args:
        expected: as `read` takes them, with the XOR beside: the column ``xor``, or the last value of a tuple.
    """
    due = _once(spark, expected, rule, [XOR])
    return {each: count for each, (count, _) in due.items()}, {
        each: identity_of(xor) for each, (_, [xor]) in due.items()
    }


def _once(
    spark: SparkSession, expected: DataFrame | Iterable[Sequence[Any]], rule: Substreams, fields: Sequence[str] = ()
) -> dict[Substream, tuple[int, Sequence[Any]]]:
    due: dict[Substream, tuple[int, Sequence[Any]]] = {}
    for substream, count, beside in _listed(spark, expected, rule, fields):
        if substream in due:
            raise UsageError(
                f"Schedule names the substream {substream.name!r} of scope {substream.scope!r} twice: give one count"
            )
        due[substream] = count, beside
    return due


def identity_of(xor: Any) -> int:
    """Return an XOR of identities as unsigned 64 bits.

    Raises:
        UsageError: it is no integer of 64 bits, signed or not.

    >>> hex(identity_of(-1))
    '0xffffffffffffffff'
    """
    return _integer(xor, range(-(2**63), 2**64), "the XOR of the identities of rows is an integer of 64 bits") % 2**64


def by_part(
    spark: SparkSession, expected: DataFrame | Iterable[Sequence[Any]], rule: Substreams, fields: Sequence[str]
) -> dict[Substream, list[tuple[int, dict[str, Any]]]]:
    """Return the counts of each substream, each with some fields of its row, such as its part.

    Args:
        fields: columns of a DataFrame; of tuples, their last values.
    """
    due: dict[Substream, list[tuple[int, dict[str, Any]]]] = {}
    for substream, count, values in _listed(spark, expected, rule, fields):
        due.setdefault(substream, []).append((count, dict(zip(fields, values, strict=True))))
    return due


def _listed(
    spark: SparkSession,
    expected: DataFrame | Iterable[Sequence[Any]],
    rule: Substreams,
    fields: Sequence[str] = (),
) -> list[tuple[Substream, int, Sequence[Any]]]:
    """Return the substream and the count of each row, and what it has beside."""
    if isinstance(expected, DataFrame):
        check_present(fields, expected.columns, "Schedule: column")
        own = [each for each in expected.columns if each not in fields]
        rows = _of_table(expected.select(*map(quoted, [*own, *fields])), rule, fields)
    else:
        rows = _of_values(spark, expected, rule, fields)
    listed = []
    for scope, key, count, beside in rows:
        if key is None or (rule.scope is not None and scope is None) or count is None:
            raise UsageError(
                f"Schedule: a row of it ({scope!r}, {key!r}, {count!r}) has a null, or a time more than 73,000 years "
                "from 1970, or a time zone that Spark does not have: drop it, or give it values"
            )
        number = _integer(count, range(2**63), "a count of rows is an integer, 0 or more")
        listed.append((rule.substream(scope, key), number, beside))
    return listed


def _integer(value: Any, within: range, rule: str) -> int:
    with suppress(TypeError):
        if not isinstance(value, bool) and (number := operator.index(value)) in within:
            return number
    raise UsageError(f"Schedule: {rule}, not {value!r}")


def _checked(width: int, rule: Substreams, fields: Sequence[str], columns: object) -> None:
    wanted = [*_columns(rule), *fields]
    if width != len(wanted):
        raise UsageError(f"Schedule takes rows of ({', '.join(wanted)}), not of {width} columns: {columns}")


def _columns(rule: Substreams) -> list[str]:
    """Return what a row of a schedule has."""
    return [*(["scope"] if rule.scope is not None else []), "when", "count", *(["zone"] if rule.zoned else [])]


# ---------------------------------------------------------------- tables


def _of_table(table: DataFrame, rule: Substreams, fields: Sequence[str]) -> list[_Row]:
    _checked(len(table.columns), rule, fields, table.columns)
    # By their places: a name may be there twice, or have a dot.
    beside = [f"_beside_{number}" for number in range(len(fields))]
    named = table.toDF(*_columns(rule), *beside)
    reason = "and a count of rows is an integer: cast it to bigint"
    check_types([named.schema["count"]], lambda kind: isinstance(kind, T.IntegralType), "Schedule", reason)
    scope = F.lit("") if rule.scope is None else _text(named, "scope", rule.scope_type)
    key = rule.scheduled(_Table(named))
    found = named.select(scope, key, F.col("count").cast("bigint"), *beside).collect()
    return [(row[0], row[1], row[2], row[3:]) for row in found]


@dataclass(frozen=True)
class _Table:
    """The column ``when`` of a schedule that is a table."""

    table: DataFrame

    def names(self, kind: str) -> Column:
        return _text(self.table, "when", kind)

    def times(self, rule: Windows) -> Column:
        zone = _zone(rule)
        kind = self.table.schema["when"].dataType.simpleString()
        return rule.plain(rule.key_at(_micros(F.col("when"), kind, rule, zone), zone))


def _zone(rule: Windows) -> Column | None:
    """Return the zone of a schedule's row; null if Spark has none of that name; None: the source's times have no
    zone."""
    if not rule.zoned:
        return rule.zone_of(None)
    given = F.col("zone")
    return rule.zone_of(F.when(is_zone(given), given))


def _micros(when: Column, kind: str, rule: Windows, zone: Column | None) -> Column:
    """Return a schedule's time in microseconds, on the clock of the source's."""
    if kind == rule.time or (rule.time == DATE and kind == INSTANT):
        return eventtime.micros(when, kind)
    if kind == DATE:
        _check_day(rule)
        return F.unix_date(when) * F.lit(DAY) if zone is None else F.unix_micros(midnight_of(when, zone))
    raise UsageError(
        f"Schedule: its times are {kind}, and the source's windows are over {rule.time}: give it {rule.time}, or a "
        "date where windows are days; cast times in the zone that you mean (to_utc_timestamp, convert_timezone)"
    )


def _check_day(rule: Windows) -> None:
    """Check whether a day names a window, on whose clock it is the same everywhere."""
    if not rule.by_day:
        raise UsageError(
            "Schedule: its times are dates, and the source's windows are not whole days from midnight (over timestamp: "
            "in UTC, or of a calendar), so it is not certain which window a day means: give datetimes, with tzinfo "
            "over timestamp"
        )


# ---------------------------------------------------------------- values of Python


def _of_values(
    spark: SparkSession, values: Iterable[Sequence[Any]], rule: Substreams, fields: Sequence[str]
) -> list[_Row]:
    rows = [tuple(row) for row in values]
    for row in rows:
        _checked(len(row), rule, fields, row)
    if not rows:
        return []
    scopes = (
        _texts(spark, [row[0] for row in rows], "scope", rule.scope_type)
        if rule.scope is not None
        else [None] * len(rows)
    )
    own = len(_columns(rule))
    place = _columns(rule).index("when")
    times = [row[place] for row in rows]
    zones = [row[own - 1] if rule.zoned else None for row in rows]
    keys = rule.scheduled(_Values(spark, times, zones))
    return [(scope, key, row[place + 1], row[own:]) for scope, key, row in zip(scopes, keys, rows, strict=True)]


@dataclass(frozen=True)
class _Values:
    """The column ``when`` of a schedule that is values of Python, and the zones of its rows."""

    spark: SparkSession
    when: Sequence[Any]
    zones: Sequence[str | None]

    def names(self, kind: str) -> list[Any]:
        return _texts(self.spark, self.when, "when", kind)

    def times(self, rule: Windows) -> list[Any]:
        known, dates = _known(self.spark, self.when, rule)
        if dates:
            rows = [(place, day, self.zones[place]) for place, day in dates]
            table = self.spark.createDataFrame(rows, "place int, day date, zone string")
            begins = table.select("place", _micros(F.col("day"), DATE, rule, _zone(rule)))
            known |= {row[0]: row[1] for row in begins.collect()}
        keys = rule.keys_at(self.spark, known, self.zones)
        return [keys.get(place) for place in range(len(self.when))]


def _texts(spark: SparkSession, values: Sequence[Any], what: str, kind: str, where: str = "Schedule") -> list[Any]:
    """Values as the texts that the source's rows have for them."""
    text = _AS_TEXT.get(kind)
    if all(value is None or (text and isinstance(value, str) and text.fullmatch(value)) for value in values):
        return list(values)
    with refused(f"{where}: the values of {what!r} are not of one type", f"Give {kind}"):
        table = spark.createDataFrame(list(enumerate(values)), ["place", what])
    return [text for _, text in sorted(table.select("place", _text(table, what, kind, where)).collect())]


def _text(table: DataFrame, name: str, kind: str, where: str = "Schedule") -> Column:
    """Return the text of a scope or name as the source's rows have it, in the source's type.

    Args:
        where: it was given, for messages.

    Raises:
        UsageError: a value is none of that type, or would be rounded to one.
    """
    value, given = F.col(name), table.schema[name].dataType
    if kind == "string" and isinstance(given, T.DecimalType | T.FractionalType):
        raise UsageError(f"{where}: {name!r} is {given.simpleString()}, and the source's is string: give texts")
    typed = value.try_cast(kind)
    unfit = typed.isNull()
    if isinstance(given, T.NumericType) and kind.startswith(("decimal", *INTEGERS)):
        unfit |= typed != value
    if found := table.where(value.isNotNull() & unfit).select(value.cast("string")).take(1):
        raise UsageError(
            f"{where}: {name!r} has {found[0][0]}, of the type {given.simpleString()}, and the source's is {kind}: "
            "give values of that type"
        )
    return text_of(typed, kind)


def _known(spark: SparkSession, times: Sequence[Any], rule: Windows) -> tuple[dict[int, int], list[tuple[int, date]]]:
    """Times in microseconds, on the clock of the source's, by their places; and the dates that begin in some zone."""
    known: dict[int, int] = {}
    dates: list[tuple[int, date]] = []
    naive: list[tuple[int, datetime]] = []
    begin_in_zone = rule.time == DATE or _zone(rule) is not None
    for place, time in enumerate(times):
        if isinstance(time, datetime):
            if rule.time != WALL and time.tzinfo is None:
                naive.append((place, time))
            else:
                known[place] = eventtime.micros_of(time, rule.time)
        elif isinstance(time, date):
            if begin_in_zone:
                dates.append((place, time))
            else:
                _check_day(rule)
                known[place] = (time.toordinal() - date(1970, 1, 1).toordinal()) * DAY
        elif time is not None:
            raise UsageError(
                f"Schedule: {time!r} is no time, and the source's windows are over {rule.time}: give a date or datetime"
            )
    return known | _of_naive(spark, naive), dates


def _of_naive(spark: SparkSession, times: Sequence[tuple[int, datetime]]) -> dict[int, int]:
    """Return the instants of datetimes without a zone, if this process and the session agree on them."""
    if not times:
        return {}
    texts = [(place, time.isoformat(sep=" ")) for place, time in times]
    table = spark.createDataFrame(texts, "place int, time string")
    casted = table.select("place", F.unix_micros(F.col("time").cast(T.TimestampType())))
    in_session: dict[int, int] = {row[0]: row[1] for row in casted.collect()}
    for place, time in times:
        if in_session[place] != eventtime.micros_of(time):
            raise UsageError(
                f"Schedule: {time!r} has no zone, and this process's local time is not the session's "
                f"({session_zone(table)}), so it is not certain which instant it means: give it tzinfo, for example "
                "datetime(2024, 1, 1, tzinfo=UTC)"
            )
    return in_session


def scopes_of(spark: SparkSession, scopes: DataFrame | Iterable[Any], rule: Substreams, where: str) -> tuple[str, ...]:
    """Return scopes as the source's rows have them, each once.

    Args:
        scopes: a DataFrame of one column, or values.
        where: they were given, for messages.

    Raises:
        UsageError: one is of another type than the source's, or none that a row could have.
    """
    if not isinstance(scopes, DataFrame):
        texts = _texts(spark, [*scopes], "scope", rule.scope_type, where)
    elif len(scopes.columns) == 1:
        table = scopes.toDF("scope")
        texts = [row[0] for row in table.select(_text(table, "scope", rule.scope_type, where)).collect()]
    else:
        raise UsageError(f"{where} is a table of one column, the scope, not of {scopes.columns}")
    for text in texts:
        if text is None or text == "*" or len(text.encode()) > LONGEST:
            raise UsageError(f"{where} has {text!r}: a scope is a text of at most {LONGEST} bytes, and not '*'")
    return tuple(dict.fromkeys(texts))


# ---------------------------------------------------------------- texts of files, paths and databases


def count_of(value: Any) -> Any:
    """Return a number of rows: a database's sum, or a CSV file's text, as an integer if it is one; else as it is.

    >>> count_of(Decimal("20")), count_of("20"), count_of(2.5)
    (20, 20, 2.5)
    """
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return int(value) if isinstance(value, str) and value.strip().isdecimal() else value
