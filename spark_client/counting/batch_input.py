"""Taking a batch off its segment: count its rows, on the way chosen, and learn what its source can promise.

One `BatchInput` serves one batch. It must be asked for the report only after an action has consumed the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.counting.probes import CountingMode, ExecutorProbe, add_groups, by_substream
from spark_client.errors import TrackingError
from spark_client.plan.belonging import BAD_ROWS, of_steps, required, tells_of_bad_rows
from spark_client.plan.fronts import Group
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.outputs import BatchId, SetAside
from spark_client.plan.streams import Stream
from spark_client.plan.substreams import TRACKER
from spark_client.spark_internals.observations import observed
from spark_client.spark_internals.plans import partitions_of, passed_on, reads_whole
from tracker.client import Report

_log = logging.getLogger("spark_client")


class BatchInput:
    """The rows of one batch, and what is to be said of them.

    Args:
        stream: that is read.
        raw: the rows of the batch, as the stream's input gives them.
        everything: the same with those that are to be set aside.
        epoch: the batch.
        probe: for the executors' way; None: the driver's.
        labels: whether what the rows give rise to needs their labels.
        rides: an aggregation by substream will be made of the rows anyway.
        xors: whether the XOR of the labels is asked for, whatever the tracker needs.
        aggregates: as `observed_of` gives them.
        running: gives the query whose batch it is, once that is known.
        reads_all: whether what is done with the rows reads all of them.
        reported: with a probe: whether all of so many partitions have reported.
    """

    def __init__(
        self,
        stream: Stream,
        raw: DataFrame,
        everything: DataFrame,
        epoch: BatchId,
        probe: ExecutorProbe | None,
        labels: bool,
        rides: bool,
        xors: bool,
        aggregates: Mapping[str, Column] | None,
        running: Callable[[], StreamingQuery | None],
        reads_all: bool = True,
        reported: Callable[[int], bool] | None = None,
    ) -> None:
        query, _, number = epoch
        self._reported = reported
        self._running = running
        self._observed = aggregates
        self._input = stream.input
        self._front = stream.input.front
        self._way: CountingMode = "driver" if probe is None else "executors"
        self._raw = raw
        self._everything = everything
        self._epoch = number
        self._xors = xors
        received = self._input.direction == "received"
        self.rides = rides and not stream.steps  #: what has to be counted can be counted by that aggregation
        self._grouped = aggregates is None  # the front takes its figures by substream
        self._releases = rides
        self._counts = self._front is not None and self._front.counts
        self._tracked = partial(self._input.tracked, query=query, epoch=number, labels=labels or xors or received)
        rows = self._entered = self._tracked(raw)
        # A source that is released where it is read counts what reaches the release, unless its front counts all rows:
        # the same on executors as on the driver.
        after = rides and not received and not self._grouped and not self._counts
        if probe is not None and not after:
            rows = probe.on(rows)
        self._counted = rows
        rows = stream.apply(rows)
        self._output_reads_all, self._stepped = reads_all, rows if stream.steps else None
        sure = received and not stream.steps  # the sender has seen to it that all belong to a substream
        rows = rows if sure else required(rows, self._input.rule)
        self.rows = probe.on(rows) if probe is not None and after else rows

    @cached_property
    def _reads_all(self) -> bool:
        """Whether all rows are read; Spark optimizes a plan for the answer, so it is asked only where it counts."""
        return self._output_reads_all and (self._stepped is None or reads_whole(self._counted, self._stepped))

    @property
    def layout(self) -> DerivedLayout | None:
        """The layout whose key columns name each row's substream, if it is certain that no step has changed them."""
        layout = self._input.layout
        if layout is None or self._input.direction == "received":  # whose sender may have changed them
            return None
        return layout if passed_on(self._entered, self.rows, {*layout.names, TRACKER}) else None

    @property
    def must_count(self) -> bool:
        """Whether rows have to be counted by substream as they were received, before any step."""
        return (
            (self._front is not None and self._grouped)
            or (self._counts and (self._way == "driver" or self._releases))
            or (self._input.direction == "received" and (self._way == "driver" or self._xors))
        )

    @property
    def measures(self) -> dict[str, Column]:
        """The aggregates that the front needs of each substream."""
        return self._front.grouped() if self._front is not None and self._grouped else {}

    @property
    def counts_labels(self) -> bool:
        """Whether the XOR of the labels has to be counted, too."""
        return self._xors or (self._way == "driver" and self._input.direction == "received")

    def count(self) -> list[Group]:
        """Counts them, by an aggregation of its own."""
        rows, rule = self._tracked(self._raw), self._input.rule
        if self._input.belonging is not None:
            rows = rows.where(rule.end_or_name().isNotNull())  # a step may have dropped the others
        return by_substream(rows, rule, self.measures, self.counts_labels)

    def read_the_rest(self) -> None:
        """Has the executors report what nobody has read: a function takes some rows or none, a step may cut them off.

        A partition that has reported is not counted again.
        """
        if self._way == "driver" or self._reads_all:
            return
        partitions = partitions_of(self._counted)
        if partitions is None or self._reported is None or not self._reported(partitions):
            self._counted.write.format("noop").mode("overwrite").save()

    def set_aside(self, quarantine: SetAside) -> int:
        """Sets the rows aside that belong to no substream, if the source was declared so. Says how many there are.

        Args:
            quarantine: where they go.
        """
        belongs = self._input.belonging
        if belongs is None or not belongs.sets_aside:
            return 0
        seen = observed(self._running(), self._input.segment, [BAD_ROWS]) if self._reads_all else None
        if seen is not None and not seen[BAD_ROWS]:
            return 0
        faults = belongs.faulty(self._everything)
        found = faults.groupBy("reason").count().collect()
        if not found:
            return 0
        quarantine.put_bad(self._epoch, faults)
        number: int = sum(row["count"] for row in found)
        listed = "; ".join(f"in {row['count']} {row['reason']}" for row in found)
        _log.warning(
            "batch %d: %d rows of segment %r belong to no substream and were set aside: %s",
            self._epoch,
            number,
            self._input.segment,
            listed,
        )
        return number

    def explained(self, error: Exception) -> Exception:
        """What a failure of the batch is about: the rows that belong to no substream, if it is they."""
        return (self.refusal() or of_steps(self._input.segment)) if tells_of_bad_rows(error) else error

    def refusal(self) -> TrackingError | None:
        """The error for rows of the source that belong to no substream; None: there are none."""
        belongs = self._input.belonging
        return None if belongs is None else belongs.refusal(self._raw, self._input.segment)

    def add_to(self, report: Report, groups: Sequence[Group] | None) -> None:
        """Puts what was received, and what the source promises, into the report.

        Args:
            report: of the batch's epoch.
            groups: the rows by substream, if they were counted, with the front's aggregates if it needs them.
        """
        if groups is not None and self._way == "driver":
            add_groups(report, self._input.segment, self._input.direction, groups)
        if self._front is not None:
            promises = self._front.of_groups(groups or []) if self._grouped else self._front.of_observed(self._seen())
            promises.add_to(report, self._front.names[0])

    def _seen(self) -> Mapping[str, Any]:
        aggregates = self._observed
        if not aggregates:
            return {}
        # What was read in part was observed in part, and Spark does not tell.
        seen = observed(self._running(), self._input.segment, list(aggregates)) if self._reads_all else None
        front = self._front
        assert front is not None
        return seen if seen is not None and front.suffices(seen) else front.read(self._raw)


def observed_of(stream: Stream, rides: bool) -> Mapping[str, Column] | None:
    """The aggregates that a stream's front needs of all rows of a batch; None: it is given them by substream.

    Args:
        stream: it.
        rides: an aggregation by substream will be made of the rows anyway.
    """
    if stream.input.front is None:
        return {}
    return None if rides and not stream.steps else stream.input.front.observed()
