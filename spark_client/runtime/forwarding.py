"""Queries that pass their rows on as they are: into channels, a sink or a function."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from spark_client.counting.batch_input import BatchInput
from spark_client.counting.batch_result import BatchResult, StateSize
from spark_client.counting.runs import Run
from spark_client.plan.outputs import Output
from spark_client.release.quarantine import Quarantine


class Forward:
    """Passes rows on.

    Args:
        output: where they go.
        quarantine: where rows go that belong to no substream.
        has_fronts: whether the query reads a source: it ends with it.
    """

    def __init__(self, output: Output, quarantine: Quarantine, has_fronts: bool) -> None:
        self._output = output
        self._quarantine = quarantine
        self._has_fronts = has_fronts

    @property
    def outlives_its_sources(self) -> bool:
        return not self._has_fronts

    @property
    def reads_all(self) -> bool:
        return self._output.reads_all

    def process(self, batch_input: BatchInput | None, run: Run, epoch: int, spark: SparkSession) -> BatchResult | None:  # noqa: ARG002
        """Writes the rows of a batch."""
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

    def drain(self, run: Run, spark: SparkSession) -> None:
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
