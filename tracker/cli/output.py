"""Answers on the terminal: lines, tables and JSON on stdout, progress on stderr.

A terminal gets tables that fit its width, colours and progress bars, and only then rich is loaded. Texts are never read
as rich's markup: names that users gave are in them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import typer

from tracker.cli.declarations import WrongUsageError, given, is_given, shared
from tracker.python310 import StrEnum

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PANEL = "The form of the answer"


class Form(StrEnum):
    """Form of a printed answer."""

    TABLE = "table"
    WIDE = "wide"  #: a table with more columns, each row on one line
    JSON = "json"


class Cell(NamedTuple):
    """A value as it is printed."""

    text: str
    style: str
    number: bool


#: Shows the work's progress: how much is done, how much there is in the same unit (0: unknown), and a text.
Show: TypeAlias = Callable[[float, float, str], None]


@shared(Form)
def _form(
    context: typer.Context,
    output: Annotated[
        Form,
        typer.Option(
            "--output",
            "-o",
            envvar="TRACKER_OUTPUT",
            rich_help_panel=_PANEL,
            help="the form of the answer; wide: more columns",
        ),
    ] = Form.TABLE,
    json: Annotated[
        bool,
        typer.Option("--json", allow_from_autoenv=False, rich_help_panel=_PANEL, help="the same as --output json"),
    ] = False,
) -> Form:
    here = json or is_given(context, "output")
    json = json if here else given(context, "json", json)
    output = Form(output if here else given(context, "output", output))
    if json and is_given(context, "output") and output is not Form.JSON:
        raise WrongUsageError(f"--json and --output {output} contradict each other: give one of them")
    return Form.JSON if json else output


def is_terminal() -> bool:
    """Tell whether stdout is a terminal that can do more than print one line after the other."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def console(error: bool = False) -> Console:
    """Return a console for stdout or stderr. Colour depends on the terminal, and on `NO_COLOR`."""
    from rich.console import Console

    return Console(stderr=error, markup=False, emoji=False, highlight=False)


def print_line(line: str = "", *, flush: bool = False, error: bool = False, style: str = "") -> None:
    """Print one line, whatever names are in it. Commands print only with this, `tables` and `print_json`.

    Args:
        style: a style of rich, such as ``red``, for stdout if that is a terminal.
    """
    from tracker.client.texts import shown  # here, since it takes longer to load than all of a command's help

    if style and is_terminal():
        from rich.text import Text

        console().print(Text(shown(line), style=style), soft_wrap=True)  # the terminal wraps it
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
    from tracker.contract.values import Shown

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


