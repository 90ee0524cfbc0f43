"""What is counted of a query's batches, where, and by which aggregation: decided once, when the query is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pyspark.sql import Column

from spark_client.plan.streams import Stream

CountingMode: TypeAlias = Literal["driver", "executors"]


@dataclass(frozen=True)
class CountingPlan:
    """What one query counts.

    Attributes:
        mode: who counts the rows of a batch: the driver, by native aggregations, or the executors' tasks as rows pass.
        received: the rows come from a channel, so the tracker is told what was received of each substream.
        released: a release takes the rows in.
        aggregated: it aggregates them by substream.
        stepped: steps lie between where rows are received and what is done with them.
        counts_all: all rows are counted before any step: the front's promises are about how many rows there are, or
            the source was declared so.
        xor: the XOR of the labels is asked for, whatever the tracker needs.
        labels: what the rows give rise to needs their labels.
        observed: the aggregates that the front needs of all rows of a batch, by name; None: it needs `grouped` ones.
        grouped: the aggregates that the front needs of each substream in a batch, by name.
    """

    mode: CountingMode
    received: bool
    released: bool
    aggregated: bool
    stepped: bool
    counts_all: bool
    xor: bool
    labels: bool
    observed: Mapping[str, Column] | None
    grouped: Mapping[str, Column]

    @classmethod
    def of(
        cls, stream: Stream, mode: CountingMode, released: bool, sends: bool, xor: bool, aggregated: bool | None = None
    ) -> CountingPlan:
        """Return the plan for a query.

        Args:
            stream: that it reads.
            mode: who counts.
            released: whether a release takes its rows in.
            sends: whether it sends rows on.
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
            mode=mode,
            received=received,
            released=released,
            aggregated=aggregated,
            stepped=stepped,
            counts_all=stream.input.counted or (front is not None and front.counts),
            xor=xor,
            labels=(sends and not released) or xor or received,
            observed=observed,
            grouped=front.grouped() if front is not None and observed is None else {},
        )

    @property
    def in_release(self) -> bool:
        """Whether what has to be counted can be counted by the release's own aggregation."""
        return self.aggregated and not self.stepped

    @property
    def by_substream(self) -> bool:
        """Whether rows have to be counted by substream as they were received, before any step."""
        return (
            self.observed is None
            or (self.counts_all and (self.mode == "driver" or self.released))
            or (self.received and (self.mode == "driver" or self.xor))
        )

    @property
    def xor_by_substream(self) -> bool:
        """Whether the XOR of the labels has to be counted, too."""
        return self.xor or (self.mode == "driver" and self.received)

    @property
    def probes_after_steps(self) -> bool:
        """Whether the executors count what reaches the release, instead of what the source gives.

        A source that is released where it is read counts so, unless its front needs all rows: as the driver does.
        """
        return self.released and not self.received and self.observed is not None and not self.counts_all
