"""The aggregation of a release: the native plans for its parts and results; or the rows themselves, kept whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, reduce
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import MADE_OF_SEVERAL, TRACKER, ColumnOrName, named, whole_text
from spark_client.counting.folding import Key
from spark_client.counting.groups import Dataset, fold_table, groups_of
from spark_client.fronts.front import Group
from spark_client.plan.labels import child_label
from spark_client.plan.releases import AS_OF, FINAL, REVISION, Measure, ReleasePlan
from spark_client.release.parts import Selection
from spark_client.spark_internals.plans import without_call_sites
from spark_client.storage.directories import parquet_of
from spark_client.windows.substreams import COMPLETENESS, RowGroup, Substream, Substreams

_LISTED: Final = 200  #: substreams that are looked for by a list rather than by a join


class Aggregation:
    """The native plans that carry out a release's aggregation.

    Args:
        plan: the release, as it was declared.
    """

    def __init__(self, plan: ReleasePlan) -> None:
        self.plan = plan
        self.rule = plan.rule
        self._made: dict[bool, list[Column]] = {}  # what `_checked` gives, in ANSI mode and without

    # ---------------------------------------------------------------- native plans
    # Columns are made once: each costs some calls into the JVM, which a small batch would notice.

    @cached_property
    def _grouping(self) -> list[Column]:
        keys = [value.alias(name) for name, value in zip(self.plan.keys, self.plan.key_columns, strict=True)]
        return [F.col(f"{TRACKER}.scope").alias("_scope"), self.rule.key.alias("_key"), *keys]

    @cached_property
    def _partial(self) -> list[Column]:
        parts = {  # aggregates of which the same is kept share their columns
            name: value.alias(name)
            for measure in self.plan.measures
            for name, value in zip(measure.parts, measure.aggregate.partial, strict=True)
        }
        return [*parts.values(), F.count("*").alias("_rows"), *self.rule.parts]

    @cached_property
    def _xor(self) -> Column:
        return F.bit_xor(F.col(f"{TRACKER}.label")).alias("_xor")

    @cached_property
    def merging(self) -> list[Column]:
        parts = {
            name: merge(*map(F.col, measure.parts)).cast(self.plan.part_schema[name].dataType).alias(name)
            for measure in self.plan.measures
            for name, merge in zip(measure.parts, measure.aggregate.merge, strict=True)
        }
        return [*parts.values(), F.sum("_rows").alias("_rows"), *self.rule.merged_parts]

    @cached_property
    def _own_result(self) -> list[Column]:
        return [*self.rule.result_columns(F.col("_scope"), F.col("_key")), *[named(key) for key in self.plan.keys]]

    @cached_property
    def _values(self) -> list[Column]:
        return [measure.value.alias(measure.name) for measure in self.plan.measures]

    def _checked(self, spark: SparkSession) -> list[Column]:
        """Return the values, and what an overflow makes of them: it is Spark's, unless it is to be null."""
        ansi = spark.conf.get("spark.sql.ansi.enabled") == "true"
        if ansi not in self._made:
            self._made[ansi] = [
                self._unless_overflowed(measure, ansi).alias(measure.name) for measure in self.plan.measures
            ]
        return self._made[ansi]

    def _unless_overflowed(self, measure: Measure, ansi: bool) -> Column:
        overflowed, value = measure.overflowed, measure.value
        if overflowed is None:
            return value
        if self.plan.on_overflow == "null":
            return F.when(~F.coalesce(overflowed, F.lit(False)), value)
        if not ansi and not measure.aggregate.fails:
            return value
        where = F.to_json(F.struct("_scope", "_key", *[named(key) for key in self.plan.keys]))
        fault = F.concat(
            F.lit(f"the aggregate {measure.name!r} of "),
            where,
            F.lit(
                f" does not fit {measure.result.simpleString()}, and Spark's own would fail. Nothing is lost: start "
                "the query again, with the same checkpoint and release(…, on_overflow='null'): such results are null"
                + ("; or with spark.sql.ansi.enabled=false, and they are what Spark gives then" if ansi else "")
            ),
        )
        return F.when(overflowed, F.raise_error(fault).cast(measure.result)).otherwise(value)

    @without_call_sites()
    def partial(self, rows: DataFrame, measures: Mapping[str, Column], labels: bool) -> DataFrame:
        """Return a batch's partial rows: ``_scope``, ``_key``, the keys, the parts, ``_rows`` and the front's
        measures."""
        counted = [*([self._xor] if labels else []), *[value.alias(name) for name, value in measures.items()]]
        return rows.groupBy(*self._grouping).agg(*self._partial, *counted)

    def parts(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """Return the partial rows of some parts of the state."""
        return parquet_of(spark, self.plan.part_schema).parquet(*paths)

    def rollup(self, part: Dataset, measures: Sequence[str], labels: bool) -> tuple[list[Group], int]:
        """Return what a batch's partial rows, as written, say of its substreams; and how many they are."""
        columns = ["_scope", "_key", "_rows", *(["_xor"] if labels else []), *measures]
        table = part.to_table(columns=columns)
        folded = fold_table(table, "_xor" if labels else None, measures)
        return groups_of(folded.items(), self.rule), table.num_rows

    def merge(self, partials: DataFrame) -> DataFrame:
        """Merge partial rows into one for each substream and key."""
        return partials.groupBy("_scope", "_key", *map(named, self.plan.keys)).agg(*self.merging)

    def selected(self, spark: SparkSession, selections: Sequence[Selection]) -> DataFrame:
        """Return the partial rows of some substreams in some parts of the state each."""
        return reduce(DataFrame.unionByName, (self.of(self.parts(spark, paths), some) for paths, some in selections))

    def grouped(self, spark: SparkSession, selections: Sequence[Selection], group: RowGroup) -> DataFrame:
        """Return the merged partial rows of a group, with its marks."""
        merged = self.merge(self.rule.regrouped(self.selected(spark, selections), group))
        return merged.withColumns({name: F.lit(value) for name, value in group.marks}) if group.marks else merged

    def results(self, merged: DataFrame, keep: Sequence[ColumnOrName] = (), checked: bool = True) -> DataFrame:
        """Return the result rows of merged partial rows, with some of their columns kept.

        Args:
            checked: whether an overflow fails where Spark's own aggregate would; else it is null or wrapped.
        """
        values = self._checked(merged.sparkSession) if checked else self._values
        return self.rule.finished(merged).select(*self._own_result, *values, *keep)

    def schema(self, rows: DataFrame) -> T.StructType:
        """Return the schema of the results, or of what a function makes them of.

        Args:
            rows: with the columns of the stream.
        """
        kinds = {REVISION: F.lit(0), COMPLETENESS: F.lit(""), FINAL: F.lit(True), AS_OF: F.lit(0).cast("bigint")}
        added = [kinds[name].alias(name) for name in self.plan.added]
        return self.results(self.partial(rows, {}, labels=False), added).schema

    def tracked_schema(self, rows: DataFrame, job: str) -> T.StructType:
        """Return the schema of the results as a channel takes them; `rows` as for `schema`."""
        return self.tracked(self.partial(rows, {}, labels=False), job).schema

    def results_by_substream(self, merged: DataFrame) -> dict[tuple[Substream, int], int]:
        """Return how many result rows merged partial rows make, by substream and revision."""
        key = self.rule.plain(F.col("_key"))
        marked = merged if self.plan.revisions else merged.withColumn("_revision", F.lit(0))
        counted = marked.groupBy("_scope", key.alias("_key"), "_revision").count().collect()
        return {(self.rule.substream(scope, key), number): rows for scope, key, number, rows in counted}

    def tracked(self, merged: DataFrame, job: str) -> DataFrame:
        """Return the result rows with `_tracker`, for a channel: each is a child of the state that it was kept in."""
        scope, key = F.col("_scope"), F.col("_key")
        lineage = child_label(F.xxhash64(F.lit(job), scope, key), self.plan.stream.segment, self._key_parts)
        tracked = merged.withColumn(TRACKER, self.rule.tracker(scope, key, lineage))
        return self.results(tracked, keep=(TRACKER,))

    @cached_property
    def _key_parts(self) -> list[Column]:
        """The keys, for a label; those made of several values as text, since a hash does not see where each ends."""
        return [
            whole_text(named(name))
            if isinstance(self.plan.part_schema[name].dataType, MADE_OF_SEVERAL)
            else named(name)
            for name in self.plan.keys
        ]

    def of(self, partials: DataFrame, wanted: set[Substream]) -> DataFrame:
        """Return the rows of some substreams."""
        return only(partials, self.rule, wanted)


class KeptRows(Aggregation):
    """Rows kept instead of being aggregated: a partial row is a row, and parts are merged by putting them together."""

    def partial(self, rows: DataFrame, measures: Mapping[str, Column], labels: bool) -> DataFrame:
        """Return a batch's rows: ``_scope``, ``_key``, the keys, the kept columns, ``_rows``."""
        assert not measures, "rows that are kept are counted beside"
        kept = [value.alias(name) for name, value in self.plan.kept]
        label = [F.col(f"{TRACKER}.label").alias("_xor")] if labels else []
        return rows.select(*self._grouping, *kept, F.lit(1).cast("bigint").alias("_rows"), *label)

    def rollup(self, part: Dataset, measures: Sequence[str], labels: bool) -> tuple[list[Group], int]:
        columns = ["_scope", "_key", "_rows", *(["_xor"] if labels else [])]
        folded: dict[Key, dict[str, Any]] = {}
        number = 0
        for piece in part.to_batches(columns=columns):  # one after the other: there are as many as rows
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


def only(partials: DataFrame, rule: Substreams, wanted: set[Substream]) -> DataFrame:
    """Return the partial rows of some substreams.

    Args:
        partials: with ``_scope`` and ``_key``.
        rule: by which they fell into substreams.
    """
    if len(wanted) <= _LISTED:
        # As one constant: Spark recompiles the code that it generates whenever a number in it changes.
        listed = ", ".join(_literal(substream.scope, rule.key_of(substream)) for substream in wanted)
        return partials.where(f"array_contains(array({listed}), struct(_scope, _key))")
    rows = [(substream.scope, rule.key_of(substream)) for substream in wanted]
    table = partials.sparkSession.createDataFrame(rows, f"_s string, _k {rule.plain_type}")
    matches = (F.col("_scope") == F.col("_s")) & (rule.plain(F.col("_key")) == F.col("_k"))
    return partials.join(F.broadcast(table), matches, "left_semi")


def _literal(scope: str, key: int | str) -> str:
    """Return a substream's scope and key in SQL; texts in hexadecimal, so that nothing in them is read as SQL."""

    def text(value: str) -> str:
        return f"cast(X'{value.encode().hex()}' as string)"

    shown = text(key) if isinstance(key, str) else f"timestamp_micros({key})"
    return f"named_struct('_scope', {text(scope)}, '_key', {shown})"
