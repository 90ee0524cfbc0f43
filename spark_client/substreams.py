"""How a row names its substream: the scope it belongs to, and a window of its time or a name.

Tracked rows carry one struct column, ``_tracker``, with `scope`, `name`, `end` and `label`. Everything here is native
column arithmetic; names of windows are only written out for the few substreams of a batch, on the driver. This module
must never look at data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.errors import UsageError

TRACKER: Final = "_tracker"  #: the column that tracked rows carry: keep it in every `select`

TRACKER_TYPE: Final = T.StructType(
    [
        T.StructField("scope", T.StringType()),
        T.StructField("name", T.StringType()),
        T.StructField("end", T.TimestampType()),
        T.StructField("label", T.LongType()),
    ]
)

ColumnOrName: TypeAlias = Column | str
Duration: TypeAlias = str | timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}


class Substream(NamedTuple):
    """One substream as the tracker knows it: `end_time` in microseconds since the Unix epoch, or None."""

    scope: str
    name: str
    end_time: int | None


def microseconds(duration: Duration) -> int:
    """A fixed length of time, as Spark writes it (``"1 day"``, ``"1 hour 30 minutes"``) or as a timedelta.

    Raises:
        UsageError: it is not one, or not above zero; months and years have no fixed length.

    >>> microseconds("1 hour 30 minutes") == microseconds(timedelta(minutes=90)) == 5_400_000_000
    True
    """
    if isinstance(duration, timedelta):
        length = duration // timedelta(microseconds=1)
    else:
        parts = re.findall(r"(\d+)\s+([a-z]+?)s?(?=\s|$)", duration.strip().lower().removeprefix("interval").strip())
        if not parts or re.sub(r"\d+\s+[a-z]+|\s", "", duration.lower().replace("interval", "")):
            raise UsageError(f"{duration!r} is not a length of time: write for example '1 day' or '90 minutes'")
        if unknown := [unit for _, unit in parts if unit not in _UNITS]:
            raise UsageError(f"{duration!r}: unit {unknown[0]!r} is not one of {', '.join(_UNITS)}")
        length = sum(int(count) * _UNITS[unit] for count, unit in parts)
    if length <= 0:
        raise UsageError(f"{duration!r} is not above zero")
    return length


def column(value: ColumnOrName) -> Column:
    """A column, given as such or by its name."""
    return F.col(value) if isinstance(value, str) else value


def names_of(values: Iterable[ColumnOrName]) -> frozenset[str] | None:
    """The columns that some columns read, if each is a plain column; None: one is an expression, whose are not known.

    >>> sorted(names_of(["origin", "carrier"]))
    ['carrier', 'origin']
    """
    names = set()
    for value in values:
        plain = re.fullmatch(r"(?:Column<')?(\w+)(?:'>)?", value if isinstance(value, str) else str(value))
        if plain is None:
            return None
        names.add(plain[1])
    return frozenset(names)


@dataclass(frozen=True, slots=True)
class Substreams:
    """The rule by which rows fall into substreams; plain data, so that a channel can keep it beside its rows.

    Attributes:
        scope: the name of the scope's column in results; None: all rows are in the scope ``""``.
        scope_type: its type, as DDL.
        name: the name of the column that names the substream; None: windows do.
        name_type: its type, as DDL.
        length: of the windows, in microseconds; 0: substreams are named.
        offset: at which windows begin, in microseconds after the epoch.
    """

    scope: str | None
    scope_type: str
    name: str | None
    name_type: str
    length: int
    offset: int

    @property
    def windows(self) -> bool:
        """Whether substreams are windows of time."""
        return self.length > 0

    @property
    def keys(self) -> list[str]:
        """The fields of `_tracker` that tell substreams apart."""
        return ["scope", "end" if self.windows else "name"]

    def end_of(self, time: Column) -> Column:
        """The end of the window that a time falls into: a timestamp."""
        micros = F.unix_micros(time.cast("timestamp"))
        return F.timestamp_micros(micros - F.pmod(micros - F.lit(self.offset), F.lit(self.length)) + F.lit(self.length))

    def substream(self, scope: str | None, name: str | None, end: datetime | int | None) -> Substream:
        """What a group's keys name; `end` is a datetime or microseconds."""
        if not self.windows:
            if name is None:
                raise ValueError("a named substream without a name")
            return Substream(scope or "", name, None)
        end_time = end if isinstance(end, int) else micros_of(end)
        return Substream(scope or "", self.window_name(end_time), end_time)

    def window_name(self, end_time: int) -> str:
        """An ISO 8601 interval.

        >>> Substreams(None, "string", None, "string", 86_400_000_000, 0).window_name(1_356_998_400_000_000)
        '2012-12-31T00:00:00Z/2013-01-01T00:00:00Z'
        """
        return f"{_iso(end_time - self.length)}/{_iso(end_time)}"

    def end_micros(self, struct: str = TRACKER) -> Column:
        """The key that tells windows apart, as a number, or the name."""
        return F.unix_micros(F.col(f"{struct}.end")) if self.windows else F.col(f"{struct}.name")

    def result_columns(self, scope: Column, name: Column, end: Column) -> list[Column]:
        """How results show their substream: the scope under its own name, and `window` or the name's column."""
        columns = [] if self.scope is None else [scope.cast(self.scope_type).alias(self.scope)]
        if self.windows:
            start = F.timestamp_micros(F.unix_micros(end) - F.lit(self.length))
            columns.append(F.struct(start.alias("start"), end.alias("end")).alias("window"))
        else:
            columns.append(name.cast(self.name_type).alias(str(self.name)))
        return columns

    def to_json(self) -> dict[str, Any]:
        """For a channel's description."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Substreams:
        """From a channel's description."""
        return cls(**fields)