T = TypeVar("T")
_CHUNK: Final = 1000  # rows that are laid out together; a list of millions is printed as it comes
_GAP: Final = "  "
_UNLIMITED: Final = 1_000_000  # columns, for tables that the terminal wraps itself


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    Args:
        value: what stands in it, for an item of the list.
        wide: it is shown only with `--output wide`.
        style: a style of rich for an item, such as ``red``; an empty text: none. It has an effect only on a terminal.
    """

    title: str
    value: Callable[[T], object]
    wide: bool = False
    style: Callable[[T], str] | None = None


def print_rows(columns: Sequence[Column[T]], items: Iterable[T], form: Form = Form.TABLE) -> None:
    """Print one row for each item under the columns' titles, columns of numbers aligned to the right.

    >>> print_rows([Column("JOB", itemgetter(0)), Column("OPEN", itemgetter(1))], [("flights", 12), ("taxis", 3)])
    JOB      OPEN
    flights    12
    taxis       3
    """
    shown = [column for column in columns if form is Form.WIDE or not column.wide]
    titles: Sequence[str] | None = [column.title for column in shown]
    widths = [len(column.title) for column in shown]
    remaining = ([_cell(column, item) for column in shown] for item in items)
    for rows in iter(lambda: list(islice(remaining, _CHUNK)), []):
        widths = [max(width, *(len(row[place].text) for row in rows)) for place, width in enumerate(widths)]
        numbers = [all(row[place].number for row in rows) for place in range(len(shown))]
        if is_terminal():
            _print_grid(titles, rows, widths, numbers, wide=form is Form.WIDE)
        else:
            for texts in [*([titles] if titles else []), *([cell.text for cell in row] for row in rows)]:
                print_line(_aligned(texts, widths, numbers))
        titles = None


def print_list(columns: Sequence[Column[T]], items: Sequence[T], form: Form, none: str) -> int:
    """Print a whole list as JSON or as a table, and return the exit status for that.

    Args:
        none: what is printed in place of an empty table.
    """
    if form is Form.JSON:
        print_json(items, indent=2)
    elif items:
        print_rows(columns, items, form)
    else:
        print_line(none)
    return 0


def print_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows of values.

    >>> print_table(["LIMIT", "VALUE"], [["max_jobs", 10]])
    LIMIT     VALUE
    max_jobs     10
    """
    columns: list[Column[Sequence[Any]]] = [Column(title, itemgetter(place)) for place, title in enumerate(titles)]
    print_rows(columns, rows)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line.

    >>> print_pairs([("job", "flights"), ("deployment", "d1")])
    job         flights
    deployment  d1
    """
    from tracker.client.texts import text

    known = [(name, text(value)) for name, value in pairs]
    if is_terminal():
        from rich.text import Text

        table = _grid(header=False)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(overflow="fold")
        for name, value in known:
            table.add_row(Text(name), Text(value))
        console().print(table)
        return
    width = max(len(name) for name, _ in known)
    for name, value in known:
        print_line(f"{name:<{width}}  {value}".rstrip())


def _cell(column: Column[T], item: T) -> Cell:
    from tracker.client.texts import text

    value = column.value(item)
    return Cell(text(value), column.style(item) if column.style else "", isinstance(value, int))


def _aligned(texts: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    cells = [
        text.rjust(width) if number else text.ljust(width)
        for text, width, number in zip(texts, widths, numbers, strict=True)
    ]
    return _GAP.join(cells).rstrip()


def _print_grid(
    titles: Sequence[str] | None,
    rows: Sequence[Sequence[Cell]],
    widths: Sequence[int],
    numbers: Sequence[bool],
    *,
    wide: bool,
) -> None:
    """Print a part of a table on a terminal.

    Args:
        titles: the header; None: an earlier part had it.
        widths: the columns' widths in the parts so far.
        numbers: which columns are aligned to the right.
        wide: print each row on one line, however long.
    """
    from rich.text import Text

    table = _grid(header=titles is not None)
    for title, width, number in zip(titles or [""] * len(widths), widths, numbers, strict=True):
        table.add_column(
            Text(title),
            justify="right" if number else "left",
            no_wrap=wide or number,
            min_width=width if wide or number or titles is None else None,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
    screen = console()
    screen.print(table, width=_UNLIMITED if wide else screen.width, crop=False)


def _grid(header: bool) -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=header)


_SHOW_EVERY: Final = 1000  # items
_LINE_EVERY_S: Final = 10.0  # seconds between two lines if stderr is not a terminal


@contextmanager
def progress(quiet: bool = False) -> Iterator[Show]:
    """Show progress as long as the context is open; on a terminal nothing is left of it then.

    Args:
        quiet: show it only on a terminal: a log does not need it.

    Example::

        with progress() as show:
            for number, file in enumerate(files):
                show(number, len(files), file.name)
    """
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar() as show:
            yield show
    elif quiet:
        yield lambda *_: None
    else:
        yield _Lines()


@contextmanager
def _bar() -> Iterator[Show]:
    """Show a progress bar on stderr, with a text beside it."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from tracker.client.texts import shown

    columns = [
        BarColumn(bar_width=24),
        TaskProgressColumn(),  # of its own text, which is rich's markup
        TextColumn("{task.description}", markup=False),
    ]
    # Only `show` draws it: a thread that drew by itself would be lost in processes that the work forks.
    bars = Progress(
        *columns,
        console=console(error=True),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bars:
        task = bars.add_task("", total=None)

        def show(done: float, total: float, text: str) -> None:
            bars.update(task, completed=done, total=total or None, description=shown(text), refresh=True)

        yield show


def followed(items: Iterable[T], what: str, total: int = 0) -> Iterator[T]:
    """Yield items while it shows their number on a terminal, unless stdout is one: then the items show themselves.

    Args:
        items: what is printed, one after the other.
        what: their name, in the plural.
        total: how many there are; 0: unknown.
    """
    if sys.stdout.isatty():
        yield from items
        return
    with progress(quiet=True) as show:
        for number, item in enumerate(items):
            if number % _SHOW_EVERY == 0:
                show(number, total, f"{number:,} {what}")
            yield item


class _Lines:
    """A line at once, and then one every few seconds if the text has changed."""

    def __init__(self) -> None:
        self._next = 0.0
        self._last = ""

    def __call__(self, done: float, total: float, text: str) -> None:  # noqa: ARG002 - the words have both
        now = time.monotonic()
        if now >= self._next and text != self._last:
            self._next, self._last = now + _LINE_EVERY_S, text
            print_line(text, error=True, flush=True)
