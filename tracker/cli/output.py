"""The form of answers: aligned tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from tracker.client import Event

_END_OF_TIME: Final = 2**63 - 1
_FIRST_TIME: Final = 31_536_000 * 10**6  #: the start of 1971, in microseconds since 1970
_LAST_TIME: Final = 7_258_118_400 * 10**6  #: the start of 2200


def shown(name: str) -> str:
    """Returns text that is safe for a terminal, on one line: characters that a terminal would act on are escaped.

    Names come from reporters. A name could clear the screen, colour it, reverse the text or forge a line.

    >>> print(shown("JFK \\x1b[2J\\r\\n"))
    JFK \\x1b[2J\\r\\n
    """
    return name if name.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in name)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def print_line(line: str = "", *, flush: bool = False, error: bool = False) -> None:
    """Prints one line, whatever names are in it. Commands print only with this, the tables below and `print_json`.

    Args:
        line: the text.
        flush: write it out at once.
        error: print it to stderr.
    """
    print(shown(line), file=sys.stderr if error else sys.stdout, flush=flush)


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under their header, with columns of numbers aligned to the right.

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
        print_line("  ".join(cells).rstrip())


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Prints names and values, one pair a line.

    >>> print_pairs([("job", "flights"), ("deployment", "d1")])
    job         flights
    deployment  d1
    """
    known = list(pairs)
    width = max(len(name) for name, _ in known)
    for name, value in known:
        print_line(f"{name:<{width}}  {text(value)}".rstrip())


def print_json(value: object, *, indent: int | None = None) -> None:
    """Prints one JSON document; without `indent` it is on one line, as a stream of documents needs it."""
    document = json.dumps(plain(value), indent=indent, ensure_ascii=False)
    # Line ends belong to the document: JSON has escaped those in names already.
    safe = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in document)
    print(safe, flush=True)


def text(value: object) -> str:
    """Formats a value for people; times to the millisecond, in UTC."""
    match value:
        case None:
            return "-"
        case datetime():
            return value.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
        case tuple() | list():
            return ", ".join(map(text, value)) or "-"
        case _:
            return shown(str(value))


def time_text(time: int | None) -> object:
    """Formats an end time or a frontier for people.

    The tracker does not know its unit. A number that would be in the years 1971 to 2200 if it counts microseconds since
    1970, as in the Spark client, is shown as that time, in UTC.

    >>> time_text(1356998400000000), time_text(24), time_text(2**63 - 1)
    ('2013-01-01 00:00:00', 24, 'the end')
    """
    if time == _END_OF_TIME:
        return "the end"
    if time is None or not _FIRST_TIME <= time < _LAST_TIME:
        return time
    moment = datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=time)
    return moment.isoformat(sep=" ").removesuffix("+00:00")


def ago(moment: datetime | None) -> str | None:
    """Formats how long ago something happened, in the largest unit.

    >>> ago(datetime.now(timezone.utc) - timedelta(hours=50))
    '2d ago'
    """
    if moment is None:
        return None
    seconds = max(0, int((datetime.now(timezone.utc) - moment).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit} ago"
    return f"{seconds}s ago"


def plain(value: object) -> object:
    """Converts a value for JSON: times in ISO 8601, durations in seconds, an event's kind by its name.

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
