"""A stream as it is declared: its rows, which a source may bring in, and the steps that are done to them in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Final, Literal, Protocol, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER
from spark_client.fronts.front import Front
from spark_client.plan.labels import positional_label, source_label
from spark_client.plan.layouts import DerivedLayout
from spark_client.spark_internals.columns import Form
from spark_client.spark_internals.plans import without_call_sites
from spark_client.windows.belonging import Belonging
from spark_client.windows.substreams import Substreams

Step: TypeAlias = Callable[[DataFrame], DataFrame]
Direction: TypeAlias = Literal["sent", "received", "passing"]  #: passing: sent and received by the same query
DEDUPLICATES: Final = "deduplicate"  #: the aspect that a query counts each identity once


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
class Source:
    """Rows that enter the job here.

    Attributes:
        segment: from the source into the query that reads it.
        rule: how its rows fall into substreams.
        keys: the scope of a row and its key: see `Substreams.copied` of windows that overlap.
        belonging: which of its rows belong to a substream.
        identity: the columns that name a row for ever; none: a row is named by its place in the batch.
        salt: of the labels: the job's name.
        reads: the columns that substreams and labels are made of; None: not known.
        layout: whose key columns name a row's substream; None: they are expressions.
        counted: whether all rows are counted by substream before any step.
        forms: of the expressions of its scope, and of its time or name.
        deduplicate: whether a row of an identity that its substream has is dropped.
    """

    segment: str
    rule: Substreams
    keys: tuple[Column, Column]
    belonging: Belonging
    identity: tuple[Column, ...]
    front: Front
    salt: str
    reads: frozenset[str] | None
    layout: DerivedLayout | None
    counted: bool = False
    forms: Mapping[str, Form | None] = field(default_factory=dict)
    deduplicate: bool = False

    direction: ClassVar[Direction] = "passing"

    @property
    def exact(self) -> bool:
        return not self.deduplicate

    @property
    def named(self) -> bool:
        return bool(self.identity)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:  # noqa: ARG002
        return batch.where(self._good) if self.belonging.sets_aside else batch

    def all_rows(self, batch: DataFrame) -> DataFrame:
        return batch

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:
        if not labels:
            tracked = self._unlabelled
        elif self.identity:
            tracked = self._labelled
        else:
            tracked = self._struct(positional_label(self.salt, query, epoch))
        return self._in_windows(rows, tracked)

    def tracked_for_ever(self, rows: DataFrame) -> DataFrame:
        """Return the rows with `_tracker` outside any batch: with labels if the rows are named for ever."""
        tracked = self._labelled if self.identity else self._unlabelled
        return self._in_windows(rows, tracked)

    def _in_windows(self, rows: DataFrame, tracked: Column) -> DataFrame:
        copied = self.rule.copied(rows, self.keys[1])
        return copied.withColumn(TRACKER, tracked).drop(*self.rule.copy, *self.stamps)

    # Made once: a column costs some calls into the JVM, which a small batch would notice.

    @cached_property
    def stamps(self) -> dict[str, Column]:
        return self.front.stamps()

    @cached_property
    def _good(self) -> Column:
        return self.belonging.good

    @cached_property
    def _unlabelled(self) -> Column:
        return self._struct(F.lit(None).cast("long"))

    @cached_property
    def _labelled(self) -> Column:
        return self._struct(source_label(self.salt, [*self.identity, *self.rule.copy]))

    def _struct(self, label: Column) -> Column:
        scope, key = self.keys
        return self.rule.tracker(scope, self.rule.copied_key(key), label)


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
    @without_call_sites()
    def _requirement(self) -> Column:  # made once: a column costs some calls into the JVM
        return self.input.rule.requirement
