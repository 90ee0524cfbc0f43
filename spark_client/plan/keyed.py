"""Declaration of a user's own keyed state: whose code works on it, and what it is called for."""

# ruff: noqa: ARG002, N802, N803 - methods and arguments have the names that Spark gives them

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import TRACKER, schema_of
from spark_client.errors import UsageError, check_faults, check_kind
from spark_client.plan.names import check_apart, check_columns
from spark_client.plan.streams import Stream
from spark_client.windows.substreams import Substreams

OWN_STATES: Final = "tracker_"  #: what the names of this package's own state begin with


class SubstreamKey(NamedTuple):
    """The substream that a processor is called for: its grouping key.

    Attributes:
        scope: of the substream, as text; empty if the source has none.
        name: of the substream, as text; of a window its ISO 8601 interval.
        start: of the window, in UTC, or without a zone over a ``timestamp_ntz``; None: the substream is no window, or
            begins beyond the years 1 to 9999.
        end: the window's end, in the same form.
    """

    scope: str
    name: str
    start: datetime | None
    end: datetime | None

    def __str__(self) -> str:
        return f"the substream {self.name!r} of the scope {self.scope!r}"


class SubstreamEnd(NamedTuple):
    """End of a substream.

    Attributes:
        elements: how many were sent on the segment in all: rows that a step has dropped are among them.
        by_drain: a drain closed it before its sources did: more of it may follow in the next deployment.
        reason: ``COMPLETE``; another (``DEADLINE``, ``EXPIRED``, …) if elements may be missing.
        at: when the tracker found it, in UTC.
    """

    elements: int
    by_drain: bool
    reason: str
    at: datetime | None


class SubstreamProcessor(ABC):
    """Base of what `Tracking.transform_with_state` takes: as Spark's ``StatefulProcessor``, with a method for the end.

    All state that it takes of its handle belongs to one substream, and is removed when that has ended: it clears
    nothing itself. Tasks have copies of the object.

    >>> class Longest(SubstreamProcessor):                                                 # doctest: +SKIP
    ...     def init(self, handle):
    ...         self.longest = handle.getMapState("longest", "carrier string", "delay double")
    ...     def handleInputRows(self, key, rows, timerValues):
    ...         for row in rows:
    ...             known = self.longest.getValue((row.carrier,))
    ...             if known is None or row.delay > known[0]:
    ...                 self.longest.updateValue((row.carrier,), (row.delay,))
    ...         return iter([])
    ...     def handleEnd(self, key, end):
    ...         for (carrier,), (delay,) in self.longest.iterator():
    ...             yield Row(carrier=carrier, delay=delay)
    """

    @abstractmethod
    def init(self, handle: Any) -> None:
        """Take the processor's state, in each task.

        Args:
            handle: gives it, as Spark's ``StatefulProcessorHandle`` does: ``getValueState``, ``getListState``,
                ``getMapState``.
        """
        ...

    @abstractmethod
    def handleInputRows(self, key: SubstreamKey, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Take rows of a substream in.

        Args:
            key: scope, name and times of the substream.
            rows: its rows of a batch, in no order, each once. The first rows of a substream come with its next ones, or
                just before its end: until then it is not certain that they are not late.
            timerValues: as Spark gives it.

        Returns:
            Rows that are results at once; mostly none.
        """
        ...

    @abstractmethod
    def handleEnd(self, key: SubstreamKey, end: SubstreamEnd) -> Iterable[Row]:
        """Make the final rows of a substream, whose state is removed after that.

        Called once for each substream of which a row was taken in.

        Args:
            key: scope, name and times of the substream.
            end: how it has ended.

        Returns:
            Rows with the fields of the output schema.
        """
        ...

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """End a task's work: nothing is to be done unless the processor has opened something."""


@dataclass(frozen=True, eq=False)
class KeyedPlan:
    """Keyed state of a stream.

    Attributes:
        stream: whose rows it is made of.
        processor: the user's object, which tasks call.
        made: the schema of what the processor makes.
        rows: the schema of the rows that it takes.
    """

    stream: Stream
    processor: SubstreamProcessor
    made: T.StructType
    rows: T.StructType

    @property
    def rule(self) -> Substreams:
        """Return how rows fall into substreams."""
        return self.stream.input.rule


def declare(stream: Stream, df: DataFrame, processor: Any, schema: T.StructType | str) -> KeyedPlan:
    """Check a user's declaration.

    Args:
        stream: whose rows it is about.
        schema: of what it makes.
    """
    extends = (
        "give an object of a class of yours that extends spark_client.SubstreamProcessor, which is like Spark's "
        "StatefulProcessor and has a method handleEnd"
    )
    check_kind("the processor of transform_with_state", processor, SubstreamProcessor, extends)
    made = schema_of(schema, "transform_with_state")
    belonging = stream.input.belonging
    front = stream.input.front
    check_faults(
        f"transform_with_state reads {stream.segment!r},",
        (
            belonging is not None and belonging.sets_aside,
            "whose bad rows are set aside: on_bad_rows='quarantine' works with channels and releases. Drop such rows "
            "before source(…), or send them through a channel first",
        ),
        (
            front is not None and front.not_by_tasks,
            f"whose front is {front!r}: keyed state ends with promises that its tasks make, "
            f"{front and front.not_by_tasks}",
        ),
    )
    check_columns(df, "transform_with_state")
    rows = T.StructType([field for field in df.schema.fields if field.name != TRACKER])
    if not rows.fields:
        raise UsageError("transform_with_state: the stream has no columns left for the processor: keep one in select")
    own = stream.input.rule.own
    advice = f"{', '.join(own)} of the substream stand beside the schema: leave them out of it, or call them otherwise"
    check_apart([*own, *made.fieldNames()], df.sparkSession, "transform_with_state", advice)
    copy.copy(processor).init(StateHandle())
    return KeyedPlan(stream, processor, made, rows)


class StateHandle:
    """The handle that a user's processor gets: it refuses state that would go by itself, and remembers what it gives.

    Args:
        handle: Spark's, in a task; None: `init` is tried where the state is declared, and there is no state.
    """

    def __init__(self, handle: Any = None) -> None:
        self._handle = handle
        self._states: list[Any] = []

    def clear(self) -> None:
        """Remove all state of the substream in hand."""
        for state in self._states:
            state.clear()

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> Any:
        return self._given("getValueState", ttlDurationMs, stateName, schema)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: Any = None) -> Any:
        return self._given("getListState", ttlDurationMs, stateName, schema)

    def getMapState(self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: Any = None) -> Any:
        return self._given("getMapState", ttlDurationMs, stateName, userKeySchema, valueSchema)

    def deleteIfExists(self, stateName: str) -> None:
        _check_state(stateName, None)
        if self._handle is not None:
            self._handle.deleteIfExists(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        raise UsageError("a timer guesses when nothing more comes: give the final rows in handleEnd, which is told it")

    def _given(self, method: str, ttl: Any, name: str, *schemas: Any) -> Any:
        _check_state(name, ttl)
        if self._handle is None:
            return None
        state = getattr(self._handle, method)(name, *schemas)
        self._states.append(state)
        return state


def _check_state(name: str, ttl: Any) -> None:
    check_faults(
        f"the state {name!r}",
        (
            ttl is not None,
            f"has ttlDurationMs={ttl}: it would be lost while its substream is open. Leave it out: the state goes when "
            "its substream has ended",
        ),
        (name.startswith(OWN_STATES), f"begins with {OWN_STATES!r}, which is reserved: call it otherwise"),
    )
