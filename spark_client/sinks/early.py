"""Where early results are shown: beside the table of final ones, or in its place until those are there.

An early result is of one moment. It is never counted, and may be written twice or, when a driver dies, not at all. What
holds is the order: a later one replaces it, the final one replaces all, and nothing replaces the final one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from pyspark.sql import DataFrame

from spark_client.plan.outputs import BatchFunction, EarlyOutput
from spark_client.storage.directories import write_parquet
from spark_client.storage.numbered import write_numbered

_HIDDEN: Final = ("_scope", "_key")


@runtime_checkable
class EarlySink(Protocol):
    """A user's sink that takes early results."""

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        """Put rows where no later and no final ones of the same key are."""
        ...


class ToEarlySink:
    """Into the sink of the final results."""

    takes_all = False

    def __init__(self, sink: EarlySink) -> None:
        self._sink = sink

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        self._sink.write_early(rows.drop(*_HIDDEN), query, as_of)


class ToEarlyFunction:
    """To the function of the final results, which looks at the column ``final``."""

    takes_all = False

    def __init__(self, function: BatchFunction) -> None:
        self._function = function

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:  # noqa: ARG002
        self._function(rows.drop(*_HIDDEN), as_of)


class EarlyFiles:
    """Directories of Parquet files, each with all that was open after a batch; the newest one counts.

    Args:
        path: where they are.
    """

    takes_all = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:  # noqa: ARG002
        write_numbered(self._path, as_of, write_parquet(rows))


class Several:
    """In several places, one after the other."""

    def __init__(self, outputs: Mapping[str, EarlyOutput]) -> None:
        self._outputs = outputs
        self.takes_all = any(output.takes_all for output in outputs.values())

    def write_early(self, rows: DataFrame, query: str, as_of: int) -> None:
        several = len(self._outputs) > 1
        rows = rows.persist() if several else rows
        try:
            for name, output in self._outputs.items():
                output.write_early(rows, f"{query}.{name}", as_of)
        finally:
            if several:
                rows.unpersist()
