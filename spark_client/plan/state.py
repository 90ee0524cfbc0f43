"""The state of a release: the columns of its partial rows, and the table that people read and change.

Partial rows are files that outlive the code that wrote them. An aggregate is known in them by what is kept of it: its
function, what it is over, and the types of its partial columns. So it may be renamed, moved or left out, and a number
that was given to one is never given to another in the same checkpoint.

The table has a row for each substream and key of a part of it, and the columns of the results under their names. An
aggregate of which one value is kept has that value; one of which several are kept (a mean: a sum and a count) is a
struct of them. Rows of the same substream and keys are merged, whoever made them; so a mapping that drops a key needs
no aggregation of its own. Nothing here looks at data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from spark_client.columns import named
from spark_client.errors import UsageError
from spark_client.plan.releases import KEY_FORMS, Measure, ReleasePlan
from spark_client.plan.streams import DEDUPLICATES
from spark_client.windows.substreams import Substreams

SUBSTREAM: Final = "_substream"  #: the column of the substream whose part a row is: a struct of the scope and the key


def placed(plan: ReleasePlan, known: Mapping[str, Any] | None) -> ReleasePlan:
    """Return the plan, with its aggregates in the columns that a checkpoint has for them; new ones get columns of their
    own.

    Args:
        plan: the release, as it was declared.
        known: the checkpoint's note of the query that wrote it; None: the query is new.
    """
    numbers = {} if known is None else part_numbers(known)
    columns: dict[str, str] = {}  # where each was, and is now
    measures = []
    for measure in plan.measures:
        number = numbers.setdefault(plan.kept_as(measure), max(numbers.values(), default=-1) + 1)
        parts = tuple(f"_part_{number}_{place}" for place in range(len(measure.parts)))
        columns |= zip(measure.parts, parts, strict=True)
        measures.append(replace(measure, parts=parts))
    fields = {columns.get(field.name, field.name): field for field in plan.part_schema.fields}
    schema = T.StructType([T.StructField(name, field.dataType, field.nullable) for name, field in fields.items()])
    return replace(plan, measures=tuple(measures), part_schema=schema)


def part_numbers(shape: Mapping[str, Any]) -> dict[str, int]:
    """Return the number in the names of an aggregate's columns, by what is kept of it.

    Args:
        shape: of a release, as `ReleasePlan.described` gives it. Earlier versions numbered aggregates by their order.

    >>> part_numbers({"aggregates": {"rows": "count(1) kept as bigint", "most": "max(n) kept as int"}})
    {'count(1) kept as bigint': 0, 'max(n) kept as int': 1}
    """
    if "parts" in shape:
        return dict(shape["parts"])
    numbers: dict[str, int] = {}
    for number, kept in enumerate(shape.get("aggregates", {}).values()):
        numbers.setdefault(kept, number)
    return numbers


def new_aggregates(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Return the aggregates of one shape of which partial rows of another hold nothing: name and what is to be kept.

    >>> new_aggregates({"aggregates": {"n": "count(1)"}}, {"aggregates": {"rows": "count(1)", "most": "max(n)"}})
    {'most': 'max(n)'}
    """
    kept = set(before.get("aggregates", {}).values())
    return {name: text for name, text in now.get("aggregates", {}).items() if text not in kept}


def can_read(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether partial rows of one shape can be merged as those of another."""
    if before["keys"] != now["keys"] or new_aggregates(before, now):
        return False
    numbers, current = part_numbers(before), part_numbers(now)
    return all(numbers[kept] == current[kept] for kept in now["aggregates"].values())


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what has changed from one query to another, by aspect; aggregates may be renamed, moved or left out.

    >>> differences({"keys": {}, "aggregates": {"n": "count(1)"}}, {"keys": {}, "aggregates": {"m": "max(a)"}})
    ["new aggregates are 'm' (max(a)): the state has {'n': 'count(1)'}"]
    """
    aspects = [aspect for aspect in now if aspect not in ("aggregates", "parts", KEY_FORMS, DEDUPLICATES)]
    changed = [f"{each} was {before.get(each)}, is {now[each]}" for each in aspects if before.get(each) != now[each]]
    if added := new_aggregates(before, now):
        listed = ", ".join(f"{name!r} ({kept})" for name, kept in added.items())
        changed.append(f"new aggregates are {listed}: the state has {before.get('aggregates')}")
    return changed + changed_forms(before, now, KEY_FORMS)


def changed_forms(before: Mapping[str, Any], now: Mapping[str, Any], aspect: str) -> list[str]:
    """Return which expressions of an aspect compute something else than they did, under the same name.

    Another version of Spark or Python may show the same expression in another form, so across versions the texts count.
    Earlier versions of this package, and expressions that give another value each time, have no form.

    >>> one = {"text": "lower(kind)", "form": "1", "by": "Spark 4.3.0"}
    >>> changed_forms({"f": {"kind": one}}, {"f": {"kind": {**one, "text": "upper(kind)", "form": "2"}}}, "f")
    ["'kind' was lower(kind), is upper(kind)"]
    """
    found = []
    for name, new in (now.get(aspect) or {}).items():
        old = (before.get(aspect) or {}).get(name)
        if old is None or new is None:
            continue
        by = "form" if old["by"] == new["by"] else "text"
        if old[by] != new[by]:
            same = old["text"] == new["text"]
            found.append(
                f"{name!r} is {new['text']}, of which the code of a function or a constant has changed"
                if same
                else f"{name!r} was {old['text']}, is {new['text']}"
            )
    return found


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
