"""A user's keyed state in Spark's own state store: one group for each substream, removed when its end is announced.

The rows of a stream and the tracker's events of its segment are in one input, grouped by substream. A batch has all
events that the batches before it have brought about, so rows that come in one batch with their substream's end, or
after it, are late. But nobody keeps which substreams have ended, which would be a state that never goes. The tracker
knows, and announces it when the batch has been committed. So the first rows of a substream *wait*: they are taken in
with its next rows, or before its end; or they are set aside, as their batch was announced to be late.

This runs in tasks.
"""

# ruff: noqa: N802, N803 - methods and arguments have the names that Spark gives them

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, named
from spark_client.errors import TrackingError, UsageError
from spark_client.plan.keyed import OWN_STATES, KeyedPlan, StateHandle, SubstreamEnd, SubstreamKey
from spark_client.spark_internals.tasks import batch_of
from spark_client.windows.eventtime import datetime_of

try:
    from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]
except ImportError:  # before Spark 4.0: `transform_with_state` is refused
    StatefulProcessor = object  # type: ignore[assignment, misc]

SCOPE, KEY, MADE, LATE = "scope", "key", "made", "late"  #: what comes out: a result of a substream, or a late row of it

_EVENT: Final = "event"
_ROW: Final = "row"
_FIELDS: Final = ("kind", "elements", "by_drain", "reason", "producer", "seq")  #: of an event
_AT_ONCE: Final = 1000  #: rows in one piece of what is waiting


def with_ends(plan: KeyedPlan, rows: DataFrame, events: DataFrame) -> DataFrame:
    """Return what comes of rows and events: `SCOPE` and `KEY`, and either `MADE` or `LATE`.

    Args:
        rows: of the stream, with `_tracker`.
        events: `Ended` and `Late` events of its segment, a batch of which has all that batches before it have caused.
    """
    rule = plan.rule
    event = F.struct(*map(named, _FIELDS), F.unix_micros("at").alias("at"))
    key = F.udf(rule.key_of_name, rule.plain_type)("name")  # events are few, and those of late rows have nothing else
    announced = events.select(
        named("scope").alias(SCOPE), key.alias(KEY), F.lit(None).cast(plan.rows).alias(_ROW), event.alias(_EVENT)
    )
    own = F.struct(*map(named, plan.rows.fieldNames()))
    nothing = F.lit(None).cast(announced.schema[_EVENT].dataType)
    taken = rows.select(
        F.col(f"{TRACKER}.scope").alias(SCOPE), rule.plain(rule.key).alias(KEY), own.alias(_ROW), nothing.alias(_EVENT)
    )
    of = T.StructType().add(SCOPE, "string").add(KEY, taken.schema[KEY].dataType)
    schema = of.add(MADE, plan.made).add(LATE, plan.rows)
    # Without timers and times to live, as no clock shows that nothing more comes.
    return taken.unionByName(announced).groupBy(SCOPE, KEY).transformWithState(_Tracked(plan), schema, "Append", "None")


