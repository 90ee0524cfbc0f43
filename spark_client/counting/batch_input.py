"""The input of a batch: its rows are counted by the query's `CountingPlan`, and its source's promises are found.

One `BatchInput` serves one batch. It must be asked for the report only after an action has consumed the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.columns import TRACKER
from spark_client.counting.countingplan import CountingPlan
from spark_client.counting.driver import by_substream
from spark_client.counting.groups import add_groups
from spark_client.counting.probes import ExecutorProbe
from spark_client.errors import TrackingError
from spark_client.plan.fronts import Group, LiveFront
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.outputs import BatchId, SetAside
from spark_client.plan.streams import Stream
from spark_client.spark_internals.observations import observed
from spark_client.spark_internals.plans import partitions_of, passed_on, reads_whole
from spark_client.windows.belonging import BAD_ROWS, of_steps, tells_of_bad_rows
from tracker.client import Report

_log = logging.getLogger("spark_client")


class BatchInput:
    """The rows of one batch, and what is to be reported of them.

    Args:
        stream: that is read.
        plan: what of it is counted.
        front: of its source; None: the rows come from a channel.
        batch: of what the query reads.
        rows: those of its rows that go on, as the stream's input gives them.
        name: the batch's.
        woken: whether the query also reads a stream of wake-ups.
        probe: of the executors; None: the driver counts.
        running: gives the query whose batch it is, once that is known.
        reads_all: whether what is done with the rows reads all of them.
        reported: with a probe: whether all of so many partitions have reported.
    """

    def __init__(
        self,
        stream: Stream,
        plan: CountingPlan,
        front: LiveFront | None,
        batch: DataFrame,
        rows: DataFrame,
        name: BatchId,
        woken: bool,
        probe: ExecutorProbe | None,
        running: Callable[[], StreamingQuery | None],
        reads_all: bool = True,
        reported: Callable[[int], bool] | None = None,
    ) -> None:
        self.plan = plan
        self._reported = reported
        self._running = running
        self._input = stream.input
        self._front = front
        self._raw = rows
        self._everything = partial(stream.input.all_rows, batch, woken)
        self._epoch = name.epoch
        self._tracked = partial(stream.input.tracked, query=name.query, epoch=name.epoch, labels=plan.labels)
        passing = self._entered = self._tracked(rows)
        if probe is not None and not plan.probes_after_steps:
            passing = probe.on(passing)
        self._counted = passing
        passing = stream.apply(passing)
        self._output_reads_all, self._stepped = reads_all, passing if stream.steps else None
        sure = plan.received and not stream.steps  # the sender has seen to it that all belong to a substream
        passing = passing if sure else stream.required(passing)
        self.rows = probe.on(passing) if probe is not None and plan.probes_after_steps else passing

    @cached_property
    def _reads_all(self) -> bool:
        """Whether all rows are read; Spark optimizes a plan for the answer, so it is asked only where it counts."""
        return self._output_reads_all and (self._stepped is None or reads_whole(self._counted, self._stepped))

    @property
    def layout(self) -> DerivedLayout | None:
        """The layout whose key columns name each row's substream, if it is certain that no step has changed them."""
        layout = self._input.layout
        if layout is None or self.plan.received:  # whose sender may have changed them
            return None
        return layout if passed_on(self._entered, self.rows, {*layout.names, TRACKER}) else None

    def count(self) -> list[Group]:
        """Count them, by an aggregation of its own."""
        rows, rule = self._tracked(self._raw), self._input.rule
        if self._input.belonging is not None:
            rows = rows.where(rule.end_or_name().isNotNull())  # a step may have dropped the others
        return by_substream(rows, rule, self.plan.grouped, self.plan.xor_by_substream)

    def read_the_rest(self) -> None:
        """Has the executors report what nobody has read: a function takes some rows or none, a step may cut them off.

        A partition that has reported is not counted again.
        """
        if self.plan.mode == "driver" or self._reads_all:
            return
        partitions = partitions_of(self._counted)
        if partitions is None or self._reported is None or not self._reported(partitions):
            self._counted.write.format("noop").mode("overwrite").save()

    def set_aside(self, quarantine: SetAside) -> int:
        """Set the rows aside that belong to no substream, if the source was declared so. Says how many there are.

        Args:
            quarantine: where they go.
        """
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
        quarantine.put_bad(self._epoch, faults, number)
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
        """Return what a failure of the batch is about: the rows that belong to no substream, if it is they."""
        return (self.refusal() or of_steps(self._input.segment)) if tells_of_bad_rows(error) else error

    def refusal(self) -> TrackingError | None:
        """Return the error for rows of the source that belong to no substream; None: there are none."""
        belongs = self._input.belonging
        return None if belongs is None else belongs.refusal(self._raw, self._input.segment)

    def add_to(self, report: Report, groups: Sequence[Group] | None) -> None:
        """Put what was received, and what the source promises, into the report.

        Args:
            report: of the batch's epoch.
            groups: the rows by substream, if they were counted, with the front's aggregates if it needs them.
        """
        if groups is not None and self.plan.mode == "driver":
            add_groups(report, self._input.segment, self._input.direction, groups, self._input.rule)
        if self._front is not None:
            grouped = self.plan.observed is None
            promises = self._front.of_groups(groups or []) if grouped else self._front.of_observed(self._seen())
            promises.add_to(report, self._front.names[0])

    def _seen(self) -> Mapping[str, Any]:
        aggregates = self.plan.observed
        if not aggregates:
            return {}
        # What was read in part was observed in part, and Spark does not tell.
        seen = observed(self._running(), self._input.segment, list(aggregates)) if self._reads_all else None
        front = self._input.front
        assert front is not None
        return seen if seen is not None and front.suffices(seen) else front.read(self._raw)
