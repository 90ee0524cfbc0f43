"""A stream as it is declared: where its rows come from, and the steps that are done to them in each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeAlias

from pyspark.sql import Column, DataFrame

from spark_client.plan.belonging import Belonging
from spark_client.plan.fronts import Front
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.substreams import Substreams

Step: TypeAlias = Callable[[DataFrame], DataFrame]
Direction: TypeAlias = Literal["sent", "received", "passing"]  #: passing: sent and received by the same query


class Input(Protocol):
    """Where a tracked query takes its rows from."""

    segment: str
    rule: Substreams
    direction: Direction
    front: Front | None
    layout: DerivedLayout | None  #: whose key columns name a row's substream, if they are plain ones
    named: bool  #: whether its rows have labels that anybody can compute again

    @property
    def belonging(self) -> Belonging | None:
        """Which of its rows belong to a substream; None: all do, their sender has seen to that."""
        ...

    def stream(self, wake_ups: DataFrame | None, aggregates: Mapping[str, Column] | None) -> DataFrame:
        """What the query reads.

        Args:
            wake_ups: a stream whose rows only make a batch happen.
            aggregates: of all its own rows, that are to be observed; None: none are.
        """
        ...

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:
        """The rows of a batch of `stream`; None if it is known that there are none."""
        ...

    def all_rows(self, batch: DataFrame) -> DataFrame:
        """The same with those that are set aside."""
        ...

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:
        """The same with `_tracker`."""
        ...

    def native(self) -> DataFrame:
        """The tracked rows as a streaming DataFrame, for queries that Spark runs without `foreachBatch`."""
        ...


class Stream:
    """Rows of one segment, and what a query does with them row by row.

    Attributes:
        input: where the rows come from.
        steps: what is done to them, in order.
        df: a streaming DataFrame with the columns that result: what steps, and names of columns, are tried on.
    """

    def __init__(self, origin: Input, steps: tuple[Step, ...], df: DataFrame) -> None:
        self.input = origin
        self.steps = steps
        self.df = df

    @property
    def segment(self) -> str:
        """The segment that its rows are received from."""
        return self.input.segment

    @property
    def columns(self) -> list[str]:
        """The columns of its rows."""
        return list(self.df.columns)

    def apply(self, rows: DataFrame) -> DataFrame:
        """What the steps make of a batch's rows."""
        for step in self.steps:
            rows = step(rows)
        return rows
