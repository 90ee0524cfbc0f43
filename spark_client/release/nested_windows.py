"""Windows within windows: a release that keeps its rows once, and makes the results of each level of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import ColumnOrName, named
from spark_client.plan.releases import LEVEL
from spark_client.release.aggregation import Aggregation
from spark_client.windows.nested import window_of

_LEVEL: Final = f"_{LEVEL}"


class NestedWindows(Aggregation):
    """Aggregates by the piece that a row has of its windows: a window is made of its pieces."""

    @cached_property
    def _own_result(self) -> list[Column]:
        *scope, window = self.rule.result_columns(F.col("_scope"), F.col("_key"))
        return [*scope, F.col(_LEVEL).alias(LEVEL), window, *map(named, self.plan.keys)]

    def of_level(self, pieces: DataFrame, level: int) -> DataFrame:
        """Return the merged rows of the windows of a level.

        Args:
            pieces: partial rows of all pieces that the windows have.
            level: of the windows.
        """
        windows = pieces.withColumn("_key", window_of(F.col("_key"), level))
        return self.merge(windows).withColumn(_LEVEL, F.lit(self.rule.levels[level].label))

    def results(self, merged: DataFrame, keep: Sequence[ColumnOrName] = (), checked: bool = True) -> DataFrame:
        if _LEVEL not in merged.columns:  # pieces: what is late is shown under the shortest window that it is late for
            merged = merged.withColumn(_LEVEL, F.lit(self.rule.levels[0].label))
        return super().results(merged, keep, checked)
