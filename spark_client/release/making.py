"""What a user's function makes of merged rows, with the substream that each result is of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import named
from spark_client.plan.releases import REVISION, ReleasePlan
from spark_client.plan.resultfunctions import ResultFunction
from spark_client.release.aggregation import Aggregation
from spark_client.release.grouped import REPAIR, GroupFunction
from spark_client.windows.substreams import Substream


def made_by(
    release: Aggregation, function: ResultFunction, merged: DataFrame, ended: Sequence[tuple[Substream, int]]
) -> DataFrame:
    """Return the results that a function makes, beside ``_scope``, ``_key`` and, if there are revisions, ``_revision``.

    Args:
        release: whose rows they are.
        function: it; a function of DataFrames is called now.
        merged: the merged rows, with ``_revision`` and ``_completeness`` where results have them.
        ended: of what they are: the substreams, with the numbers of their revisions.
    """
    if function.kind == "rows":
        return _of_all(release, function, merged, ended)
    return _of_groups(release, function, merged)


def added(plan: ReleasePlan) -> list[Column]:
    """Return the columns that results have beside the release's own, from those of merged rows."""
    return [F.col(f"_{name}").alias(name) for name in plan.added]


def _of_groups(release: Aggregation, function: ResultFunction, merged: DataFrame) -> DataFrame:
    plan = release.plan
    hidden = ["_scope", "_key", *(f"_{name}" for name in plan.added)]
    keys = [named(name) for name in plan.keys]
    values = release.results(merged, [F.col(name) for name in hidden])
    taken = values.select(*map(F.col, hidden), *keys, *map(named, plan.values))
    fields = [taken.schema[name] for name in (*hidden, *plan.keys)]
    call = GroupFunction(function, plan.rule, plan.keys, hidden, taken.schema)
    made = taken.groupBy(*hidden, *keys).applyInArrow(
        lambda rows: call(rows), T.StructType([*fields, *function.schema.fields])
    )
    own = plan.rule.result_columns(F.col("_scope"), F.col("_key"))
    return made.select(*map(F.col, hidden), *own, *keys, *map(named, function.schema.fieldNames()), *added(plan))


def _of_all(
    release: Aggregation, function: ResultFunction, merged: DataFrame, ended: Sequence[tuple[Substream, int]]
) -> DataFrame:
    plan, spark = release.plan, merged.sparkSession
    answer = function.function(release.results(merged, added(plan)))
    if not isinstance(answer, DataFrame):
        raise TypeError(f"it returned {type(answer).__name__}, not a DataFrame of Spark")
    if missing := [field.name for field in function.schema.fields if field.name not in answer.columns]:
        raise TypeError(f"its result lacks the columns {missing}: it has {answer.columns}")
    made = answer.select(*[named(field.name).cast(field.dataType).alias(field.name) for field in function.schema])
    # Each result is of a substream that has ended: else nobody could tell what it is of, or count it.
    own = [*plan.own, *([REVISION] if plan.revisions else [])]
    by_end = plan.rule.by_end
    rows = [(each.scope, plan.rule.key_of(each), number) for each, number in ended]
    table = spark.createDataFrame(rows, f"_scope string, _k {'long' if by_end else 'string'}, _revision int")
    key = F.timestamp_micros("_k") if by_end else F.col("_k")
    shown = plan.rule.result_columns(F.col("_scope"), key)
    known = table.select(
        "_scope",
        key.alias("_key"),
        "_revision",
        *[value.alias(f"_own_{place}") for place, value in enumerate([*shown, F.col("_revision")][: len(own)])],
    )
    same = [named(name).eqNullSafe(F.col(f"_own_{place}")) for place, name in enumerate(own)]
    joined = made.join(F.broadcast(known), reduce(Column.__and__, same), "left")
    stray = F.concat(
        F.lit(f"the function {function.name} has made results of no substream that ends in this batch: "),
        F.to_json(F.struct(*map(named, own))),
        F.lit(f". It has to keep {', '.join(own)} as they are. {REPAIR}"),
    )
    scope = F.when(F.col("_scope").isNull(), F.raise_error(stray)).otherwise(F.col("_scope")).alias("_scope")
    revision = ["_revision"] if plan.revisions else []
    return joined.select(scope, "_key", *revision, *map(named, function.schema.fieldNames()))
