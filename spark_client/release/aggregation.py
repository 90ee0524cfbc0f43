"""The aggregation of a release: what was declared, and the native plans for its parts and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.counting.folding import files, fold_table
from spark_client.counting.probes import groups_of
from spark_client.errors import UsageError
from spark_client.plan.aggregates import Aggregate
from spark_client.plan.belonging import no_revision
from spark_client.plan.decomposition import decompose, result_field, storable
from spark_client.plan.fronts import Group
from spark_client.plan.labels import child_label
from spark_client.plan.names import alike, check_columns
from spark_client.plan.streams import Stream
from spark_client.plan.substreams import TRACKER, ColumnOrName, Substream, column, named, names_of, resolve
from spark_client.storage.directories import parquet_of

OnOverflow: TypeAlias = Literal["fail", "null"]

REVISION: Final = "revision"  #: the results' column that tells their revision
COMPLETENESS: Final = "completeness"  #: the results' column that tells what of their substream they are of
_LISTED: Final = 200  #: substreams that are looked for by a list rather than by a join


@dataclass(frozen=True)
class Measure:
    """One aggregate of the result and the columns that hold its parts."""

    name: str
    aggregate: Aggregate
    parts: tuple[str, ...]
    result: T.DataType
    nullable: bool

    @property
    def value(self) -> Column:
        """The result, from the merged parts; null, or wrapped, if it has overflowed."""
        value = self.aggregate.finish(*map(F.col, self.parts)).cast(self.result)
        if self.nullable:
            return value
        nothing = F.array() if isinstance(self.result, T.ArrayType) else F.lit(0)
        return F.coalesce(value, nothing.cast(self.result))

    @property
    def overflowed(self) -> Column | None:
        """Whether it has overflowed; None: it cannot."""
        check = self.aggregate.overflowed
        return None if check is None else check(*map(F.col, self.parts))


class Aggregation:
    """An aggregation by substream and keys, as it was declared, and the native plans that carry it out.

    Attributes:
        columns: of the results: the scope, ``window`` (or the substream's name), the keys, the aggregates, and
            ``revision`` if there are revisions, and ``completeness`` if that was asked for.
    """

    def __init__(
        self,
        stream: Stream,
        keys: Sequence[ColumnOrName],
        aggs: Mapping[str, Aggregate | Column],
        revisions: bool = False,
        completeness: bool = False,
        on_overflow: OnOverflow = "fail",
    ) -> None:
        if not aggs:
            raise UsageError("release needs aggs={'name': F.count('*'), …}")
        if on_overflow not in ("fail", "null"):
            raise UsageError(f"on_overflow={on_overflow!r}: either 'fail' or 'null'")
        self._on_overflow = on_overflow
        self._made: dict[bool, list[Column]] = {}  # what `_checked` gives, in ANSI mode and without
        self.stream = stream
        self.rule = stream.input.rule
        self.revisions = revisions
        self.completeness = completeness
        check_columns(stream.df, f"release of {stream.segment!r}")  # what comes late is kept by its columns' names
        if revisions and not self.rule.windows and stream.input.belonging is not None:
            stream.input.belonging.require(no_revision(str(self.rule.name)))
        fields = [resolve(stream.df, key, "keys") for key in keys]
        if unfit := [field for field in fields if not storable(field.dataType)]:
            raise UsageError(
                f"keys: files of the state cannot hold {unfit[0].name!r}, which is {unfit[0].dataType.simpleString()}: "
                "cast it to a type that Parquet has"
            )
        self.keys = [field.name for field in fields]
        self._key_columns = [column(key) for key in keys]
        self.measures = []
        for number, (name, value) in enumerate(aggs.items()):
            aggregate = decompose(name, value, stream.df)
            parts = tuple(f"_part_{number}_{place}" for place in range(len(aggregate.partial)))
            result = result_field(stream.df, aggregate)
            self.measures.append(Measure(name, aggregate, parts, result.dataType, result.nullable))
        self.added = [*([REVISION] if revisions else []), *([COMPLETENESS] if completeness else [])]
        self.columns = [*self._own_columns(), *self.keys, *(measure.name for measure in self.measures), *self.added]
        taken = {*alike(self.columns, stream.df.sparkSession), *(name for name in self.columns if name.startswith("_"))}
        if taken:
            raise UsageError(
                f"release: the names {sorted(taken)} are taken or empty, or begin with an underscore: choose others, "
                "for keys with .alias('…')"
            )
        if passing := [name for name in self.keys if "lambda" in name and name not in stream.df.columns]:
            raise UsageError(
                f"release: the key {passing[0]!r} is called otherwise at each start: give it a name, with .alias('…')"
            )

    def described(self) -> dict[str, object]:
        """What shapes its state, as plain data."""
        parts = {field.name: field.dataType.simpleString() for field in self.part_schema.fields}
        aggregates = {
            measure.name: f"{measure.aggregate.description} kept as "
            + ", ".join([*filter(None, [measure.aggregate.form]), *(parts[part] for part in measure.parts)])
            for measure in self.measures
        }
        return {"keys": {key: parts[key] for key in self.keys}, "aggregates": aggregates}

    def _own_columns(self) -> list[str]:
        scope = [] if self.rule.scope is None else [self.rule.scope]
        return [*scope, "window" if self.rule.windows else str(self.rule.name)]

    # ---------------------------------------------------------------- native plans
    # Columns are made once: each costs some calls into the JVM, which a small batch would notice.

    @cached_property
    def _grouping(self) -> list[Column]:
        key = F.col(f"{TRACKER}.{'end' if self.rule.windows else 'name'}")
        keys = [value.alias(name) for name, value in zip(self.keys, self._key_columns, strict=True)]
        return [F.col(f"{TRACKER}.scope").alias("_scope"), key.alias("_key"), *keys]

    @cached_property
    def _partial(self) -> list[Column]:
        parts = [
            value.alias(name)
            for measure in self.measures
            for name, value in zip(measure.parts, measure.aggregate.partial, strict=True)
        ]
        return [*parts, F.count("*").alias("_rows")]

    @cached_property
    def _xor(self) -> Column:
        return F.bit_xor(F.col(f"{TRACKER}.label")).alias("_xor")

    @cached_property
    def part_schema(self) -> T.StructType:
        """Of a part of the state."""
        return self.partial(self.stream.df, {}, labels=False).schema.toNullable()  # as Parquet gives it back

    @cached_property
    def _merge(self) -> list[Column]:
        parts = [
            merge(*map(F.col, measure.parts)).cast(self.part_schema[name].dataType).alias(name)
            for measure in self.measures
            for name, merge in zip(measure.parts, measure.aggregate.merge, strict=True)
        ]
        return [*parts, F.sum("_rows").alias("_rows")]

    @cached_property
    def _own_result(self) -> list[Column]:
        name, end = (F.lit(None), F.col("_key")) if self.rule.windows else (F.col("_key"), F.lit(None))
        return [*self.rule.result_columns(F.col("_scope"), name, end), *[named(key) for key in self.keys]]

    @cached_property
    def _values(self) -> list[Column]:
        return [measure.value.alias(measure.name) for measure in self.measures]

    def _checked(self, spark: SparkSession) -> list[Column]:
        """The values, and what an overflow makes of them: it is Spark's, unless it is to be null."""
        ansi = spark.conf.get("spark.sql.ansi.enabled") == "true"
        if ansi not in self._made:
            self._made[ansi] = [self._unless_overflowed(measure, ansi).alias(measure.name) for measure in self.measures]
        return self._made[ansi]

    def _unless_overflowed(self, measure: Measure, ansi: bool) -> Column:
        overflowed, value = measure.overflowed, measure.value
        if overflowed is None:
            return value
        if self._on_overflow == "null":
            return F.when(~F.coalesce(overflowed, F.lit(False)), value)
        if not ansi and not measure.aggregate.fails:
            return value
        where = F.to_json(F.struct("_scope", "_key", *[named(key) for key in self.keys]))
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

    def partial(self, rows: DataFrame, measures: Mapping[str, Column], labels: bool) -> DataFrame:
        """A batch's partial rows: ``_scope``, ``_key``, the keys, the parts, ``_rows`` and the front's measures."""
        counted = [*([self._xor] if labels else []), *[value.alias(name) for name, value in measures.items()]]
        return rows.groupBy(*self._grouping).agg(*self._partial, *counted)

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns of the stream's rows that it uses; None: not known."""
        reads = [names_of(self._key_columns), *(measure.aggregate.reads for measure in self.measures)]
        known = [names for names in reads if names is not None]
        return frozenset().union(*known) if len(known) == len(reads) else None

    def parts(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        """The partial rows of some parts of the state."""
        return parquet_of(spark, self.part_schema).parquet(*paths)

    def rollup(self, part: Path, measures: Sequence[str], labels: bool) -> tuple[list[Group], int]:
        """What a batch's partial rows, as written, say of its substreams; and how many they are."""
        columns = ["_scope", "_key", "_rows", *(["_xor"] if labels else []), *measures]
        table = files(part).to_table(columns=columns)
        folded = fold_table(table, "_xor" if labels else None, measures)
        return groups_of(folded.items(), self.rule), table.num_rows

    def merged(self, partials: DataFrame, wanted: set[Substream]) -> DataFrame:
        """The partial rows of some substreams, one for each key."""
        found = self.of(partials, wanted)
        return found.groupBy("_scope", "_key", *map(named, self.keys)).agg(*self._merge)

    def results(self, merged: DataFrame, keep: Sequence[ColumnOrName] = (), checked: bool = True) -> DataFrame:
        """The result rows of merged partial rows, with some of their columns kept.

        Args:
            merged: the rows.
            keep: of their columns.
            checked: whether an overflow fails where Spark's own aggregate would; else it is null or wrapped.
        """
        values = self._checked(merged.sparkSession) if checked else self._values
        return merged.select(*self._own_result, *values, *keep)

    @property
    def schema(self) -> T.StructType:
        """Of the results."""
        kinds = {REVISION: F.lit(0), COMPLETENESS: F.lit("")}
        added = [kinds[name].alias(name) for name in self.added]
        return self.results(self.partial(self.stream.df, {}, labels=False), added).schema

    def results_by_substream(self, merged: DataFrame) -> dict[tuple[Substream, int], int]:
        """How many result rows merged partial rows make, by substream and revision."""
        windows = self.rule.windows
        key = F.unix_micros("_key") if windows else F.col("_key")
        marked = merged if self.revisions else merged.withColumn("_revision", F.lit(0))
        counted = marked.groupBy("_scope", key.alias("_key"), "_revision").count().collect()
        return {
            (self.rule.substream(scope, None if windows else name, name if windows else None), number): rows
            for scope, name, number, rows in counted
        }

    def tracked(self, merged: DataFrame, job: str) -> DataFrame:
        """The result rows with `_tracker`, for a channel: each is a child of the state that it was kept in."""
        scope, key = F.col("_scope"), F.col("_key")
        name, end = (
            (F.lit(None).cast("string"), key) if self.rule.windows else (key, F.lit(None).cast(T.TimestampType()))
        )
        lineage = child_label(F.xxhash64(F.lit(job), scope, key), self.stream.segment, self._key_parts)
        tracker = F.struct(scope.alias("scope"), name.alias("name"), end.alias("end"), lineage.alias("label"))
        return self.results(merged.withColumn(TRACKER, tracker), keep=(TRACKER,))

    @cached_property
    def _key_parts(self) -> list[Column]:
        """The keys, for a label; those made of several values as text, since a hash does not see where each ends."""
        made_of_several = (T.ArrayType, T.MapType, T.StructType)
        return [
            F.to_json(F.struct(named(name)))
            if isinstance(self.part_schema[name].dataType, made_of_several)
            else named(name)
            for name in self.keys
        ]

    def of(self, partials: DataFrame, wanted: set[Substream]) -> DataFrame:
        """The rows of some substreams."""
        windows = self.rule.windows
        if len(wanted) <= _LISTED:
            # As one constant: Spark compiles what it generates anew whenever a number in it is another one.
            listed = ", ".join(_literal(substream) for substream in wanted)
            return partials.where(f"array_contains(array({listed}), struct(_scope, _key))")
        rows = [(scope, name if end_time is None else end_time) for scope, name, end_time in wanted]
        table = partials.sparkSession.createDataFrame(rows, f"_s string, _k {'long' if windows else 'string'}")
        key = F.unix_micros("_key") if windows else F.col("_key")
        matches = (F.col("_scope") == F.col("_s")) & (key == F.col("_k"))
        return partials.join(F.broadcast(table), matches, "left_semi")


def _literal(substream: Substream) -> str:
    """A substream's scope and key in SQL; texts in hexadecimal, so that nothing in them is read as SQL."""

    def text(value: str) -> str:
        return f"cast(X'{value.encode().hex()}' as string)"

    scope, name, end_time = substream
    key = text(name) if end_time is None else f"timestamp_micros({end_time})"
    return f"named_struct('_scope', {text(scope)}, '_key', {key})"
