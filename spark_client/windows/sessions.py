"""Sessions by gap: rows of which none is further than the gap from the next one, as with Spark's ``session_window``.

A session's end moves with each of its rows, and what the tracker ends has its name from the start. So time is cut into
steps, and a row of a step is an element of all *stretches* that have the step: each is a gap and a step long, and the
next one begins a step later. Any row that may join another, before or after it, lies in a stretch with it. So a session
has certainly ended as soon as all stretches of its rows have: nothing that could join it is in flight, or will come.

All rows of one key in a step are of one session, since a step is no longer than the gap. So a batch's rows become
partial rows by step and key as in any release, with the first and the last time beside. A chain of ended steps is a
session, and over. Of one that reaches into a step that has not ended, the ended steps are put together and carried on,
so that a long session takes no more room than a short one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, fold, named, resolve, types_in
from spark_client.errors import UsageError, check_faults
from spark_client.spark_internals.plans import is_plain
from spark_client.windows import eventtime, lengths
from spark_client.windows.eventtime import MOMENTS, check_kind_of
from spark_client.windows.fixed import Fixed
from spark_client.windows.lengths import Duration, Length, TimedRows
from spark_client.windows.substreams import (
    COMPLETENESS,
    WHOLE,
    Ability,
    Chosen,
    Kept,
    RowGroup,
    Substream,
    Windows,
    completeness_of,
)

ENDED: Final = "_ended"  #: whether the step of a partial row has
_FIRST, _LAST = "_first", "_last"  #: of a partial row: the times of its rows, in microseconds
_CUT, _BEFORE = "_cut", "_before"  #: of a session: how a step ended too early, and whether a drain had ended one before
_CHAIN, _RUN = "_chain", "_run"
_MOST: Final = 100  #: steps of a gap: each row is an element of one stretch more


@dataclass(frozen=True)
class Session(Length):
    """Sessions by gap, as `session` makes them.

    Attributes:
        gap: the longest pause within a session.
        step: by how much later than it could a session may come out; None: half of the gap.
    """

    gap: Duration
    step: Duration | None

    def windows(self, rows: TimedRows) -> tuple[Windows, Column]:
        time = rows.time
        check_kind_of("session", time, rows.kind, MOMENTS, ", since a date has no gaps below a day")
        check_faults(
            "session:",
            (
                rows.offset is not None,
                "sessions begin with their first row, so there is no offset: window=('at', session(…))",
            ),
            (
                not is_plain(rows.df, time),
                f"{time!r} is an expression, and a release needs the time as a column: give the rows one, with "
                "raw.withColumn('at', …), and window=('at', session(…))",
            ),
        )
        gap, step = self.lengths(rows.df.sparkSession)
        rule = SessionSteps(step, gap=gap, at=resolve(rows.df, time, "window").name, **rows.fields())
        return rule, rule.key_at(rows.micros, None)

    def lengths(self, spark: SparkSession) -> tuple[int, int]:
        """Return the gap and the step, in microseconds."""
        gap = lengths.length(spark, self.gap, "session")
        if self.step is None:
            return gap, gap if gap % 2 else gap // 2
        step = lengths.length(spark, self.step, "session: step")
        if gap % step or gap // step > _MOST:
            raise UsageError(
                f"session({self.gap!r}, step={self.step!r}): the gap has to be a multiple of the step, at most {_MOST} "
                "times as long, since each row is an element of as many stretches of time at the tracker, and one "
                "more: give a half, a third, a tenth of it, or the gap itself"
            )
        return gap, step


def session(gap: Duration, step: Duration | None = None) -> Session:
    """Make sessions: a row belongs to the session of the same scope and keys that it is no further than a gap from.

    They are those of Spark's ``session_window(time, gap)``, grouped by the scope and the keys of the release. A session
    comes out as soon as its source has promised times up to a gap and a step after its last row, or a little sooner.

    Args:
        gap: the longest pause within a session: ``"30 minutes"``, or a timedelta.
        step: how much later than it could a session may come out: the gap, or a half, a third, … of it. Shorter steps
            make more entries in reports, and more state. None: half of the gap.

    >>> tracking.source(raw, "clicks", scope="site", window=("at", session("30 minutes")))   # doctest: +SKIP
    """
    return Session(gap, step)


@dataclass(frozen=True)
class SessionSteps(Fixed):
    """Sessions: rows are kept by steps of time, and the tracker knows the stretches that have them.

    Attributes:
        gap: of sessions, in microseconds.
        at: the column of the time, which is needed after the source.
    """

    gap: int = field(kw_only=True)
    at: str = field(kw_only=True)

    marker = "gap"
    called = "sessions"
    shared = True
    several = True
    beside = (_FIRST, _LAST)
    marks = beside

    lacks = frozenset(Ability) - {Ability.ZONE}

    @property
    def reach(self) -> int:
        return self.length + self.gap

    def check_release(self, rows: DataFrame, keys: Sequence[T.StructField], asks: str) -> None:
        if unfit := [field for field in keys if any(isinstance(each, T.MapType) for each in types_in(field.dataType))]:
            name, kind = unfit[0].name, unfit[0].dataType.simpleString()
            raise UsageError(
                f"keys: sessions are found by sorting, and Spark cannot sort by {name!r}, which is {kind}: give a "
                f"map's entries in their order, F.array_sort(F.map_entries({name!r})).alias({name!r}), or what you "
                "need of it"
            )
        kinds = {field.name: field.dataType.simpleString() for field in rows.schema.fields if field.name != TRACKER}
        same = fold(rows.sparkSession)  # the name is as it was written at the source
        if {same(name): kind for name, kind in kinds.items()}.get(same(self.at)) != self.time:
            raise UsageError(
                f"{asks}: sessions are made of the column {self.at!r}, a {self.time}, and the rows have "
                f"{', '.join(f'{name} {kind}' for name, kind in kinds.items())}: keep it in each select, and in what "
                "is sent into channels"
            )

    @property
    def parts(self) -> list[Column]:
        micros, end = self.micros(named(self.at)), F.unix_micros(self.key)
        changed = F.lit(
            f"the column {self.at!r} of a row is not what its source has tracked it by, and sessions are made of that "
            "time. Nothing of the batch was published: leave the column as it is, put what a step makes of it into "
            "another one, and start the query again with the same checkpoint"
        )
        inside = micros.between(end - F.lit(self.length), end - F.lit(1))
        time = F.when(inside, micros).otherwise(F.raise_error(changed).cast("bigint"))
        return [F.min(time).alias(_FIRST), F.max(time).alias(_LAST)]

    @property
    def merged_parts(self) -> list[Column]:
        return [F.min(_FIRST).alias(_FIRST), F.max(_LAST).alias(_LAST)]

    def shown(self, key: Column) -> list[Column]:  # noqa: ARG002
        start, end = (eventtime.moment(at, self.time) for at in (F.col(_FIRST), F.col(_LAST) + F.lit(self.gap)))
        return [F.struct(start.alias("start"), end.alias("end")).alias("window")]

    def result_of(self, scope: str | None, key: Any, marks: Sequence[Any]) -> Substream:  # noqa: ARG002
        first, last = marks
        return Substream(scope or "", self.interval(first, last + self.gap), last + self.gap)

    def chosen(self, kept: Kept) -> Chosen:
        """Return the steps that are over, of which sessions are made, and the others that may join them."""
        over = {step: parts for step, parts in kept.parts.items() if step in kept.gone}
        newest: dict[str, int] = {}  # by scope: the end of its newest step that is over
        for step in over:
            newest[step.scope] = max(newest.get(step.scope, _end(step)), _end(step))
        groups: dict[RowGroup, dict[Substream, list[str]]] = {}
        for step, parts in kept.parts.items():
            flags = [kept.ended[each] for each in kept.tracked[step]] if kept.completeness and step in over else []
            cut, before = max((cut for cut, _ in flags), default=""), any(after for _, after in flags)
            # A step that begins later than a gap after all that are over joins none of them.
            if step in over or (step.scope in newest and _end(step) <= newest[step.scope] + self.gap):
                marks = ((ENDED, step in over), (_CUT, cut), (_BEFORE, before))
                groups.setdefault(RowGroup(marks), {})[step] = parts
        return Chosen(groups, over)

    def open_groups(
        self,
        kept: Mapping[Substream, list[str]],
        ended: Set[Substream],  # noqa: ARG002
    ) -> Mapping[RowGroup, Mapping[Substream, list[str]]]:
        return {RowGroup(((ENDED, True), (_CUT, ""), (_BEFORE, False))): kept}

    def made(self, merged: DataFrame, keys: Sequence[str], merge: Sequence[Column]) -> DataFrame:
        """Return the sessions that are over, and what has to be carried on of others: chains of rows, none further than
        the gap from the next one."""
        by = ["_scope", *keys]
        ordered = Window.partitionBy(*map(named, by)).orderBy(_FIRST)
        joins = F.col(_FIRST) - F.lag(_LAST).over(ordered) <= F.lit(self.gap)
        begins = F.when(F.coalesce(joins, F.lit(False)), 0).otherwise(1)
        waits = F.when(F.col(ENDED), 0).otherwise(1)
        chained = merged.withColumn(_CHAIN, begins).withColumn(_CHAIN, F.sum(_CHAIN).over(ordered))
        # Rows that are carried on leave the steps that have not ended where they are, on either side.
        chained = chained.withColumn(_RUN, F.sum(waits).over(ordered))
        of_chain = Window.partitionBy(*map(named, by), F.col(_CHAIN))
        chained = chained.withColumn(WHOLE, F.min(ENDED).over(of_chain)).where(ENDED)
        newest, flags = F.max("_key").alias("_key"), [F.max(each).alias(each) for each in (_CUT, _BEFORE)]
        made = chained.groupBy(*map(named, by), _CHAIN, _RUN, WHOLE).agg(newest, *merge, *flags)
        return made.withColumn(f"_{COMPLETENESS}", _completeness())

    def tracked_as(self, substream: Substream) -> tuple[Substream, ...]:
        assert substream.end_time is not None
        bounds = stretches(substream.end_time, self.length, self.gap)
        return tuple(Substream(substream.scope, self.interval(start, end), end) for start, end in bounds)


def stretches(end: int, step: int, gap: int) -> list[tuple[int, int]]:
    """Return the bounds of all stretches that have a step, oldest first.

    >>> stretches(end=60, step=30, gap=30)
    [(0, 60), (30, 90)]
    >>> stretches(end=60, step=15, gap=30)
    [(15, 60), (30, 75), (45, 90)]
    """
    return [(start, start + gap + step) for start in range(end - step - gap, end, step)]


def _completeness() -> Column:
    """Return what of a session a result is of: by the steps that it has."""
    cut = F.col(_CUT)
    rest = F.when(cut == "", F.lit(completeness_of(True, ""))).otherwise(F.concat(cut, F.lit(" rest")))
    return F.when(F.col(_BEFORE), rest).otherwise(F.when(cut == "", F.lit(completeness_of(False, ""))).otherwise(cut))


def _end(step: Substream) -> int:
    assert step.end_time is not None
    return step.end_time
