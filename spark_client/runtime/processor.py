"""Work of a query on its batches, as the runtime sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from pyspark.sql import SparkSession

from spark_client.counting.batch import BatchInput, BatchResult, StateSize
from spark_client.counting.runs import Run
from spark_client.destinations.destination import Output
from spark_client.release.quarantine import Quarantine
from spark_client.release.query import ReleaseQuery


class Forward:
    """Forwarding of rows. `ReleaseQuery` describes the methods that both have.

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
        quarantined = batch_input.set_aside(self._quarantine)
        return BatchResult(sent, groups=batch_input.count_for_report(), set_aside={"quarantined": quarantined})

    def reported(self, run: Run, epoch: int, spark: SparkSession) -> None:
        pass

    def committed(self, epoch: int) -> None:
        pass

    def begun(self, query: str | None, epoch: int) -> bool:
        return query is not None and self._output.begun(query, epoch)

    def release(self, run: Run, spark: SparkSession, anyway: bool = False) -> BatchResult | None:  # noqa: ARG002
        return None

    def state_size(self) -> StateSize | None:
        return None

    def kept(self, epoch: int) -> Mapping[str, int]:  # noqa: ARG002
        return {}

    def sweep(self, query: str) -> None:
        self._output.sweep(query)
        self._quarantine.sweep()

    def close(self) -> None:
        pass


BatchProcessor: TypeAlias = Forward | ReleaseQuery
