"""Taking a batch off its segment: count its rows, on the way chosen, and learn what its source can promise.

One `Intake` serves one batch. It must be asked for the report only after an action has consumed the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_client.fileforms import Told
from spark_client.fronts import Group
from spark_client.observations import observed
from spark_client.plans import passed_on
from spark_client.probes import ExecutorProbe, Way, add_groups, by_substream
from spark_client.streams import TrackedStream
from spark_client.substreams import TRACKER
from tracker.client import Report


class Intake:
    """The rows of one batch, and what is to be said of them.

    Args:
        stream: that is read.
        raw: the rows of the batch, as the stream's input gives them.
        epoch: (query, run, batch).
        probe: for the executors' way; None: the driver's.
        labels: whether what the rows give rise to needs their labels.
        rides: an aggregation by substream will be made of the rows anyway.
        xors: whether the XOR of the labels is asked for, whatever the tracker needs.
        aggregates: as `observed_of` gives them.
        running: gives the query whose batch it is, once that is known.
    """

    def __init__(
        self,
        stream: TrackedStream,
        raw: DataFrame,
        epoch: tuple[str, str, int],
        probe: ExecutorProbe | None,
        labels: bool,
        rides: bool,
        xors: bool,
        aggregates: Mapping[str, Column] | None,
        running: Callable[[], StreamingQuery | None],
    ) -> None:
        self._running = running
        self._observed = aggregates
        self._input = stream.input
        self._front = stream.input.front
        self._way: Way = "driver" if probe is None else "executors"
        self._raw = raw
        self._xors = xors
        received = self._input.direction == "received"
        query, _, number = epoch
        self.rides = rides and not stream.steps  #: what has to be counted can be counted by that aggregation
        self._grouped = aggregates is None  # the front takes its figures by substream
        self._tracked = partial(self._input.tracked, query=query, epoch=number, labels=labels or xors or received)
        rows = self._entered = self._tracked(raw)
        if probe is not None:
            rows = probe.on(rows)
        self.rows = stream.apply(rows)

    @property
    def told(self) -> Told | None:
        """The columns that tell where each of the rows belongs, if it is certain that no step has changed them."""
        told = self._input.told
        if told is None or self._input.direction == "received":  # whose sender may have changed them
            return None
        return told if passed_on(self._entered, self.rows, {*told.names, TRACKER}) else None

    @property
    def must_count(self) -> bool:
        """Whether rows have to be counted by substream as they were received, before any step."""
        return (self._front is not None and self._grouped) or (
            self._input.direction == "received" and (self._way == "driver" or self._xors)
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
        return by_substream(self._tracked(self._raw), self._input.rule, self.measures, self.counts_labels)

    def say(self, report: Report, groups: Sequence[Group] | None) -> None:
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
        seen = observed(self._running(), self._input.segment, list(aggregates))
        if seen is None:  # it may be that Spark has optimized the rows away
            row = self._raw.agg(*[value.alias(name) for name, value in aggregates.items()]).collect()[0]
            seen = row.asDict()
        return seen


def observed_of(stream: TrackedStream, rides: bool) -> Mapping[str, Column] | None:
    """The aggregates that a stream's front needs of all rows of a batch; None: it is given them by substream.

    Args:
        stream: it.
        rides: an aggregation by substream will be made of the rows anyway.
    """
    if stream.input.front is None:
        return {}
    return None if rides and not stream.steps else stream.input.front.observed()
