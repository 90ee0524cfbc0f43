"""Work of a query on its batches, as the runtime sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pyspark.sql import SparkSession

from spark_client.counting.batch import BatchInput, BatchResult, StateSize
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Output
from spark_client.release.quarantine import Quarantine


class Forward:
    """Forwarding of rows.

    Args:
        quarantine: where rows go that belong to no substream.
        has_fronts: whether the query reads a source: it ends with it.
    """

    def __init__(self, output: Output, quarantine: Quarantine, has_fronts: bool) -> None:
        self._output = output
        self._quarantine = quarantine
        self._has_fronts = has_fronts

    releases = False

    @property
    def outlives_its_sources(self) -> bool:
        return not self._has_fronts

    @property
    def reads_all(self) -> bool:
        return self._output.reads_all

    def process(self, batch_input: BatchInput | None, run: Run, epoch: int, spark: SparkSession) -> BatchResult | None:  # noqa: ARG002
        """Write the rows of a batch."""
        if batch_input is None:
            return None
        sent = self._output.write(batch_input.rows, run.batch(epoch), batch_input.layout)
        batch_input.read_the_rest()
        quarantined = batch_input.set_aside(self._quarantine)
        groups = batch_input.count() if batch_input.plan.by_substream else None
        return BatchResult(sent, groups=groups, set_aside={"quarantined": quarantined})

    def reported(self, run: Run, epoch: int, spark: SparkSession) -> None:
        pass

    def committed(self, epoch: int) -> None:
        pass

    def begun(self, query: str | None, epoch: int) -> bool:
        return query is not None and self._output.begun(query, epoch)

    def release(self, run: Run, spark: SparkSession, anyway: bool = False) -> None:
        pass

    def state_size(self) -> StateSize | None:
        return None

    def kept(self, epoch: int) -> Mapping[str, int]:  # noqa: ARG002
        return {}

    def sweep(self, query: str) -> None:
        self._output.sweep(query)
        self._quarantine.sweep()

    def close(self) -> None:
        pass


class BatchProcessor(Protocol):
    """Processor of one query's batches: it forwards rows, or releases results.

    Attributes:
        releases: whether it releases results.
    """

    releases: bool

    @property
    def outlives_its_sources(self) -> bool:
        """Return whether the processor has something to do when all that the query's sources have sent has ended."""
        ...

    @property
    def reads_all(self) -> bool:
        """Return whether the processor reads all rows that it is given; else nobody knows how many."""
        ...

    def process(self, batch_input: BatchInput | None, run: Run, epoch: int, spark: SparkSession) -> BatchResult | None:
        """Process a batch, or again the same one.

        Args:
            batch_input: its rows; None: it has none.

        Returns:
            The result to be reported of it; None: nothing.
        """
        ...

    def reported(self, run: Run, epoch: int, spark: SparkSession) -> None:
        """Learn that the tracker has taken a batch's report."""
        ...

    def committed(self, epoch: int) -> None:
        """Learn that Spark has committed an epoch."""
        ...

    def begun(self, query: str | None, epoch: int) -> bool:
        """Return whether an attempt of a batch may have published something, so that no other batch may take its place.

        Args:
            query: its id; None: it never ran.
        """
        ...

    def release(self, run: Run, spark: SparkSession, anyway: bool = False) -> BatchResult | None:
        """Publish what has ended since the last batch, which Spark has committed, between two batches.

        Args:
            anyway: whether nothing is left to be done.

        Returns:
            The result of that; None: nothing was left.

        Raises:
            TrackingError: another driver has taken the query over.
        """
        ...

    def state_size(self) -> StateSize | None:
        """Return how much its state holds after the last batch; None: it has none."""
        ...

    def kept(self, epoch: int) -> Mapping[str, int]:
        """Return how many substreams its state holds before an epoch, by the name of the release; nothing: it has
        none."""
        ...

    def sweep(self, query: str) -> None:
        """Remove what drivers of this query that were killed have left half written."""
        ...

    def close(self) -> None:
        """Give back what the query needed while it ran."""
        ...
