"""The state of a release as a table that people read and change: a row for each substream and key of a part of it.

It has the columns of the results under their names. An aggregate of which one value is kept has that value; one of
which several are kept (a mean: a sum and a count) is a struct of them. Rows of the same substream and keys are merged,
whoever made them; so a mapping that drops a key needs no aggregation of its own. Nothing here looks at data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import named
from spark_client.errors import UsageError
from spark_client.plan.releases import Measure, ReleasePlan
from spark_client.plan.state_layout import part_numbers
from spark_client.windows.substreams import Substreams

SUBSTREAM: Final = "_substream"  #: the column of the substream whose part a row is: a struct of the scope and the key


def exported(partials: DataFrame, shape: Mapping[str, Any], rule: Substreams) -> DataFrame:
    """Return partial rows as a table that people read.

    Args:
        partials: with ``_scope``, ``_key``, the keys and the columns of all parts.
        shape: of the release that has made them, from its checkpoint.
        rule: how rows fell into its substreams.
    """
    numbers = part_numbers(shape)
    values = [_value(name, numbers[kept], partials.columns) for name, kept in shape["aggregates"].items()]
    substream = F.struct(F.col("_scope").alias("scope"), F.col("_key").alias("key")).alias(SUBSTREAM)
    own = rule.result_columns(F.col("_scope"), F.col("_key"))
    kept = map(named, [*shape["keys"], *rule.beside])
    return rule.finished(partials).select(substream, *own, *kept, *values)


def _value(name: str, number: int, columns: list[str]) -> Column:
    if number < 0:
        return named(name)  # rows are kept as they are
    prefix = f"_part_{number}_"
    parts = sorted((each for each in columns if each.startswith(prefix)), key=lambda each: int(each[len(prefix) :]))
    if len(parts) == 1:
        return F.col(parts[0]).alias(name)
    return F.struct(*[F.col(part).alias(f"part_{place}") for place, part in enumerate(parts)]).alias(name)


def renamed(state: DataFrame, shape: Mapping[str, Any], plan: ReleasePlan) -> DataFrame:
    """Return an exported state as a release takes it that keeps the same of the same, under other names perhaps.

    Args:
        shape: of the release that has made it.
        plan: of the one that is to go on with it.
    """
    kept: dict[str, str] = {}
    for name, text in shape["aggregates"].items():
        kept.setdefault(text, name)
    own = [*plan.own, *plan.keys, *plan.rule.beside]
    values = [named(kept[plan.kept_as(measure)]).alias(measure.name) for measure in plan.measures]
    return state.select(SUBSTREAM, *map(named, own), *values, *[named(name) for name, _ in plan.kept])


def imported(state: DataFrame, plan: ReleasePlan) -> DataFrame:
    """Return a table of that form as partial rows of a release, beside `SUBSTREAM`.

    Args:
        state: what a mapping has made of an exported state.

    Raises:
        UsageError: a column is missing, or has another type; all that is wrong is named.
    """
    faults = _faults(state, plan)
    if faults:
        raise UsageError(
            f"the result of mapping does not fit the release: {'; '.join(faults)}. It has: "
            f"{', '.join(f'{field.name} {field.dataType.simpleString()}' for field in state.schema.fields)}"
        )
    parts: dict[str, Column] = {}
    for measure in plan.measures:
        kind = state.schema[measure.name].dataType
        values = _parts(measure, kind)
        parts |= {
            part: value.cast(plan.part_schema[part].dataType).alias(part)
            for part, value in zip(measure.parts, values, strict=True)
        }
    kept = [named(name) for name in (*plan.rule.beside, *(name for name, _ in plan.kept))]
    rows = F.lit(1).cast("bigint").alias("_rows")
    return state.select(SUBSTREAM, *map(named, [*plan.own, *plan.keys]), *parts.values(), *kept, rows)


def _faults(state: DataFrame, plan: ReleasePlan) -> list[str]:
    types = {field.name: field.dataType for field in state.schema.fields}
    faults = [
        f"the column {name!r} is missing" + (", which tells whose state a row is: keep it" if name == SUBSTREAM else "")
        for name in (SUBSTREAM, *plan.own, *plan.keys, *plan.rule.beside, *plan.values)
        if name not in types
    ]
    plain = [*plan.keys, *(name for name, _ in plan.kept)]
    faults += [
        f"{name!r} is {types[name].simpleString()}, and the release has {kind}"
        for name, kind in ((name, plan.part_schema[name].dataType.simpleString()) for name in plain)
        if name in types and types[name].simpleString() != kind
    ]
    for measure in plan.measures:
        kind = types.get(measure.name)
        if kind is not None and not _fits(measure, kind, plan.part_schema):
            wanted = [plan.part_schema[part].dataType.simpleString() for part in measure.parts]
            form = wanted[0] if len(wanted) == 1 else f"a struct of {', '.join(wanted)}"
            value = f", or {measure.result.simpleString()}" if _takes_value(measure) else ""
            faults.append(
                f"the aggregate {measure.name!r} is {kind.simpleString()}, and the release keeps {form}{value}"
            )
    return faults


def _takes_value(measure: Measure) -> bool:
    return measure.aggregate.from_value is not None


def _fits(measure: Measure, kind: T.DataType, schema: T.StructType) -> bool:
    wanted = [schema[part].dataType.simpleString() for part in measure.parts]
    if _takes_value(measure) and kind.simpleString() == measure.result.simpleString():
        return True
    if len(wanted) == 1:
        return kind.simpleString() == wanted[0]
    return isinstance(kind, T.StructType) and [field.dataType.simpleString() for field in kind.fields] == wanted


def _parts(measure: Measure, kind: T.DataType) -> list[Column]:
    """Return the parts of an aggregate, of a column that `_fits`."""
    value = named(measure.name)
    from_value = measure.aggregate.from_value
    if from_value is not None and kind.simpleString() == measure.result.simpleString():
        return list(from_value(value))
    if len(measure.parts) == 1:
        return [value]
    assert isinstance(kind, T.StructType)
    return [value[field.name] for field in kind.fields]
