"""A release as it is declared: an aggregation by substream and keys. Data, of which the native plans are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.aggregates.aggregate import Aggregate, finished
from spark_client.columns import names_of
from spark_client.plan.streams import Stream
from spark_client.spark_internals.columns import Form
from spark_client.windows.substreams import COMPLETENESS, Substreams

FunctionKind: TypeAlias = Literal["rows", "pandas", "arrow"]
OnOverflow: TypeAlias = Literal["fail", "null"]

REVISION: Final = "revision"  #: the results' column of their revision
FINAL: Final = "final"  #: the results' column by which final ones differ from early ones
KEY_FORMS: Final = "key expressions"  #: the aspect of how keys, and columns that are kept, are computed
AS_OF: Final = "as_of"  #: the results' column with the last batch whose rows may be in them


class FinishedGroup(NamedTuple):
    """Group of a finished substream for which a function is called.

    Attributes:
        scope: of the substream, as text; empty if the source has none.
        name: of the substream, as text; of a window its ISO 8601 interval.
        start: of the window, in UTC, or without a zone over a ``timestamp_ntz``; None: the substream is no window, or
            begins beyond the years 1 to 9999.
        end: the window's end, in the same form.
        keys: the values of the release's keys.
    """

    scope: str
    name: str
    start: datetime | None
    end: datetime | None
    keys: tuple[Any, ...]

    def __str__(self) -> str:
        keys = f", keys {self.keys}" if self.keys else ""
        return f"the substream {self.name!r} of the scope {self.scope!r}{keys}"


@dataclass(frozen=True, eq=False)
class ResultFunction:
    """A function that makes the results of rows, or of other results.

    Attributes:
        kind: what it takes: all rows that have ended in a batch, as a DataFrame, or those of one substream and key at a
            time, as a frame of pandas or a table of Arrow.
        schema: of what it makes: of a DataFrame all results' columns, else those that it adds to the substream's and
            the keys.
    """

    kind: FunctionKind
    function: Callable[..., Any]
    schema: T.StructType

    @property
    def name(self) -> str:
        """Return what errors call it."""
        function: Any = self.function
        try:
            return str(function.__name__)
        except AttributeError:  # an object that can be called
            return repr(function)


@dataclass(frozen=True)
class Measure:
    """One aggregate of the result and the columns that hold its parts."""

    name: str
    aggregate: Aggregate
    parts: tuple[str, ...]
    result: T.DataType
    nullable: bool

    @property
    def number(self) -> int:
        """Its own, in the names of its parts: ``_part_NUMBER_PLACE``."""
        return int(self.parts[0].split("_")[2])

    @property
    def value(self) -> Column:
        """The result, from the merged parts; null, or wrapped, if it has overflowed."""
        result = T.StructField(self.name, self.result, self.nullable)
        return finished(self.aggregate, result, [F.col(part) for part in self.parts])

    @property
    def overflowed(self) -> Column | None:
        """Return whether the value has overflowed; None: it cannot."""
        check = self.aggregate.overflowed
        return None if check is None else check(*map(F.col, self.parts))


@dataclass(frozen=True, eq=False)
class ReleasePlan:
    """An aggregation by substream and keys; or the rows themselves, kept until their substream has ended.

    Attributes:
        keys: the names of the further columns to group by.
        part_schema: of the partial rows that its state is made of.
        revisions: whether what comes after a substream's end can be reopened.
        completeness: whether results have a column of the part of their substream that they are of.
        on_overflow: what a sum or mean becomes that does not fit its type.
        kept: the columns of rows that are kept as they are, by name; then there are no measures.
        function: what makes the results of these, or of the aggregates; None: they are the results.
        forms: of the keys' expressions, and of those of kept columns, by name.
        early: how many microseconds lie at least between two writings of early results; None: there are none.
    """

    stream: Stream
    keys: tuple[str, ...]
    key_columns: tuple[Column, ...]
    measures: tuple[Measure, ...]
    part_schema: T.StructType
    revisions: bool
    completeness: bool
    on_overflow: OnOverflow
    kept: tuple[tuple[str, Column], ...] = ()
    function: ResultFunction | None = None
    early: int | None = None
    forms: Mapping[str, Form | None] = field(default_factory=dict)

    @property
    def rule(self) -> Substreams:
        """Return how rows fall into substreams."""
        return self.stream.input.rule

    @property
    def added(self) -> list[str]:
        """The results' columns that were asked for beside the aggregates."""
        early = [] if self.early is None else [FINAL, AS_OF]
        return [*([REVISION] if self.revisions else []), *([COMPLETENESS] if self.completeness else []), *early]

    @property
    def own(self) -> list[str]:
        """The results' columns that tell their substream: the scope, ``window`` or the name, and the window's level."""
        return self.rule.own

    @property
    def values(self) -> list[str]:
        """The aggregates, or the columns that are kept."""
        return [*(measure.name for measure in self.measures), *(name for name, _ in self.kept)]

    @property
    def columns(self) -> list[str]:
        """Of the results: `own`, the keys, `values` or what a function makes of them, and what is added."""
        if self.function is None:
            return [*self.own, *self.keys, *self.values, *self.added]
        made = self.function.schema.fieldNames()
        return made if self.function.kind == "rows" else [*self.own, *self.keys, *made, *self.added]

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns of the stream's rows that it uses; None: not known."""
        values = [names_of([value for _, value in self.kept]), *(measure.aggregate.reads for measure in self.measures)]
        reads = [names_of(self.key_columns), *values]
        known = [names for names in reads if names is not None]
        return frozenset().union(*known) if len(known) == len(reads) else None

    def described(self) -> dict[str, object]:
        """Return what shapes its state, as plain data."""
        rows = {
            name: f"{name} of each row kept as {self.part_schema[name].dataType.simpleString()}"
            for name, _ in self.kept
        }
        return {
            "keys": {key: self.part_schema[key].dataType.simpleString() for key in self.keys},
            KEY_FORMS: dict(self.forms),
            "aggregates": {**{measure.name: self.kept_as(measure) for measure in self.measures}, **rows},
            "parts": {
                **{self.kept_as(measure): measure.number for measure in self.measures},
                **dict.fromkeys(rows.values(), -1),  # columns of rows have their own names, and no numbers
            },
        }

    def kept_as(self, measure: Measure) -> str:
        """Return what the state keeps of an aggregate: its function, what that is over, and the types of its parts."""
        types = [self.part_schema[part].dataType.simpleString() for part in measure.parts]
        form = [measure.aggregate.form] if measure.aggregate.form else []
        return f"{measure.aggregate.description} kept as {', '.join([*form, *types])}"
