"""A stream as it is declared: where its rows come from, and the steps that are done to them in each batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

from pyspark.sql import Column, DataFrame

from spark_client.fronts.front import Front
from spark_client.plan.layouts import DerivedLayout
from spark_client.windows.belonging import Belonging
from spark_client.windows.substreams import Substreams

Step: TypeAlias = Callable[[DataFrame], DataFrame]
Direction: TypeAlias = Literal["sent", "received", "passing"]  #: passing: sent and received by the same query


class Input(Protocol):
    """Origin of the rows of a tracked query's batches. Data: it has no session and can be pickled."""

    @property
    def segment(self) -> str: ...

    @property
    def rule(self) -> Substreams: ...

    @property
    def direction(self) -> Direction: ...

    @property
    def front(self) -> Front | None: ...

    @property
    def layout(self) -> DerivedLayout | None:
        """The layout whose key columns name a row's substream, if they are plain ones."""
        ...

    @property
    def named(self) -> bool:
        """Return whether the stream's rows have labels that anybody can compute again."""
        ...

    @property
    def exact(self) -> bool:
        """Return whether a plain stream of its rows has each row once."""
        ...

    @property
    def deduplicate(self) -> bool:
        """Return whether a query that reads it drops rows whose label has come before in their substream."""
        ...

    @property
    def counted(self) -> bool:
        """Return whether all its rows are counted by substream before any step, whatever the front needs."""
        ...

    @property
    def belonging(self) -> Belonging | None:
        """Return which of its rows belong to a substream; None: all do, their sender has seen to that."""
        ...

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:
        """Return the rows of a batch.

        Returns:
            None if it is known that there are none.
        """
        ...

    def all_rows(self, batch: DataFrame) -> DataFrame:
        """Return the same with those that are set aside."""
        ...

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:
        """Return the same with `_tracker`."""
        ...


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows of one segment, and what a query does with them row by row.

    Attributes:
        steps: what is done to them, in order.
    """

    input: Input
    steps: tuple[Step, ...] = ()

    @property
    def segment(self) -> str:
        """The segment that its rows are received from."""
        return self.input.segment

    def apply(self, rows: DataFrame) -> DataFrame:
        """Return what the steps make of a batch's rows."""
        for step in self.steps:
            rows = step(rows)
        return rows

    def required(self, rows: DataFrame) -> DataFrame:
        """Return the same rows, after all steps; a batch fails on one that belongs to no substream."""
        return rows.where(self._requirement)

    @cached_property
    def _requirement(self) -> Column:  # made once: a column costs some calls into the JVM
        return self.input.rule.requirement
