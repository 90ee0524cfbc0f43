"""Columns of partial rows that hold an aggregate: in the state that another version of the query has left, too.

Partial rows are files that outlive the code that wrote them. An aggregate is known in them by what is kept of it: its
function, what it is over, and the types of its partial columns. So it may be renamed, moved or left out, and a number
that was given to one is never given to another in the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import types as T  # noqa: N812

from spark_client.plan.releases import KEY_FORMS, ReleasePlan
from spark_client.plan.sources import DEDUPLICATES


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
