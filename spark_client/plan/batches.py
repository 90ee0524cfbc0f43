"""A batch, and what leaves it beside its rows: what is counted as sent, and what is set aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias

from pyspark.sql import DataFrame

from spark_client.fronts.front import Group
from spark_client.windows.substreams import Substream

Counted: TypeAlias = Mapping[str, list[Group]]  #: by segment: what was sent on it


class BatchId(NamedTuple):
    """One attempt at a batch.

    Attributes:
        query: the query's id, the same for as long as it keeps its checkpoint.
        epoch: the batch's number; a negative one is of an act between two batches.
        completed: the substreams that have all of their results with this batch.
        rest: whether some results are only the rest of substreams, of which others were written before.
    """

    query: str
    run: str
    epoch: int
    completed: tuple[Substream, ...] = ()
    rest: bool = False


class SetAside(Protocol):
    """Store of rows that must not go on."""

    def put_bad(self, epoch: int, rows: DataFrame, number: int) -> None:
        """Keep so many rows of an epoch that belong to no substream."""
        ...

    def put_doubled(self, epoch: int, segment: str, rows: DataFrame) -> None:
        """Keep rows of an epoch that a channel would take for copies of others."""
        ...


@contextmanager
def computed_once(rows: DataFrame, readers: int = 2) -> Iterator[DataFrame]:
    """Yield rows that Spark computes once, however many read them while the context lasts.

    Args:
        readers: how many there are; below two, the rows are yielded as they are.
    """
    if readers < 2:
        yield rows
        return
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()