class _Tracked(StatefulProcessor):
    """Caller of the user's processor for rows not late, and at the end; what it kept is removed then."""

    def __init__(self, plan: KeyedPlan) -> None:
        self._processor = plan.processor
        self._rule = plan.rule
        self._row = Row(*plan.rows.fieldNames())
        self._made = plan.made.fieldNames()

    def init(self, handle: Any) -> None:
        # Since which batch the substream is known, and whether its rows of that batch are waiting.
        self._known = handle.getValueState(f"{OWN_STATES}known", "epoch long, waits boolean")
        self._waiting = handle.getListState(f"{OWN_STATES}waiting", "rows binary")
        self._handle = StateHandle(handle)
        self._processor.init(self._handle)

    def close(self) -> None:
        self._processor.close()

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        scope, at = key
        query, _, epoch = _batch()
        given, events = [], []
        for row in rows:
            if row[_EVENT] is None:
                given.append(_fields(row[_ROW]))
            else:
                events.append(_fields(row[_EVENT]))
        ends = [event for event in events if event["kind"] == "Ended"]
        late = any(event["kind"] == "Late" and event["producer"] == query for event in events)
        known = self._known.get()
        if known is not None and late and known[1] and known[0] < epoch:
            for waiting in self._taken():
                yield Row(scope=scope, key=at, made=None, late=waiting)
            self._known.clear()
            known = None
        substream = self._rule.substream(scope, at)
        shown = SubstreamKey(scope, substream.name, *self._rule.bounds(substream))
        made = _Results(scope, at, self._made)
        if known is not None and ends:
            if known[1]:
                yield from made.of(shown, "handleInputRows", lambda: self._take(shown, self._taken(), timerValues))
            end = _end_of(max(ends, key=lambda event: event["seq"]))
            yield from made.of(shown, "handleEnd", lambda: self._processor.handleEnd(shown, end))
            self._handle.clear()
            self._known.clear()
            known = None
        if not given:
            return
        if known is None or (known[1] and known[0] == epoch):
            self._keep_waiting(given, epoch)
        else:
            first = self._taken() if known[1] else []
            if first:
                self._known.update((epoch, False))
            yield from made.of(shown, "handleInputRows", lambda: self._take(shown, [*first, *given], timerValues))

    def _take(self, key: SubstreamKey, rows: Iterable[dict[str, Any]], timers: Any) -> Iterator[Row]:
        return self._processor.handleInputRows(key, (self._row(*row.values()) for row in rows), timers)

    def _keep_waiting(self, rows: Sequence[dict[str, Any]], epoch: int) -> None:
        self._known.update((epoch, True))
        pieces = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
        self._waiting.appendList([(pickle.dumps(piece),) for piece in pieces])

    def _taken(self) -> list[dict[str, Any]]:
        """Return the rows that were waiting, and do not any more."""
        waiting = [row for (piece,) in self._waiting.get() for row in pickle.loads(bytes(piece))]
        self._waiting.clear()
        return waiting


class _Results:
    """Rows of the operator's output from what a user's method yields."""

    def __init__(self, scope: str, key: Any, names: Sequence[str]) -> None:
        self._scope = scope
        self._key = key
        self._names = names

    def of(self, substream: SubstreamKey, method: str, call: Callable[[], Iterable[Any] | None]) -> Iterator[Row]:
        """Yield what a method makes.

        Raises:
            TrackingError: it fails, or its rows have other fields.
        """
        try:
            for made in call() or ():
                yield Row(scope=self._scope, key=self._key, made=self._fields(made), late=None)
        except Exception as error:
            raise TrackingError(
                f"{method} failed for {substream}: {type(error).__name__}: {error}. Nothing of the batch was "
                "published, and nothing is lost: repair the processor, and start the query again with the same "
                "checkpoint"
            ) from error

    def _fields(self, made: Any) -> dict[str, Any]:
        values = _named_fields(made)
        if values is None:
            if not isinstance(made, tuple) or len(made) != len(self._names):
                raise TypeError(f"a result is a Row, or a tuple, of {', '.join(self._names)}; this is {made!r}")
            return dict(zip(self._names, made, strict=True))
        if missing := [name for name in self._names if name not in values]:
            raise TypeError(f"a result lacks {missing}: it has {list(values)}")
        return {name: values[name] for name in self._names}


def _batch() -> tuple[str, str, int]:
    task = TaskContext.get()
    batch = None if task is None else batch_of(task)
    if batch is None:
        raise UsageError("keyed state has to know its batch: start the query with the tracked writer's start()")
    return batch


def _fields(value: Any) -> dict[str, Any]:
    """Return a struct as Spark gives it: as a row, or as a dictionary, by version."""
    fields: dict[str, Any] = value.asDict(recursive=True) if isinstance(value, Row) else value
    return fields


def _named_fields(made: Any) -> dict[str, Any] | None:
    """Return the fields of what a user has made; None: they have no names."""
    try:
        return _fields(made) if isinstance(made, Row | dict) else None
    except TypeError:  # a row of values alone
        return None


def _end_of(event: dict[str, Any]) -> SubstreamEnd:
    return SubstreamEnd(event["elements"], bool(event["by_drain"]), event["reason"], datetime_of(event["at"]))
