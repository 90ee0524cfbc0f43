"""Taking a batch off its segment: count its rows, on the way chosen, and learn what its source can promise.

One `Intake` serves one batch. It must be asked for the report only after an action has consumed the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Observation

from spark_client.fronts import Group, Promises
from spark_client.probes import ExecutorProbe, Way, add_groups, by_substream
from spark_client.streams import TrackedStream
from tracker.client import Report


class Intake:
    """The rows of one batch, and what is to be said of them.

    Args:
        stream: that is read.
        batch: as the query gives it.
        epoch: (query, run, batch).
        probe: for the executors' way; None: the driver's.
        labels: whether the rows' labels are needed, for what they give rise to or because they were received.
    """

    def __init__(
        self,
        stream: TrackedStream,
        batch: DataFrame,
        epoch: tuple[str, str, int],
        probe: ExecutorProbe | None,
        labels: bool,
    ) -> None:
        self._stream = stream
        self._input = stream.input
        self._front = stream.input.front
        self._way: Way = "driver" if probe is None else "executors"
        query, _, number = epoch
        received = self._input.direction == "received"
        self._counted, self.empty = self._input.rows(batch, query, number, labels or received)
        rows = self._counted
        aggregates = self._front.observed() if self._front is not None else {}
        self.by_group = aggregates is None  #: the front needs figures by substream
        self._observation: Observation | None = None
        if aggregates:
            self._observation = Observation()
            rows = rows.observe(self._observation, *[value.alias(name) for name, value in aggregates.items()])
        if probe is not None:
            rows = probe.on(rows)
        self.unchanged = not stream.steps  #: nothing lies between the rows as received and as given
        self.rows = stream.apply(rows)

    @property
    def must_count(self) -> bool:
        """Whether rows have to be counted by substream as they were received, before any step."""
        return self.by_group or (self._way == "driver" and self._input.direction == "received")

    @property
    def measures(self) -> dict[str, Column]:
        """The aggregates that the front needs of each substream."""
        return self._front.grouped() if self._front is not None and self.by_group else {}

    @property
    def counts_labels(self) -> bool:
        """Whether the XOR of the labels has to be counted, too."""
        return self._way == "driver" and self._input.direction == "received"

    def count(self) -> list[Group]:
        """Counts them, by an aggregation of its own."""
        return by_substream(self._counted, self._input.rule, self.measures, self.counts_labels)

    def say(self, report: Report, groups: Sequence[Group] | None) -> Promises:
        """Puts what was received, and what the source promises, into the report.

        Args:
            report: of the batch's epoch.
            groups: the rows by substream, if they were counted, with the front's aggregates if it needs them.

        Returns:
            The promises that it has put in.
        """
        if groups is not None and self._way == "driver":
            add_groups(report, self._input.segment, self._input.direction, groups)
        if self._front is None:
            return Promises()
        if self.empty:
            return Promises()
        if self.by_group:
            promises = self._front.of_groups(groups or [])
        else:
            promises = self._front.of_observed(self._observe())
        promises.add_to(report, self._front.names[0])
        return promises

    def _observe(self) -> dict[str, object]:
        assert self._front is not None
        if self._observation is None:
            return {}
        try:
            return self._observation.get
        except Exception:  # Spark has optimized the rows away, and the observation with them
            aggregates = self._front.observed() or {}
            row = self._counted.agg(*[value.alias(name) for name, value in aggregates.items()]).collect()[0]
            return row.asDict()
