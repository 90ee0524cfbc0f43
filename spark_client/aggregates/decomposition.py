"""Aggregates made of what a user wrote, for the types of the rows; or a refusal that names a form that works."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.aggregates.aggregate import BY_NAME, Aggregate, finished
from spark_client.aggregates.collections import count_distinct
from spark_client.aggregates.sums import count
from spark_client.columns import CALENDAR_INTERVALS, nullable, quoted, types_in
from spark_client.errors import UsageError, check_faults, check_kind, refused
from spark_client.spark_internals.columns import call_in
from spark_client.spark_internals.plans import has_literal

_STATISTICS: Final = "spark.sql.legacy.statisticalAggregate"  #: the deviation of one value is NaN, instead of null


def decompose(name: str, value: Aggregate | Column, rows: DataFrame) -> Aggregate:
    """Make an aggregate of what a user wrote: one of `aggregates`, or Spark's own over a plain column.

    Args:
        value: an `Aggregate`, or a column such as ``F.avg("delay")``.
    """
    if isinstance(value, Aggregate):
        _field(rows, name, value.native)
        return _fitting(name, value, rows)
    check_kind(f"aggs[{name!r}]", value, Column, "give an aggregate, such as F.avg('delay')")
    field = _field(rows, name, value)
    function, over = call_in(value)
    known = BY_NAME.get(function)
    check_faults(
        f"aggs[{name!r}] = {value}:",
        (
            _WITH_CLAUSE.search(str(value)),
            "FILTER, DISTINCT, OVER and aliases are not taken. For FILTER write aggregates.sum(value).where(…); for "
            "distinct counts aggregates.count_distinct(…); the result is called as its key in aggs",
        ),
        (
            known is None,
            f"cannot be merged from parts. These can: {', '.join(sorted(BY_NAME))}, count_distinct, approx_percentile, "
            "and expressions of them (from spark_client.aggregates: aggregates.sum('a') / aggregates.sum('b'), or "
            "aggregates.combine). Others, such as ordered lists, need all rows at once: tracking.release(…, "
            "columns=[…]).apply(…)",
        ),
    )
    assert known is not None
    if over in ("*", "1") and function == "count" and over not in rows.columns:
        return count("*")

    def is_written_as(made: Column) -> bool:
        # Spark's text for a column loses DISTINCT and more; what it resolves to does not.
        alike = str(made) == str(value) and _field(rows, name, made).name == field.name
        return alike and not has_literal(rows, value)

    several = over.split(", ")
    if all(each in rows.columns for each in several):
        if known.columns == len(several) > 1 and is_written_as(getattr(F, function)(*several)):
            return _fitting(name, known.make(*several), rows)
        if function == "count" and is_written_as(F.count_distinct(*several)):
            return _fitting(name, count_distinct(*several), rows)
    if over.startswith("`") and over not in rows.columns:
        over = over[1:-1].replace("``", "`")
    if over in rows.columns and not re.fullmatch(r"\w+", over):
        over, plain = quoted(over), True
    else:
        plain = over in rows.columns
    if not (plain and known.shown and known.columns == 1) or not is_written_as(getattr(F, function)(over)):
        raise UsageError(
            f"aggs[{name!r}] = {value}: Spark does not let us see into this expression. Write it as "
            f"spark_client.aggregates.{known.make.__name__}(…), or put what it is over into a column first "
            "(withColumn); for distinct counts of expressions there is aggregates.count_distinct"
        )
    return _fitting(name, known.make(over), rows)


#: Clauses that an aggregate may have and the functions of this module have not, in the text of a column of Spark's.
_WITH_CLAUSE: Final = re.compile(r"\)\s*(filter\s*\(|over\s*\(|as\s)|\(\s*distinct\s", re.IGNORECASE)


def _fitting(name: str, aggregate: Aggregate, rows: DataFrame) -> Aggregate:
    """Return the aggregate for the type of what it is over on these rows."""
    if aggregate.combined is not None:
        aggregate = _united(aggregate, [_fitting(name, each, rows) for each in aggregate.combined[1]], rows)
    if aggregate.for_type is not None and aggregate.over is not None:
        with refused(f"aggs[{name!r}] = {aggregate.native}", errors=UsageError):
            fitted = aggregate.for_type(rows.select(aggregate.over).schema.fields[0].dataType)
        aggregate = replace(fitted, reads=aggregate.reads)
    if aggregate.legacy is not None and str(rows.sparkSession.conf.get(_STATISTICS, "false")).lower() == "true":
        aggregate = replace(aggregate, finish=aggregate.legacy)
    if not aggregate.partial:  # a constant
        return aggregate
    names = [f"part_{place}" for place in range(len(aggregate.partial))]
    parts = [value.alias(part) for part, value in zip(names, aggregate.partial, strict=True)]
    merged = [merge(*map(F.col, names)).alias(part) for part, merge in zip(names, aggregate.merge, strict=True)]
    kind = result_field(rows, aggregate).dataType
    with refused(
        f"aggs[{name!r}] = {aggregate.native}: Spark cannot take this aggregate in parts over values of this type",
        "Aggregate another form of them, a text for example: put it into a column first (withColumn)",
    ):
        kept = rows.groupBy().agg(*parts)
        kept.groupBy().agg(*merged).select(aggregate.finish(*map(F.col, names)).cast(kind)).schema  # noqa: B018
    for field in kept.schema.fields:
        if not storable(field.dataType):
            raise UsageError(
                f"aggs[{name!r}] = {aggregate.native}: files of the state cannot hold {field.dataType.simpleString()}: "
                "cast what is aggregated to a type that Parquet has"
            )
    return aggregate


def _united(whole: Aggregate, fitted: Sequence[Aggregate], rows: DataFrame) -> Aggregate:
    """Return an expression over aggregates, with the parts of all of them.

    Args:
        fitted: they, for the types of these rows.
    """
    assert whole.combined is not None
    function = whole.combined[0]
    fields = [result_field(rows, each) for each in fitted]
    firsts = list(accumulate((len(each.partial) for each in fitted), initial=0))
    places = [slice(first, first + len(each.partial)) for first, each in zip(firsts, fitted, strict=False)]

    def lifted(merge: Callable[..., Column], place: slice) -> Callable[..., Column]:
        return lambda *parts: merge(*parts[place])

    def finish(*parts: Column) -> Column:
        # A literal stays one: Spark takes the type of an integer beside a decimal from its digits, if it is a literal.
        values = [
            finished(each, field, parts[place]) if each.partial else each.native
            for each, field, place in zip(fitted, fields, places, strict=True)
        ]
        return function(*values)

    checks = [
        lifted(each.overflowed, place)
        for each, place in zip(fitted, places, strict=True)
        if each.overflowed is not None
    ]

    def overflowed(*parts: Column) -> Column:
        return reduce(Column.__or__, [F.coalesce(check(*parts), F.lit(False)) for check in checks])

    return replace(
        whole,
        partial=tuple(part for each in fitted for part in each.partial),
        merge=tuple(lifted(merge, place) for each, place in zip(fitted, places, strict=True) for merge in each.merge),
        finish=finish,
        overflowed=overflowed if checks else None,
        fails=any(each.fails for each in fitted),
        form=", ".join(each.form for each in fitted if each.form),
        combined=None,
    )


def storable(kind: T.DataType) -> bool:
    """Return whether Parquet files hold values of a type, and give them back as they were."""
    return not any(isinstance(each, (T.NullType, *CALENDAR_INTERVALS)) for each in types_in(kind))


def result_field(rows: DataFrame, aggregate: Aggregate) -> T.StructField:
    """Return the type that Spark itself gives the aggregate over these rows, and whether it may be null."""
    field = _field(rows, "", aggregate.native)
    return T.StructField(field.name, nullable(T.StructType([field])).fields[0].dataType, field.nullable)


def _field(rows: DataFrame, name: str, value: Column) -> T.StructField:
    with refused(f"aggs[{name!r}] = {value} is not an aggregate over these rows"):
        return rows.groupBy().agg(value).schema.fields[0]
