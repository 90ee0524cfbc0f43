"""How answers look: aligned tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta

from tracker.client import Event


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under their header; columns of numbers to the right.

    >>> print_table(["JOB", "OPEN"], [["flights", 12], ["taxis", 3]])
    JOB      OPEN
    flights    12
    taxis       3
    """
    body = [list(row) for row in rows]
    texts = [[*header], *([text(value) for value in row] for row in body)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    numbers = [bool(body) and all(isinstance(value, int) for value in column) for column in zip(*body, strict=True)]
    numbers = numbers or [False] * len(header)
    for row in texts:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ]
        print("  ".join(cells).rstrip())


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line.

    >>> print_pairs([("job", "flights"), ("deployment", "d1")])
    job         flights
    deployment  d1
    """
    known = list(pairs)
    width = max(len(name) for name, _ in known)
    for name, value in known:
        print(f"{name:<{width}}  {text(value)}".rstrip())


def print_json(value: object, *, indent: int | None = None) -> None:
    """Prints one JSON document; without `indent` on one line, for a stream of them."""
    print(json.dumps(plain(value), indent=indent, ensure_ascii=False), flush=True)


def text(value: object) -> str:
    """A value as people read it; moments to the millisecond, in UTC."""
    match value:
        case None:
            return "-"
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
        case tuple() | list():
            return ", ".join(map(text, value)) or "-"
        case _:
            return str(value)


def plain(value: object) -> object:
    """A value as JSON knows it: moments in ISO 8601, durations in seconds, an event's kind by its name.

    >>> from tracker.client import FrontIdle
    >>> plain({"front": FrontIdle("schedule", True)})
    {'front': {'front': 'schedule', 'idle': True}}
    """
    match value:
        case Event():
            kind: dict[str, object] = {"kind": type(value.kind).__name__}
            head = {"seq": value.seq, "at": plain(value.at), "deployment": value.deployment}
            return head | kind | {field.name: plain(getattr(value.kind, field.name)) for field in fields(value.kind)}
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case tuple() | list():
            return [plain(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value
