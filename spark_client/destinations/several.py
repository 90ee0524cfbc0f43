"""Several places for the same results, written one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.destinations.destination import Destination, EarlyOutput, Opening, Output
from spark_client.plan.batches import BatchId, Counted, computed_once
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.releases import ReleasePlan
from spark_client.storage.folder import Folder


class SeveralDestinations(Destination):
    """Several places out of the job, for the same results.

    Args:
        places: by name. Each keeps its notes of epochs under its name, so that two may share a database.
    """

    def __init__(self, places: Mapping[str, Destination]) -> None:
        self.places = places

    def at(self, checkpoint: Folder) -> SeveralDestinations:
        return SeveralDestinations({name: place.at(checkpoint) for name, place in self.places.items()})

    def check(self, schema: T.StructType, release: ReleasePlan | None, spark: SparkSession) -> None:
        for place in self.places.values():
            place.check(schema, release, spark)

    def directories(self) -> Iterator[tuple[str, Folder]]:
        for name, place in self.places.items():
            yield from ((f"{purpose} at {name!r}", path) for purpose, path in place.directories())

    def open(self, opening: Opening) -> Output:
        return _Outputs({name: place.open(opening) for name, place in self.places.items()})

    def early(self) -> EarlyOutput:
        outputs = {name: place.early() for name, place in self.places.items()}
        return _EarlyOutputs({name: output for name, output in outputs.items() if output is not None})


class _Outputs:
    concurrent = False

    def __init__(self, outputs: Mapping[str, Output]) -> None:
        self._outputs = outputs
        self.reads_all = any(output.reads_all for output in outputs.values())
        self.completes = any(output.completes for output in outputs.values())

    def write(self, rows: DataFrame, batch: BatchId, layout: DerivedLayout | None = None) -> Counted:
        with computed_once(rows, len(self._outputs)) as shared:
            for name, output in self._outputs.items():
                output.write(shared, BatchId(_named(batch.query, name), *batch[1:]), layout)
        return {}

    def begun(self, query: str, epoch: int) -> bool:
        return any(output.begun(_named(query, name), epoch) for name, output in self._outputs.items())

    def sweep(self, query: str) -> None:
        for name, output in self._outputs.items():
            output.sweep(_named(query, name))


class _EarlyOutputs:
    def __init__(self, outputs: Mapping[str, EarlyOutput]) -> None:
        self._outputs = outputs
        self.takes_all = any(output.takes_all for output in outputs.values())

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        with computed_once(rows, len(self._outputs)) as shared:
            for name, output in self._outputs.items():
                output.write_early(shared, _named(query, name), as_of)


def _named(query: str, name: str) -> str:
    """Return what one of several outputs knows its query by."""
    return f"{query}.{name}"
