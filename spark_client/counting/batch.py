"""One batch: what is counted of its rows, where and by which aggregation, and what is reported of it in its epoch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.columns import TRACKER
from spark_client.counting.groups import add_groups, by_substream
from spark_client.counting.probes import TaskReports
from spark_client.errors import TrackingError
from spark_client.fronts.front import Group, LiveFront
from spark_client.plan.batches import BatchId, Counted, SetAside
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.streams import Stream
from spark_client.spark_internals.observations import observed
from spark_client.spark_internals.plans import passed_on, reads_whole
from spark_client.windows.belonging import BAD_ROWS, of_steps, tells_of_bad_rows
from spark_client.windows.substreams import Substreams
from tracker.client import Event, Report

_log = logging.getLogger("spark_client")


@dataclass(frozen=True)
class CountingPlan:
    """The counting of one query.

    Attributes:
        received: the rows come from a channel, so the rows received of each substream are reported.
        stepped: steps lie between where rows are received and what is done with them.
        counts_all: all rows are counted before any step: the front's promises are about how many rows there are, or
            the source was declared so.
        xor: the XOR of the labels is asked for, whatever the tracker needs.
        labels: what the rows give rise to needs their labels.
        observed: the aggregates that the front needs of all rows of a batch, by name; None: it needs `grouped` ones.
        grouped: the aggregates that the front needs of each substream in a batch, by name.
    """

    received: bool
    aggregated: bool
    stepped: bool
    counts_all: bool
    xor: bool
    labels: bool
    observed: Mapping[str, Column] | None
    grouped: Mapping[str, Column]

    @classmethod
    def of(cls, stream: Stream, released: bool, sends: bool, xor: bool, aggregated: bool | None = None) -> CountingPlan:
        """Return the plan for a query.

        Args:
            released: whether a release takes its rows in.
            xor: whether the XOR of the labels is asked for, whatever the tracker needs.
            aggregated: whether the release aggregates them by substream; None: as `released`.
        """
        aggregated = released if aggregated is None else aggregated
        front, received, stepped = stream.input.front, stream.input.direction == "received", bool(stream.steps)
        observed: Mapping[str, Column] | None = {}
        if front is not None:
            # A release without steps makes the aggregation by substream anyway, which costs the front nothing more.
            observed = None if aggregated and not stepped else front.observed()
        return cls(
            received=received,
            aggregated=aggregated,
            stepped=stepped,
            counts_all=stream.input.counted or (front is not None and front.counts),
            xor=xor,
            labels=(sends and not released) or xor or received or stream.input.deduplicate,
            observed=observed,
            grouped=front.grouped() if front is not None and observed is None else {},
        )

    @property
    def in_release(self) -> bool:
        """Return whether what has to be counted can be counted by the release's own aggregation."""
        return self.aggregated and not self.stepped

    @property
    def by_substream(self) -> bool:
        """Return whether rows have to be counted by substream as they were received, before any step."""
        return self.observed is None or self.counts_all or self.received

    @property
    def xor_by_substream(self) -> bool:
        """Return whether the XOR of the labels has to be counted, too."""
        return self.xor or self.received


class BatchRows(NamedTuple):
    """The rows of one batch, before anything is done to them.

    Attributes:
        read: all that the query has read.
        rows: those that go on, as the stream's input gives them.
        unique: drops copies from them, once they are tracked.
    """

    name: BatchId
    read: DataFrame
    rows: DataFrame
    unique: Callable[[DataFrame], DataFrame]


