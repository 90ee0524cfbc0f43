"""A release that keeps the rows themselves: its state is their columns, its results are they, whole when they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.columns import TRACKER, ColumnOrName, named
from spark_client.counting.groups import Key, files, fold_table, groups_of
from spark_client.fronts.front import Group
from spark_client.plan.releases import ReleasePlan
from spark_client.release.aggregation import Aggregation


class KeptRows(Aggregation):
    """Rows kept instead of being aggregated: a partial row is a row, and parts are merged by putting them together."""

    def partial(self, rows: DataFrame, measures: Mapping[str, Column], labels: bool) -> DataFrame:
        """Return a batch's rows: ``_scope``, ``_key``, the keys, the kept columns, ``_rows``."""
        assert not measures, "rows that are kept are counted beside"
        kept = [value.alias(name) for name, value in self.plan.kept]
        label = [F.col(f"{TRACKER}.label").alias("_xor")] if labels else []
        return rows.select(*self._grouping, *kept, F.lit(1).cast("bigint").alias("_rows"), *label)

    def rollup(self, part: Path, measures: Sequence[str], labels: bool) -> tuple[list[Group], int]:
        columns = ["_scope", "_key", "_rows", *(["_xor"] if labels else [])]
        folded: dict[Key, dict[str, Any]] = {}
        number = 0
        for piece in files(part).to_batches(columns=columns):  # one after the other: there are as many as rows
            number += piece.num_rows
            for key, values in fold_table(pa.Table.from_batches([piece]), "_xor" if labels else None, measures).items():
                had = folded.setdefault(key, {"_rows": 0, **({"_xor": 0} if labels else {})})
                had["_rows"] += values["_rows"]
                if labels:
                    had["_xor"] ^= values["_xor"]
        return groups_of(folded.items(), self.rule), number

    def merge(self, partials: DataFrame) -> DataFrame:
        return partials

    @cached_property
    def _values(self) -> list[Column]:
        return [named(name) for name, _ in self.plan.kept]

    def results(self, merged: DataFrame, keep: Sequence[ColumnOrName] = (), checked: bool = True) -> DataFrame:  # noqa: ARG002
        return merged.select(*self._own_result, *self._values, *keep)


def aggregation_of(plan: ReleasePlan) -> Aggregation:
    """Return the aggregation of a release: of partial rows by key; or the rows themselves."""
    return KeptRows(plan) if plan.kept else Aggregation(plan)
