"""Substream that a row names: the scope it belongs to, and a window of its time or a name.

`Substreams` is the protocol of all kinds; each kind is a module beside this one, and everything that depends on the
kind is in there. `Windows` is the base of windows of time: a new kind of them has to give the bounds of the window that
a time falls into, and how far these may lie away.

Tracked rows carry one struct column, ``_tracker``, with `scope`, `name`, `end` and `label`. A *key* distinguishes
those of one scope: it is the struct's `name` or its `end`. A *plain* key is the text, or the end in microseconds:
outside of Spark, and in JSON. Everything here is native column arithmetic; names of windows are only written out for
the few substreams of a batch, on the driver. This module must never look at data.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date, datetime
from enum import Enum
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, ColumnOrName
from spark_client.errors import UsageError, refused
from spark_client.windows import eventtime
from spark_client.windows.belonging import MARK, Belonging, Condition, of_time
from spark_client.windows.eventtime import INSTANT

TRACKER_TYPE: Final = (
    T.StructType().add("scope", "string").add("name", "string").add("end", "timestamp").add("label", "long")
)

#: Fields of every description, with their values for kinds that set no other.
_FORM: Final = {
    "scope": None,
    "scope_type": "string",
    "name": None,
    "name_type": "string",
    "length": 0,
    "offset": 0,
    "time": INSTANT,
    "zone": None,
}

COMPLETENESS: Final = "completeness"  #: the results' column that has what of their substream they are of
WHOLE: Final = "_whole"  #: of merged rows: whether they are a result; else they are kept on


class Ability(Enum):
    """Abilities that a kind of substreams may lack: what such substreams cannot do, and what to do instead."""

    CHANNEL = "go to files, a sink or a function: in a channel they would be elements of substreams that may be over"
    EARLY = "are made when they end, so there is nothing to show early: leave early out"
    KEPT = (
        "are aggregated, aggs={'name': F.count('*'), …}, and what is late for them stays in the table of late rows: "
        "columns=[…] and revisions=True are for other windows and named substreams"
    )
    KEYED = "are made by release: give the source a window=(…) or a substream= of which each row has one"
    NAMES = "are not called as a file is: give when='field' of the entries"
    RECEIPTS = "have no receipts: each row is in several at the tracker, whose counts are not those of results"
    THROUGH = "have no time in common up to which all is there: leave through= out, and give counts of all that comes"
    WATERMARK = (
        "have no one window for a row, on one clock, and one watermark is for all: give the source "
        "window=(time, '1 minute'), and let Spark's window or session_window make them"
    )
    ZONE = (
        "have a time zone for each row, which no directory and no manifest has: give Schedule(function), with rows of "
        "(scope, when, count, zone)"
    )


class Substream(NamedTuple):
    """One substream as the tracker knows it: `end_time` in microseconds since the Unix epoch, or None."""

    scope: str
    name: str
    end_time: int | None


class Given(Protocol):
    """The column ``when`` of a schedule's rows, as a table or as values of Python have it."""

    def names(self, kind: str) -> Any:
        """Return the texts of names.

        Args:
            kind: the type of the source's column, as DDL.
        """
        ...

    def times(self, rule: Windows) -> Any:
        """Return the plain keys of the windows that times fall into."""
        ...


@dataclass(frozen=True)
class Kept:
    """The state of a release, where the tracker knows each row as an element of several substreams.

    Attributes:
        parts: where rows are that were not late, of the scopes in which something has ended.
        tracked: the substreams of the tracker that they are elements of.
        ended: which of these have ended: whether by a drain, and whether an earlier drain had ended a part.
        before: likewise, before this batch.
    """

    parts: Mapping[Substream, list[str]]
    tracked: Mapping[Substream, tuple[Substream, ...]]
    ended: Mapping[Substream, tuple[str, bool]]
    before: Mapping[Substream, tuple[str, bool]]
    gone: Set[Substream]
    completeness: bool