class BatchInput:
    """The rows of one batch, and what is to be reported of them.

    Args:
        front: of its source; None: the rows come from a channel.
        tasks: report what the driver does not need; None: the driver reports all.
        running: gives the query whose batch it is, once that is known.
        reads_all: whether what is done with the rows reads all of them.
    """

    def __init__(
        self,
        stream: Stream,
        plan: CountingPlan,
        front: LiveFront | None,
        batch: BatchRows,
        tasks: TaskReports | None,
        running: Callable[[], StreamingQuery | None],
        reads_all: bool = True,
    ) -> None:
        self.plan = plan
        self._tasks = tasks
        self._running = running
        self._input = stream.input
        self._front = front
        self._raw = batch.rows
        self._everything = partial(stream.input.all_rows, batch.read)
        name = self._name = batch.name
        tracked = stream.input.tracked(batch.rows, name.query, name.epoch, plan.labels)
        self._entered = batch.unique(tracked)
        passing = stream.apply(self._entered)
        self._output_reads_all, self._stepped = reads_all, passing if stream.steps else None
        sure = plan.received and not stream.steps  # the sender has seen to it that all belong to a substream
        self.rows = passing if sure else stream.required(passing)

    @cached_property
    def _reads_all(self) -> bool:
        """Return whether all rows are read. Spark optimizes a plan for the answer: ask only where it counts."""
        return self._output_reads_all and (self._stepped is None or reads_whole(self._entered, self._stepped))

    @property
    def layout(self) -> DerivedLayout | None:
        """The layout whose key columns name each row's substream, if it is certain that no step has changed them."""
        layout = self._input.layout
        if layout is None or self.plan.received:  # whose sender may have changed them
            return None
        return layout if passed_on(self._entered, self.rows, {*layout.names, TRACKER}) else None

    def count(self) -> list[Group]:
        """Count the rows on the driver, by an aggregation of their own."""
        return by_substream(self._belonging(), self._input.rule, self.plan.grouped, self.plan.xor_by_substream)

    def count_for_report(self) -> list[Group] | None:
        """Count the rows if anybody needs that, for the report alone; None: nobody does, or the tasks have reported."""
        if not self.plan.by_substream:
            return None
        if self._tasks is None or self.plan.observed is None:
            return self.count()
        self._tasks.report(self._belonging(), self._name, self._input.segment, self._input.direction)
        return None

    def _belonging(self) -> DataFrame:
        """Return the rows that belong to a substream, where the source can tell: a step may have dropped the others."""
        rows = self._entered
        return rows if self._input.belonging is None else rows.where(self._input.rule.key.isNotNull())

    def set_aside(self, quarantine: SetAside) -> int:
        """Set the rows aside that belong to no substream, if the source was declared so. Return their number."""
        belongs = self._input.belonging
        if belongs is None or not belongs.sets_aside:
            return 0
        seen = observed(self._running(), self._input.segment, [BAD_ROWS]) if self._reads_all else None
        if seen is not None and not seen[BAD_ROWS]:
            return 0
        faults = belongs.faulty(self._everything())
        found = faults.groupBy("reason").count().collect()
        if not found:
            return 0
        number: int = sum(row["count"] for row in found)
        quarantine.put_bad(self._name.epoch, faults, number)
        listed = "; ".join(f"in {row['count']} {row['reason']}" for row in found)
        _log.warning(
            "batch %d: %d rows of segment %r belong to no substream and were set aside: %s",
            self._name.epoch,
            number,
            self._input.segment,
            listed,
        )
        return number

    def explained(self, error: Exception) -> Exception:
        """Return the error that explains a failure: that of rows which belong to no substream, if they caused it."""
        return (self.refusal() or of_steps(self._input.segment)) if tells_of_bad_rows(error) else error

    def refusal(self) -> TrackingError | None:
        """Return the error for rows of the source that belong to no substream; None: there are none."""
        belongs = self._input.belonging
        return None if belongs is None else belongs.refusal(self._raw, self._input.segment)

    def add_to(self, report: Report, groups: Sequence[Group] | None) -> None:
        """Put the rows received, and the promises of the source, into the report.

        Args:
            groups: the rows by substream, if they were counted, with the front's aggregates if it needs them.
        """
        if groups is not None:
            add_groups(report, self._input.segment, self._input.direction, groups, self._input.rule)
        if self._front is not None:
            grouped = self.plan.observed is None
            front, epoch = self._front, self._name.epoch
            promises = front.of_groups(groups or [], epoch) if grouped else front.of_observed(self._seen())
            promises.add_to(report)

    def _seen(self) -> Mapping[str, Any]:
        aggregates = self.plan.observed
        if not aggregates:
            return {}
        # Rows that were read in part were observed in part, and Spark gives no sign of that.
        seen = observed(self._running(), self._input.segment, list(aggregates)) if self._reads_all else None
        front = self._input.front
        assert front is not None
        return seen if seen is not None and front.suffices(seen) else front.read(self._raw)


class StateSize(NamedTuple):
    """Size of a release's state."""

    substreams: int
    rows: int  #: of the stream, which the partial results are made of


@dataclass(frozen=True)
class BatchResult:
    """The outcome of a batch, made after its actions: so a report cannot be built before its rows are read.

    Attributes:
        sent: the rows that were sent on, by segment and substream.
        received: likewise, those that were received on segments other than the input's.
        groups: the input's rows by substream; None: they were not counted so.
        set_aside: how many rows were set aside: late ones, and those of no substream (quarantined).
        released: of how many rows the results were made; None: nothing is released.
        ended: the ends that were acted on.
    """

    sent: Counted = field(default_factory=dict)
    received: Counted = field(default_factory=dict)
    groups: Sequence[Group] | None = None
    set_aside: Mapping[str, int] = field(default_factory=dict)
    released: int | None = None
    ended: Sequence[Event] = ()

    @property
    def rows(self) -> dict[str, int]:
        """Return how many rows the driver has counted, by what became of them."""
        received = {"received": _rows(self.groups)} if self.groups is not None else {}
        sent = {"sent": sum(map(_rows, self.sent.values()))} if self.sent else {}
        released = {"released": self.released} if self.released is not None else {}
        return {**received, **sent, **released, **self.set_aside}

    def add_to(self, report: Report, batch_input: BatchInput | None, rule: Substreams) -> None:
        """Put the count into the report of the batch's epoch, with what the source promises.

        Args:
            batch_input: the batch's rows; None: it had none.
            rule: how rows of the query fall into substreams.
        """
        for segment, groups in self.sent.items():
            add_groups(report, segment, "sent", groups, rule)
        for segment, groups in self.received.items():
            add_groups(report, segment, "received", groups, rule)
        if batch_input is not None:
            batch_input.add_to(report, self.groups)


def _rows(groups: Sequence[Group]) -> int:
    return sum(int(values["_rows"]) for _, values in groups)
