"""Declaration of a release: what the user asks for, resolved against the rows that it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T  # noqa: N812

from spark_client.aggregates.aggregate import Aggregate
from spark_client.aggregates.decomposition import decompose, result_field, storable
from spark_client.columns import ColumnOrName, check_present, check_types, column, nullable, resolve, schema_of
from spark_client.errors import UsageError, check_choice, check_kind, check_setting, refused
from spark_client.plan.names import alike, check_columns
from spark_client.plan.releases import FunctionKind, Measure, OnOverflow, ReleasePlan, ResultFunction
from spark_client.plan.streams import Source, Stream
from spark_client.release.aggregation import aggregation_of
from spark_client.spark_internals.columns import expression_form, stable_text
from spark_client.spark_internals.plans import has_lambda
from spark_client.spark_internals.tasks import passes_through_arrow
from spark_client.windows import lengths
from spark_client.windows.lengths import Duration
from spark_client.windows.substreams import Ability

_IN_FILES: Final = "which files of the state cannot hold: cast it to a type that Parquet has"


def declare(
    stream: Stream,
    rows: DataFrame,
    keys: ColumnOrName | Sequence[ColumnOrName],
    aggs: Mapping[str, Aggregate | Column] | None = None,
    columns: Sequence[ColumnOrName] = (),
    revisions: bool = False,
    completeness: bool = False,
    on_overflow: OnOverflow = "fail",
    early: Duration | None = None,
) -> ReleasePlan:
    """Resolve a release as a user declares it against the rows it is for.

    Args:
        keys, aggs, columns, revisions, completeness, on_overflow, early: the user's own arguments of
            `Tracking.release`.
    """
    # A Column is neither true nor false, so the types come first.
    if isinstance(columns, str | Column) or not isinstance(aggs, Mapping | None) or bool(aggs) == bool(columns):
        raise UsageError(
            "release needs aggs={'name': F.count('*'), …} to aggregate rows, or columns=['name', …] to keep them, and "
            "not both"
        )
    keys = [keys] if isinstance(keys, str | Column) else keys
    check_choice("on_overflow", on_overflow, "fail", "null")
    if columns:
        _check_replaced(early, "rows that are kept have")
    every = None if early is None else lengths.not_negative(rows.sparkSession, early, "early")
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
    check_types(fields, storable, "keys", _IN_FILES)
    check_grouping(rows.sparkSession)
    for field, key in zip(fields, keys, strict=True):
        with refused(
            f"keys: Spark cannot group by {field.name!r}, which is {field.dataType.simpleString()}",
            "Cast it to a type that Spark compares, a string for example, under a name of its own",
        ):
            rows.groupBy(column(key)).count()
    rule.check_release(rows, fields, asks)
    kept = [resolve(rows, value, "columns") for value in columns]
    check_types(kept, storable, "columns", _IN_FILES)
    plan = ReleasePlan(
        stream,
        tuple(field.name for field in fields),
        tuple(column(key) for key in keys),
        tuple(_measure(rows, number, *each) for number, each in enumerate((aggs or {}).items())),
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
    _check_names("release", plan.columns, rows.sparkSession, "choose others, for keys and columns with .alias('…')")
    for name, key in zip([*plan.keys, *[field.name for field in kept]], [*keys, *columns], strict=True):
        if "lambdafunction(" in name and has_lambda(rows, column(key)):
            raise UsageError(
                f"release: the key or column {name!r} has another name at each start: give it one, with .alias('…')"
            )
    partial = aggregation_of(plan).partial(rows, {}, labels=False)
    return replace(plan, part_schema=nullable(partial.schema))  # as Parquet gives it back


def _measure(rows: DataFrame, number: int, name: str, value: Aggregate | Column) -> Measure:
    aggregate = decompose(name, value, rows)
    if text := stable_text(rows, aggregate.native):
        aggregate = replace(aggregate, called=text)
    parts = tuple(f"_part_{number}_{place}" for place in range(len(aggregate.partial)))
    result = result_field(rows, aggregate)
    return Measure(name, aggregate, parts, result.dataType, result.nullable)


def check_grouping(spark: SparkSession) -> None:
    """Refuse a session in which Spark drops what rows are grouped by."""
    why = "results would lack what they are grouped by; drop columns where results are read"
    check_setting(spark, "spark.sql.retainGroupColumns", "false", "release", why)


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
        schema: of what it makes; None: it is called with no rows to find out.
    """
    check_kind("the function of apply", function, Callable, "give a function")
    if plan.function is not None:
        raise UsageError(f"the results are made by {plan.function.name} already: call both in one function")
    _check_replaced(plan.early, "a function would be called for what is not whole, and its results have")
    spark = rows.sparkSession
    made = _schema_of(plan, rows, function) if schema is None else schema_of(schema, "schema")
    names = made.fieldNames()
    check_types(made.fields, storable, "apply", _IN_FILES)
    if kind == "rows":
        own = (*plan.own, *plan.added)
        advice = (
            "It is known by this column what the function's results are of: keep it as it is, in "
            f"groupBy({', '.join(map(repr, own))}, …) for example"
        )
        check_present(own, names, "apply: column", advice)
    else:
        taken = [field for field in plan.part_schema.fields if field.name in (*plan.keys, *plan.values)]
        reason = "which Spark does not pass to functions of Python: cast it to another type"
        check_types((*made.fields, *taken), passes_through_arrow, "apply", reason)
    applied = replace(plan, function=ResultFunction(kind, function, nullable(made)))
    advice = f"choose others than {names}. The columns of the substream and the keys are there without you"
    _check_names("apply", applied.columns if names else [], spark, advice)
    return applied


def _check_replaced(early: object, why: str) -> None:
    """Refuse early results of what is no aggregate."""
    if early is not None:
        raise UsageError(
            f"release(…, early=…): {why} no key by which the final ones could replace early ones: give aggs={{…}} "
            "alone, or leave early out"
        )


def _check_names(what: str, columns: Sequence[str], spark: SparkSession, advice: str) -> None:
    taken = {*alike(columns, spark), *(name for name in columns if name.startswith("_"))}
    if taken or not columns:
        raise UsageError(f"{what}: the names {sorted(taken)} are taken or empty, or begin with an underscore: {advice}")


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
    check_kind("apply: the function's result", answer, DataFrame, "give a function from DataFrame to DataFrame")
    schema: T.StructType = answer.schema
    return schema


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