@dataclass(frozen=True, order=True)
class RowGroup:
    """Kept rows that results are made of in one way.

    Attributes:
        marks: columns that their merged rows get, with their values.
        level: of the windows that results are, if there are several.
    """

    marks: tuple[tuple[str, bool | str], ...] = ()
    level: int = 0


@dataclass(frozen=True)
class Chosen:
    """The rows that results of a batch are made of.

    Attributes:
        groups: what is kept of them, with its parts.
        counted: of which of these the rows count as released.
        waiting: what has ended, and is kept on.
    """

    groups: Mapping[RowGroup, Mapping[Substream, list[str]]] = field(default_factory=dict)
    counted: Mapping[Substream, list[str]] = field(default_factory=dict)
    waiting: Set[Substream] = frozenset()


def completeness_of(continues: bool, cut: str) -> str:
    """Return what of a substream a result is of: see `Tracking.release`.

    Args:
        continues: whether a drain has released some of it before.
        cut: how it ended before its sources had closed it: ``drained``, ``deadline``, …; empty: it did not.
    """
    return f"{cut} rest".strip() if continues else cut or "whole"


@dataclass(frozen=True, kw_only=True)
class Substreams(ABC):
    """The rule by which rows fall into substreams; plain data, so that a channel can keep it beside its rows.

    Attributes:
        scope: the name of the scope's column in results; None: all rows are in the scope ``""``.
        scope_type: its type, as DDL.
        zone: the session's time zone, if it decides where rows belong; None: it does not.
        marker: the field of a description by which a kind is known again; each kind has its own.
        called: the substreams of this kind, in messages.
        key_field: the field of `_tracker` that distinguishes substreams of a scope.
        plain_type: the type of a plain key, as DDL.
        shared: whether the tracker knows each row as an element of several substreams, see `tracked_as`: what is late
            for one of them is late for all, and rows are kept by what all of them have in common.
        several: whether a row, or a time, is of several windows.
        beside: the columns that partial rows have beside those that were declared, see `parts`.
        marks: the columns of merged rows that `shown` reads, beside the key.
    """

    scope: str | None = None
    scope_type: str = "string"
    zone: str | None = None

    marker: ClassVar[str] = ""
    called: ClassVar[str] = "substreams"
    key_field: ClassVar[Literal["name", "end"]] = "name"
    plain_type: ClassVar[Literal["long", "string"]] = "string"
    shared: ClassVar[bool] = False
    several: ClassVar[bool] = False
    beside: ClassVar[Sequence[str]] = ()
    marks: ClassVar[Sequence[str]] = ()
    lacks: ClassVar[Set[Ability]] = frozenset()

    def __init_subclass__(cls) -> None:
        if "marker" in cls.__dict__:
            _KINDS[cls.marker] = cls

    def require(self, ability: Ability, asks: str) -> None:
        """Refuse what this kind of substreams cannot do.

        Args:
            asks: names who needs it, at the beginning of the message.
        """
        if ability in self.lacks or (self.zoned and ability in (Ability.THROUGH, Ability.WATERMARK, Ability.ZONE)):
            raise UsageError(f"{asks}: {self.called} {ability.value}")

    @property
    def zoned(self) -> bool:
        """Return whether each row has windows in a time zone of its own."""
        return False

    # ---------------------------------------------------------------- of rows

    @property
    def key(self) -> Column:
        """The key of a tracked row."""
        return F.col(f"{TRACKER}.{self.key_field}")

    def tracker(self, scope: Column, key: Column, label: Column) -> Column:
        """Return the column `_tracker`."""
        values = {"scope": scope, self.key_field: key, "label": label}
        empty = {each.name: F.lit(None).cast(each.dataType) for each in TRACKER_TYPE.fields}
        return F.struct(*[value.alias(name) for name, value in {**empty, **values}.items()])

    @property
    def requirement(self) -> Column:
        """The condition that a tracked row, after all steps, belongs to a substream: a batch fails on the first row
        that does not, before it has written anything."""
        belongs = self.key.isNotNull() & F.col(f"{TRACKER}.scope").isNotNull()
        return F.when(belongs, F.lit(True)).otherwise(F.raise_error(F.lit(MARK)).cast("boolean"))

    @abstractmethod
    def conditions(self, df: DataFrame, given: ColumnOrName) -> Iterator[Condition]:
        """Return what has to hold for the time, or the name, of a source's row."""

    def revisable(self, belonging: Belonging) -> Belonging:
        """Return the conditions of a source whose ended substreams may be reopened."""
        return belonging

    def copied(self, rows: DataFrame, key: Column) -> DataFrame:  # noqa: ARG002
        """Return the rows, each as often as it is in windows; a bad row once, since it has to be found."""
        return rows

    def copied_key(self, key: Column) -> Column:
        """Return the key of one of these copies."""
        return key

    @property
    def copy(self) -> list[Column]:
        """The column that distinguishes the copies of a row, until they are tracked; none: there are none."""
        return []

    def derives(self, kind: T.DataType) -> bool:  # noqa: ARG002
        """Return whether keys can be made of the column of the time, or of the name, wherever rows are read."""
        return False

    def derived(self, given: Column) -> Column:
        """Return the key that a row has by that column."""
        raise NotImplementedError

    def derived_values(self, given: pa.Array) -> pa.Array:
        """Return the plain keys that rows in files have by that column."""
        raise NotImplementedError

    # ---------------------------------------------------------------- of times

    @property
    def clock(self) -> str:
        """The type of the times that windows are over: one of `eventtime.TIMES`."""
        return INSTANT

    @property
    def reach(self) -> int:
        """Return how far from a time the substreams that it belongs to begin and end, at most: in microseconds."""
        return 0

    def micros(self, time: Column) -> Column:
        """Return a time as microseconds, on the clock that windows are cut on; null if it is out of range."""
        return self.in_range(eventtime.micros(time, self.clock))

    def in_range(self, micros: Column) -> Column:
        """Return microseconds whose windows begin and end where the tracker takes times; others are null."""
        return F.when(self._near(micros), micros)

    def _near(self, micros: Column) -> Column:
        return micros.between(self.reach - eventtime.LIMIT, eventtime.LIMIT - self.reach)

    def start_of(self, micros: Column) -> Column:
        """Return the start of the window that a time falls into, in microseconds, where rows have no zone of their own;
        one that is out of range stays as it is."""
        return micros

    @abstractmethod
    def scheduled(self, given: Given) -> Any:
        """Return the plain keys of a schedule's rows."""

    @abstractmethod
    def when_of(self, value: Any, where: str) -> Any:
        """Return a substream's name, or a time in its window, as a schedule takes it.

        Args:
            value: as a file, a path or a database has it: what is no text is returned.
            where: it was found, for the message.

        Raises:
            UsageError: it is no time, and substreams are windows.
        """

    # ---------------------------------------------------------------- keys and substreams

    def plain(self, key: Column) -> Column:
        """Return the plain key of a key."""
        return key

    def stored(self, plain: Column) -> Column:
        """Return the key of a plain key."""
        return plain

    def plain_values(self, keys: pa.Array) -> pa.Array:
        """Return the plain keys of keys, in Arrow."""
        return keys

    @abstractmethod
    def substream(self, scope: str | None, key: Any) -> Substream:
        """Return the substream of a plain key.

        Raises:
            ValueError: the key is None.
        """

    def result_of(self, scope: str | None, key: Any, marks: Sequence[Any]) -> Substream:  # noqa: ARG002
        """Return what a result is of, by its plain key and its marks."""
        return self.substream(scope, key)

    @abstractmethod
    def key_of(self, substream: Substream) -> Any:
        """Return the plain key of a substream."""

    def key_of_name(self, name: str) -> Any:
        """Return the plain key of a substream, of its name alone."""
        return name

    def tracked_as(self, substream: Substream) -> tuple[Substream, ...]:
        """Return the substreams of the tracker that rows of one substream are elements of: mostly that one.

        Rows are kept, counted and merged by the smaller one. It has ended when all of these have.
        """
        return (substream,)

    def recuts(self, before: Substreams) -> bool:  # noqa: ARG002
        """Return whether this rule's windows differ from another's in length and offset alone, and may take them
        in."""
        return False

    def takes_over(self, before: Substreams) -> bool:
        """Return whether this rule's windows take in those of another; False: they are the same.

        Raises:
            UsageError: they differ in more than the length and the offset of windows.
        """
        if replace(before, zone=None) == replace(self, zone=None):
            return False
        if not self.recuts(before):
            raise UsageError(
                f"substreams was {before.to_json()}, is {self.to_json()}. Only the length and the offset of windows "
                "may change, not what a substream is; and not of windows that a calendar cuts, or that overlap: start "
                "with a new job, with new checkpoints and new paths for channels"
            )
        return True

    def recut(self, old: Substream) -> Substream:
        """Return the window that takes in one of a rule that this one `recuts`.

        Raises:
            UsageError: none does: it would have to be split.
        """
        raise NotImplementedError

    def recut_key(self, before: Substreams, key: Column) -> Column:
        """Return the key of that window, by the key of one of the rule before."""
        raise NotImplementedError

    @abstractmethod
    def has(self, substream: Substream) -> bool:
        """Return whether a row could be in a substream, as far as its name and end show it."""

    def unlike(self, spark: SparkSession | None, names: Sequence[str]) -> set[str]:  # noqa: ARG002
        """Return which substreams that it `has` by their ends are none by their names."""
        return set()

    @property
    @abstractmethod
    def example(self) -> str:
        """Return the rule's substreams, with an example if they are all alike, for messages."""

    @abstractmethod
    def bounds(self, substream: Substream) -> tuple[datetime | None, datetime | None]:
        """Return where a window begins and ends, as far as a datetime can hold it; None of what is no window."""

    @abstractmethod
    def name_and_end(self, key: Column) -> tuple[Column, Column]:
        """Return the name and the end of a substream, as far as its key has them: a window's name may be null."""

    # ---------------------------------------------------------------- results

    @property
    @abstractmethod
    def labelled(self) -> str:
        """The column of results that has the window or the name."""

    @property
    def keyed_by(self) -> str:
        """Return what of a row its key is made of, for messages."""
        return self.labelled

    @property
    def own(self) -> list[str]:
        """The columns by which results show their substream: the scope, and ``window`` or the name's column."""
        return [*([] if self.scope is None else [self.scope]), self.labelled]

    @abstractmethod
    def shown(self, key: Column) -> list[Column]:
        """Return the columns of `own` beside the scope."""

    def result_columns(self, scope: Column, key: Column) -> list[Column]:
        """Return the columns of `own`."""
        shown = [] if self.scope is None else [scope.cast(self.scope_type).alias(self.scope)]
        return [*shown, *self.shown(key)]

    def check_release(self, rows: DataFrame, keys: Sequence[T.StructField], asks: str) -> None:  # noqa: B027
        """Refuse a release that cannot be made of these substreams.

        Args:
            rows: of the stream that is released, with their columns.
            keys: to group by, beside the substream.
            asks: names the release, for the message.
        """

    # ---------------------------------------------------------------- releases: partial rows are kept by key

    @property
    def parts(self) -> list[Column]:
        """The aggregates that partial rows have beside those that were declared, over tracked rows."""
        return []

    @property
    def merged_parts(self) -> list[Column]:
        """The same aggregates, over partial rows."""
        return []

    def chosen(self, kept: Kept) -> Chosen:
        """Return what results are made of in a batch, where substreams are `shared`."""
        raise NotImplementedError

    def open_groups(
        self,
        kept: Mapping[Substream, list[str]],
        ended: Set[Substream],  # noqa: ARG002
    ) -> Mapping[RowGroup, Mapping[Substream, list[str]]]:
        """Return the rows that results would be made of if all that is kept ended now, without results that are out.

        Args:
            kept: of each open substream, the parts of the state that have rows of it.
            ended: of the tracker's substreams, those that have, where substreams are `shared`.
        """
        return {RowGroup(): kept}

    def regrouped(self, partials: DataFrame, group: RowGroup) -> DataFrame:  # noqa: ARG002
        """Return partial rows of a group, under the keys by which they are merged."""
        return partials

    def made(self, merged: DataFrame, keys: Sequence[str], merge: Sequence[Column]) -> DataFrame:  # noqa: ARG002
        """Return the rows that results are, of the merged rows of all groups.

        Args:
            merged: with the columns of `RowGroup.marks`.
            keys: to group by, beside the substream.
            merge: the aggregates that merge partial rows.

        Returns:
            With a column `WHOLE`, if that is false for rows that are kept on instead.
        """
        return merged

    def finished(self, merged: DataFrame) -> DataFrame:
        """Return merged rows with all columns that `shown` reads."""
        return merged

    # ---------------------------------------------------------------- descriptions

    def to_json(self) -> dict[str, Any]:
        """Return the description that a channel, and a checkpoint, keep."""
        own: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {**_FORM, **own}

    @staticmethod
    def from_json(described: Mapping[str, Any]) -> Substreams:
        """Return the rule of a description.

        Raises:
            UsageError: it is of a kind that is not known here.
        """
        known = {each.name for kind in _KINDS.values() for each in fields(kind)}
        if strange := described.keys() - known - _FORM.keys():
            raise UsageError(
                f"substreams are described by {', '.join(sorted(strange))}, which no kind of windows here has: import "
                "the module of that kind, or go back to the version of this package that wrote the description"
            )
        found = [marker for marker in _KINDS if marker and described.get(marker) not in (None, 0)]
        return _KINDS[found[0] if found else ""].of_json(described)

    @classmethod
    def of_json(cls, described: Mapping[str, Any]) -> Substreams:
        """Return the rule of a description of this kind."""
        return cls(**{each.name: described[each.name] for each in fields(cls) if each.name in described})


