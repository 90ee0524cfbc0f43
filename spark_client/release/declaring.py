"""Declaration of a release: what the user asks for, resolved against the rows that it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.aggregates.aggregate import Aggregate
from spark_client.aggregates.decomposition import decompose, result_field, storable
from spark_client.columns import ColumnOrName, column, resolve
from spark_client.errors import UsageError
from spark_client.plan.names import alike, check_columns
from spark_client.plan.releases import Measure, OnOverflow, ReleasePlan
from spark_client.plan.resultfunctions import FunctionKind, ResultFunction
from spark_client.plan.sources import Source
from spark_client.plan.streams import Stream
from spark_client.release.keptrows import aggregation_of
from spark_client.spark_internals.columns import expression_form, stable_text
from spark_client.spark_internals.plans import has_lambda
from spark_client.spark_internals.tasks import passes_through_arrow
from spark_client.windows import durations
from spark_client.windows.durations import Duration
from spark_client.windows.substreams import Ability


def declare(
    stream: Stream,
    rows: DataFrame,
    keys: Sequence[ColumnOrName],
    aggs: Mapping[str, Aggregate | Column] | None = None,
    columns: Sequence[ColumnOrName] = (),
    revisions: bool = False,
    completeness: bool = False,
    on_overflow: OnOverflow = "fail",
    early: Duration | None = None,
) -> ReleasePlan:
    """Resolve a release as a user declares it against the rows it is for.

    Args:
        keys, aggs, columns, revisions, completeness, on_overflow, early: as for `Tracking.release`.

    Raises:
        UsageError: a column is not there, an aggregate cannot be merged from parts, a name is taken.
    """
    if bool(aggs) == bool(columns) or isinstance(columns, str) or not isinstance(aggs, Mapping | None):
        raise UsageError(
            "release needs aggs={'name': F.count('*'), …} to aggregate rows, or columns=['name', …] to keep them, and "
            "not both"
        )
    if isinstance(keys, str | Column):
        raise UsageError(f"keys={keys!r}: give a list, [{keys!r}]")
    if on_overflow not in ("fail", "null"):
        raise UsageError(f"on_overflow={on_overflow!r}: either 'fail' or 'null'")
    if early is not None and columns:
        raise UsageError(
            "release(…, columns=…, early=…): rows that are kept have no key by which the final ones could replace "
            "early ones: give aggs={…}, or leave early out"
        )
    every = None if early is None else durations.microseconds(rows.sparkSession, early, "early")
    if every is not None and every < 0:
        raise UsageError(f"early={early!r}: the time between two early results is not below zero; '0 seconds': always")
    rule, belonging = stream.input.rule, stream.input.belonging
    asks = f"release of {stream.segment!r}"
    if early is not None:
        rule.require(Ability.EARLY, asks)
    if columns or revisions:
        rule.require(Ability.KEPT, asks)
    check_columns(rows, asks)  # what comes late is kept by its columns' names
    if revisions and belonging is not None and isinstance(stream.input, Source):
        stricter = replace(stream.input, belonging=rule.revisable(belonging))
        stream = replace(stream, input=stricter)
    fields = [resolve(rows, key, "keys") for key in keys]
    if unfit := [field for field in fields if not storable(field.dataType)]:
        raise UsageError(
            f"keys: files of the state cannot hold {unfit[0].name!r}, which is {unfit[0].dataType.simpleString()}: "
            "cast it to a type that Parquet has"
        )
    check_grouping(rows.sparkSession)
    for field, key in zip(fields, keys, strict=True):
        try:
            rows.groupBy(column(key)).count()
        except Exception as error:
            raise UsageError(
                f"keys: Spark cannot group by {field.name!r}, which is {field.dataType.simpleString()}: cast it to a "
                "type that it compares, a string for example, under a name of its own"
            ) from error
    rule.check_release(rows, fields, asks)
    kept = [resolve(rows, value, "columns") for value in columns]
    if unfit := [field for field in kept if not storable(field.dataType)]:
        raise UsageError(
            f"columns: files of the state cannot hold {unfit[0].name!r}, which is {unfit[0].dataType.simpleString()}: "
            "cast it to a type that Parquet has"
        )
    measures = []
    for number, (name, value) in enumerate((aggs or {}).items()):
        aggregate = decompose(name, value, rows)
        if text := stable_text(rows, aggregate.native):
            aggregate = replace(aggregate, called=text)
        parts = tuple(f"_part_{number}_{place}" for place in range(len(aggregate.partial)))
        result = result_field(rows, aggregate)
        measures.append(Measure(name, aggregate, parts, result.dataType, result.nullable))
    plan = ReleasePlan(
        stream,
        tuple(field.name for field in fields),
        tuple(column(key) for key in keys),
        tuple(measures),
        T.StructType(),
        revisions,
        completeness,
        on_overflow,
        tuple(zip([field.name for field in kept], map(column, columns), strict=True)),
        early=every,
        forms={
            field.name: expression_form(rows, column(value))
            for field, value in zip([*fields, *kept], [*keys, *columns], strict=True)
        },
    )
    taken = {*alike(plan.columns, rows.sparkSession), *(name for name in plan.columns if name.startswith("_"))}
    if taken:
        raise UsageError(
            f"release: the names {sorted(taken)} are taken or empty, or begin with an underscore: choose others, "
            "for keys and columns with .alias('…')"
        )
    for name, key in zip([*plan.keys, *[field.name for field in kept]], [*keys, *columns], strict=True):
        if "lambdafunction(" in name and has_lambda(rows, column(key)):
            raise UsageError(
                f"release: the key or column {name!r} is called otherwise at each start: name it, with .alias('…')"
            )
    partial = aggregation_of(plan).partial(rows, {}, labels=False)
    return replace(plan, part_schema=partial.schema.toNullable())  # as Parquet gives it back


def check_grouping(spark: SparkSession) -> None:
    """Refuse a session in which Spark drops what rows are grouped by.

    Raises:
        UsageError: it is one.
    """
    if (spark.conf.get("spark.sql.retainGroupColumns") or "true").lower() == "false":
        raise UsageError(
            "spark.sql.retainGroupColumns=false: results would lack what they are grouped by. Leave it true, and drop "
            "columns where results are read"
        )


def with_function(
    plan: ReleasePlan,
    rows: DataFrame,
    kind: FunctionKind,
    function: Callable[..., Any],
    schema: T.StructType | str | None,
) -> ReleasePlan:
    """Return a release whose results a function makes.

    Args:
        rows: with the columns of the stream.
        kind: what the function takes.
        schema: of what it makes; None: it is called with no rows to find out.

    Raises:
        UsageError: it is no function, or its results do not fit.
    """
    plan.rule.require(Ability.APPLY, f"apply to {plan.stream.segment!r}")
    if not callable(function):
        raise UsageError(f"apply takes a function, not {function!r}")
    if plan.function is not None:
        raise UsageError(f"the results are made by {plan.function.name} already: call both in one function")
    if plan.early is not None:
        raise UsageError(
            "apply: of a release with early=… a function would be called for what is not whole, and its results have "
            "no key by which the final ones could replace them: leave early out, or the function"
        )
    spark = rows.sparkSession
    made = _schema_of(plan, rows, function) if schema is None else _parsed(schema)
    names = made.fieldNames()
    if unfit := [field for field in made.fields if not storable(field.dataType)]:
        raise UsageError(
            f"apply: {unfit[0].name!r} is {unfit[0].dataType.simpleString()}, which files do not hold: cast it to "
            "another type"
        )
    if kind == "rows":
        if missing := [name for name in (*plan.own, *plan.added) if name not in names]:
            raise UsageError(
                f"apply: the function's results lack {missing}, by which it is known what they are of: keep these "
                f"columns as they are, in groupBy({', '.join(map(repr, (*plan.own, *plan.added)))}, …) for example. "
                f"They have: {', '.join(names)}"
            )
    else:
        taken = [field for field in plan.part_schema.fields if field.name in (*plan.keys, *plan.values)]
        if unfit := [field for field in (*made.fields, *taken) if not passes_through_arrow(field.dataType)]:
            raise UsageError(
                f"{unfit[0].name!r} is {unfit[0].dataType.simpleString()}, which Spark does not pass to functions of "
                "Python: cast it to another type"
            )
    applied = replace(plan, function=ResultFunction(kind, function, made.toNullable()))
    taken_names = {*alike(applied.columns, spark), *(name for name in names if name.startswith("_"))}
    if taken_names or not names:
        raise UsageError(
            f"apply: the names {sorted(taken_names)} of the results {names} are taken or empty, or begin with an "
            "underscore: choose others. The columns of the substream and the keys are there without you"
        )
    return applied


def _parsed(schema: T.StructType | str) -> T.StructType:
    if isinstance(schema, T.StructType):
        return schema
    try:
        parsed = T.StructType.fromDDL(schema)
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise UsageError(f"schema={schema!r} is no schema, such as 'p50 double, p99 double': {text}") from error
    if not isinstance(parsed, T.StructType):
        raise UsageError(f"schema={schema!r} names no columns: write 'p50 double, p99 double'")
    return parsed


def _schema_of(plan: ReleasePlan, rows: DataFrame, function: Callable[..., Any]) -> T.StructType:
    """Return what a function of a DataFrame makes of no rows."""
    nothing = rows.sparkSession.createDataFrame([], aggregation_of(plan).schema(rows))
    try:
        answer = function(nothing)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".partition("\n")[0].split())
        raise UsageError(
            f"apply: called with no rows to find out what it makes, the function failed: {text}. It gets the columns "
            f"{', '.join(nothing.columns)}. If it cannot take no rows, give schema='…', of all its columns"
        ) from error
    if not isinstance(answer, DataFrame):
        raise UsageError(f"apply takes a function from DataFrame to DataFrame; it returned {type(answer).__name__}")
    return answer.schema


def results_schema(plan: ReleasePlan, rows: DataFrame) -> T.StructType:
    """Return the schema of the results of a release.

    Args:
        rows: with the columns of the stream.
    """
    schema = aggregation_of(plan).schema(rows)
    if plan.function is None:
        return schema
    if plan.function.kind == "rows":
        return plan.function.schema
    beside = {field.name: field for field in (*schema.fields, *plan.function.schema.fields)}
    return T.StructType([beside[name] for name in plan.columns])
