"""Answers line by line, and as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta

from tracker.cli.forms import Form


def is_terminal() -> bool:
    """Tell whether stdout is a terminal that can do more than print one line after the other."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_line(line: str = "", *, flush: bool = False, error: bool = False, style: str = "") -> None:
    """Print one line, whatever names are in it. Commands print only with this, `tables` and `print_json`.

    Args:
        line: the text.
        flush: write it out at once.
        error: print it to stderr.
        style: a style of rich, such as ``red``, for stdout if that is a terminal.
    """
    from tracker.client.texts import shown  # here, since it takes longer to load than all of a command's help

    if style and is_terminal():
        from tracker.cli.terminal import print_styled

        print_styled(shown(line), style)
    else:
        print(shown(line), file=sys.stderr if error else sys.stdout, flush=flush)


def print_json(value: object, *, indent: int | None = None) -> None:
    """Print one JSON document; without `indent` it is on one line, as a stream of documents needs it."""
    document = json.dumps(plain(value), indent=indent, ensure_ascii=False)
    # Line ends belong to the document: JSON has escaped those in names already.
    safe = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in document)
    print(safe, flush=True)


def print_done(form: Form, name: str, what: str) -> int:
    """Print that something was done, and return the exit status for that.

    >>> print_done(Form.TABLE, "flights", "deleted")
    flights is deleted
    0
    """
    if form is Form.JSON:
        print_json({what: name})
    else:
        print_line(f"{name} is {what}")
    return 0


def plain(value: object) -> object:
    """Convert a value for JSON: times in ISO 8601, durations in seconds, an event's kind by its name.

    >>> from tracker.client import FrontIdle
    >>> plain({"front": FrontIdle("schedule", True)})
    {'front': {'front': 'schedule', 'idle': True}}
    """
    from tracker.contract.events import Event
    from tracker.contract.notebooks import Shown

    match value:
        case Event():
            kind: dict[str, object] = {"kind": type(value.kind).__name__}
            head = {"seq": value.seq, "at": plain(value.at), "deployment": value.deployment}
            return head | kind | {field.name: plain(getattr(value.kind, field.name)) for field in fields(value.kind)}
        case Shown():
            return plain(value.shown())
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
