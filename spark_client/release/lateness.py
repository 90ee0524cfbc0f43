"""Rows of a release that came too late, on their way into the quarantine: as they came, and as partial rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark_client.plan.substreams import TRACKER, Substream, named
from spark_client.release.aggregation import Aggregation
from spark_client.release.parts import RowTally
from spark_client.release.quarantine import Quarantine


class LateRows:
    """Sets late rows of one release aside.

    Args:
        aggregation: the release's.
        quarantine: where they go.
        name: of the release, among several of its query.
        counts: whether it is the release that counts the query's rows: late ones are counted once, and shown once as
            they came.
    """

    def __init__(self, aggregation: Aggregation, quarantine: Quarantine, name: str = "", counts: bool = True) -> None:
        self._aggregation = aggregation
        self._quarantine = quarantine
        self._name = name
        self._counts = counts

    def rows(self, rows: DataFrame | None, partials: DataFrame, late: Mapping[Substream, RowTally], epoch: int) -> None:
        """Rows whose substream is known to be over; None: no step has left any."""
        if not self._counts:
            return
        table = None
        if rows is not None:
            own = [name for name in rows.columns if name != TRACKER]
            scope, key = F.col(f"{TRACKER}.scope"), self._aggregation.rule.end_or_name()
            flat = rows.select(scope.alias("_scope"), key.alias("_key"), _json(own))
            table = self._table(self._aggregation.of(flat, set(late)))
        self._quarantine.put(epoch, "row", table, partials, late)

    def aggregates(self, merged: DataFrame, late: Mapping[Substream, RowTally], epoch: int, has_rows: bool) -> None:
        """Partial rows that came to be known as late only after their rows had been aggregated, or kept."""
        table = None
        if has_rows:
            plan = self._aggregation.plan
            own = [*plan.own, *plan.keys, *plan.values]
            keyed = self._aggregation.results(merged, keep=("_scope", "_key"), checked=False)
            table = self._table(keyed.select("_scope", "_key", _json(own)))
        kind = "kept" if self._aggregation.plan.kept else "aggregate"
        if self._counts:
            self._quarantine.put(epoch, kind, table, merged, late)
        elif table is not None:
            self._quarantine.put_beside(epoch, f"{kind}-{self._name}", table)

    def _table(self, flat: DataFrame) -> DataFrame:
        """The columns of `LATE_SCHEMA` that are in the files."""
        name, end = self._aggregation.rule.name_and_end(F.col("_key"))
        return flat.select(F.col("_scope").alias("scope"), name.alias("name"), end.alias("end_time"), "data")


def _json(columns: Sequence[str]) -> Column:
    return F.to_json(F.struct(*map(named, columns))).alias("data")