def micros_of(moment: datetime | None) -> int:
    """Microseconds since the epoch; a naive datetime is local time, as PySpark gives timestamps."""
    if moment is None:
        raise ValueError("a window without an end")
    return (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def declare(
    df: DataFrame,
    scope: ColumnOrName | None,
    window: tuple[ColumnOrName, Duration] | tuple[ColumnOrName, Duration, Duration] | None,
    substream: ColumnOrName | None,
) -> tuple[Substreams, Column, Column, Column]:
    """Resolves a user's declaration against the rows it is for.

    Returns:
        The rule, and the columns `scope`, `name` and `end` of a row.

    Raises:
        UsageError: a column that is not there, a window over something that is no time, both or neither of `window`
            and `substream`.
    """
    if (window is None) == (substream is None):
        raise UsageError(
            "say what a substream is: either window=('time_column', '1 day') or substream='column', not both"
        )
    scope_name, scope_type = (None, "string") if scope is None else _named(df, scope, "scope")
    scope_column = F.lit("") if scope is None else column(scope).cast("string")
    null_time, null_name = F.lit(None).cast("timestamp"), F.lit(None).cast("string")
    if window is not None:
        if not isinstance(window, tuple) or len(window) not in (2, 3):
            raise UsageError(
                "window is ('time_column', '1 day'), or with an offset ('time_column', '1 day', '6 hours')"
            )
        time = window[0]
        _, time_type = _named(df, time, "window")
        if time_type not in ("timestamp", "timestamp_ntz", "date"):
            raise UsageError(f"window={time!r}: a time is a timestamp or a date, not {time_type}")
        length = microseconds(window[1])
        offset = microseconds(window[2]) % length if len(window) == 3 else 0
        rule = Substreams(scope_name, scope_type, None, "string", length, offset)
        return rule, scope_column, null_name, rule.end_of(column(time))
    assert substream is not None
    name, name_type = _named(df, substream, "substream")
    rule = Substreams(scope_name, scope_type, name, name_type, 0, 0)
    return rule, scope_column, column(substream).cast("string"), null_time


def _named(df: DataFrame, value: ColumnOrName, what: str) -> tuple[str, str]:
    """The name and type of a column, once Spark has resolved it."""
    field = resolve(df, value, what)
    return field.name, field.dataType.simpleString()


def resolve(df: DataFrame, value: ColumnOrName, what: str) -> T.StructField:
    """The field that a column gives on these rows.

    Raises:
        UsageError: Spark cannot resolve it.
    """
    try:
        return df.select(column(value)).schema.fields[0]
    except Exception as error:
        available = ", ".join(name for name in df.columns if name != TRACKER)
        raise UsageError(f"{what}={value!r} is not a column of the rows, which have: {available}") from error


def _iso(micros: int) -> str:
    moment = _EPOCH + timedelta(microseconds=micros)
    return moment.isoformat(timespec="microseconds" if moment.microsecond else "seconds").replace("+00:00", "Z")
