"""Sources: rows that enter the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.plan.belonging import BAD_ROWS, Belonging
from spark_client.plan.fronts import Front
from spark_client.plan.labels import positional_label, source_label
from spark_client.plan.layouts import DerivedLayout
from spark_client.plan.streams import Direction
from spark_client.plan.substreams import TRACKER, Substreams
from spark_client.spark_internals.observations import observe

_WAKE_UP: Final = "_tracker_bell"


class Source:
    """Rows that enter the job here."""

    direction: Direction = "passing"

    def __init__(
        self,
        df: DataFrame,
        segment: str,
        rule: Substreams,
        keys: tuple[Column, Column, Column],
        belongs: Belonging,
        identity: Sequence[Column],
        front: Front,
        salt: str,
        reads: frozenset[str] | None,
        layout: DerivedLayout | None,
    ) -> None:
        self.segment = segment
        self.layout = layout
        self.rule = rule
        self.front: Front | None = front
        self.belonging = belongs
        self._df = df
        self._keys = keys
        self._identity = identity
        self.named = bool(identity)
        self._salt = salt
        self._reads = reads  # the columns that make substreams and labels; None: not known
        self._woken = False

    def stream(self, wake_ups: DataFrame | None, aggregates: Mapping[str, Column] | None) -> DataFrame:
        self._woken = wake_ups is not None
        if self.belonging.sets_aside:
            aggregates = {**(aggregates or {}), BAD_ROWS: self.belonging.number_of_bad}
        rows = observe(self._df, self.segment, aggregates)
        if wake_ups is None:
            return rows
        nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
        rings = wake_ups.select(*nothing, F.lit(True).alias(_WAKE_UP))
        return rows.withColumn(_WAKE_UP, F.lit(False)).unionByName(rings)

    def rows(self, batch: DataFrame, query: str, epoch: int) -> DataFrame | None:  # noqa: ARG002
        rows = self.all_rows(batch)
        return rows.where(self._good) if self.belonging.sets_aside else rows

    def all_rows(self, batch: DataFrame) -> DataFrame:
        """The rows of a batch of `stream`, those that belong to no substream among them."""
        return batch.where(self._not_a_wake_up).drop(_WAKE_UP) if self._woken else batch

    def tracked(self, rows: DataFrame, query: str, epoch: int, labels: bool) -> DataFrame:
        if not labels:
            tracked = self._unlabelled
        elif self._identity:
            tracked = self._labelled
        else:
            tracked = self._struct(positional_label(self._salt, query, epoch))
        return rows.withColumn(TRACKER, tracked)

    def prune(self, used: frozenset[str] | None) -> None:
        """Reads only the columns that are used, if it is known which: what makes substreams and labels is kept.

        Spark cannot see through `foreachBatch` which columns are used there, and would read all of them.

        Args:
            used: by what is done with the rows.
        """
        own = self._reads
        watched = frozenset[str]() if self.front is None else self.front.reads
        if self.belonging.sets_aside:
            return  # rows that are set aside keep all that they have
        if used is not None and own is not None and watched is not None:
            needed = used | own | watched
            if needed <= set(self._df.columns):
                self._df = self._df.select(*[F.col(name) for name in self._df.columns if name in needed])

    def native(self) -> DataFrame:
        return self._df.withColumn(TRACKER, self._labelled if self._identity else self._unlabelled)

    # Made once: a column costs some calls into the JVM, which a small batch would notice.

    @cached_property
    def _not_a_wake_up(self) -> Column:
        return ~F.col(_WAKE_UP)

    @cached_property
    def _good(self) -> Column:
        return self.belonging.good

    @cached_property
    def _unlabelled(self) -> Column:
        return self._struct(F.lit(None).cast("long"))

    @cached_property
    def _labelled(self) -> Column:
        return self._struct(source_label(self._salt, self._identity))

    def _struct(self, label: Column) -> Column:
        scope, name, end = self._keys
        return F.struct(scope.alias("scope"), name.alias("name"), end.alias("end"), label.alias("label"))
