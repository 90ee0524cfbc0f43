"""Counted rows by substream: how folded rows become them, and how they become entries of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from spark_client.counting.folding import Key
from spark_client.errors import TrackingError
from spark_client.plan.fronts import Group
from spark_client.plan.streams import Direction
from spark_client.windows.substreams import Substreams
from tracker.client import Report


def groups_of(folded: Iterable[tuple[Key, dict[str, Any]]], rule: Substreams) -> list[Group]:
    """Give folded rows the names of their substreams.

    Raises:
        TrackingError: rows that belong nowhere, since their scope, time or name is null.
    """
    groups: list[Group] = []
    for (scope, key), values in folded:
        if scope is None or key is None:
            what = rule.scope if scope is None else ("the time of the window" if rule.windows else rule.name)
            raise TrackingError(
                f"{values['_rows']} rows belong to no substream: {what} is null in them. Drop or repair them before "
                "they are tracked, for example raw.where('… is not null')"
            )
        values.setdefault("_xor", 0)
        groups.append((rule.substream(scope, key), values))
    return groups


def add_groups(report: Report, segment: str, direction: Direction, groups: Sequence[Group], rule: Substreams) -> None:
    """Put counted rows into a report: each as an element of all substreams that the tracker knows it as."""
    if rule.shared:
        groups = [(each, values) for substream, values in groups for each in rule.tracked_as(substream)]
    for (scope, name, end_time), values in groups:
        rows, xor = values["_rows"], values["_xor"]
        if direction == "passing":
            report.add(segment, scope, name, 0, sent=rows, received=rows, end_time=end_time)
        elif direction == "sent":
            report.add(segment, scope, name, xor, sent=rows, end_time=end_time)
        else:
            report.add(segment, scope, name, xor, received=rows, end_time=end_time)