_KINDS: Final[dict[str, type[Substreams]]] = {}  #: by their markers


@dataclass(frozen=True, kw_only=True)
class Windows(Substreams):
    """Windows of time. Their key has both bounds: two that end at the same time may have begun at different ones.

    Attributes:
        time: the type of the time that windows are over: one of `eventtime.TIMES`.
    """

    time: str = INSTANT

    lacks = frozenset([Ability.NAMES])
    labelled = "window"
    keyed_by = "the time of the window"

    @property
    def clock(self) -> str:
        return self.time

    @property
    @abstractmethod
    def reach(self) -> int: ...

    @abstractmethod
    def bounds_at(self, micros: Column, zone: Column | None) -> tuple[Column, Column]:
        """Return where the window begins and ends that a time falls into, in microseconds.

        Args:
            micros: the time, in microseconds on the windows' clock.
            zone: of the row, see `zone_of`.
        """

    def zone_of(self, by_row: Column | None) -> Column | None:  # noqa: ARG002
        """Return the time zone whose clocks cut the windows; None: the clock of the times does.

        Args:
            by_row: the column that has the zone, if each row has one of its own.
        """
        return None

    def key_at(self, micros: Column, zone: Column | None) -> Column:
        """Return the key of the window that a time falls into; null if it is out of range.

        It has microseconds: to write names out for each row would take most of a batch's time.
        """
        start, end = (bound.cast("string") for bound in self.bounds_at(micros, zone))
        return F.when(self._near(micros), F.concat(start, F.lit("/"), end))

    def keys_at(self, spark: SparkSession, times: Mapping[int, int], zones: Sequence[str | None]) -> dict[int, Any]:
        """Return the plain keys of the windows that some times fall into.

        Args:
            times: in microseconds, by their places.
            zones: of the rows, at each place.
        """
        rows = [(place, micros, zones[place]) for place, micros in times.items()]
        table = spark.createDataFrame(rows, "place int, micros long, zone string")
        key = self.plain(self.key_at(F.col("micros"), self.zone_of(F.col("zone"))))
        return {row[0]: row[1] for row in table.select("place", key).collect()}

    def start_of(self, micros: Column) -> Column:
        start, _ = self.bounds_at(micros, self.zone_of(None))
        return F.when(self._near(micros), start).otherwise(micros)

    def conditions(self, df: DataFrame, given: ColumnOrName) -> Iterator[Condition]:
        return of_time(df, given, self.reach)

    def scheduled(self, given: Given) -> Any:
        return given.times(self)

    @property
    def by_day(self) -> bool:
        """Return whether a day lies in one window, on whose clock it is the same everywhere."""
        return False

    def when_of(self, value: Any, where: str) -> Any:
        if not isinstance(value, str):
            return value
        unlike = f"{where}: {value!r} is no time in ISO 8601, and the source's substreams are windows"
        with refused(unlike, "Write 2026-03-01, or 2026-03-01T07:00:00Z", ValueError):
            if len(value) == len("2026-03-01"):
                return date.fromisoformat(value)
            return datetime.fromisoformat(f"{value[:-1]}+00:00" if value.endswith("Z") else value)

    def interval(self, start: int, end: int) -> str:
        """Return what the tracker calls a window: an ISO 8601 interval, in UTC, or without a zone if the windows are a
        wall clock's.

        Args:
            start, end: its bounds, in microseconds.
        """
        return f"{eventtime.iso(start, self.time)}/{eventtime.iso(end, self.time)}"

    def span(self, key: Any) -> tuple[int, int]:
        """Return the bounds of the window of a plain key, in microseconds."""
        start, end = map(int, key.split("/"))
        return start, end

    def span_of(self, key: Column) -> tuple[Column, Column]:
        """Return the bounds of the window of a key, in microseconds."""
        start, end = (F.split_part(key, F.lit("/"), F.lit(part)).cast("long") for part in (1, 2))
        return start, end

    def substream(self, scope: str | None, key: Any) -> Substream:
        if key is None:
            raise ValueError("a window without an end")
        start, end = self.span(key)
        return Substream(scope or "", self.interval(start, end), end)

    def key_of(self, substream: Substream) -> Any:
        return f"{eventtime.micros_in(substream.name.partition('/')[0])}/{substream.end_time}"

    def key_of_name(self, name: str) -> Any:
        return self.key_of(Substream("", name, eventtime.micros_in(name.partition("/")[2])))

    def has(self, substream: Substream) -> bool:
        return substream.end_time is not None

    @property
    def example(self) -> str:
        return self.called

    def bounds(self, substream: Substream) -> tuple[datetime | None, datetime | None]:
        assert substream.end_time is not None
        start = eventtime.micros_in(substream.name.partition("/")[0])
        return eventtime.datetime_of(start, self.time), eventtime.datetime_of(substream.end_time, self.time)

    def name_and_end(self, key: Column) -> tuple[Column, Column]:
        start, end = self.span_of(key)
        name = F.concat(eventtime.text(start, self.time), F.lit("/"), eventtime.text(end, self.time))
        return name, F.timestamp_micros(end)

    def shown(self, key: Column) -> list[Column]:
        start, end = (eventtime.moment(micros, self.time) for micros in self.span_of(key))
        return [F.struct(start.alias("start"), end.alias("end")).alias("window")]

    def to_json(self) -> dict[str, Any]:
        described = super().to_json()
        return {**described, "length": described["length"] or self.reach}
