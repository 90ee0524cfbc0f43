"""Tables for people: laid out by rich on a terminal, aligned text elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from tracker.cli.forms import Cell, Form
from tracker.cli.output import is_terminal, print_line

T = TypeVar("T")
_CHUNK: Final = 1000  # rows that are laid out together; a list of millions is printed as it comes
_GAP: Final = "  "


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table.

    Args:
        title: its header.
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
    for rows in _chunks([_cell(column, item) for column in shown] for item in items):
        widths = [max(width, *(len(row[place].text) for row in rows)) for place, width in enumerate(widths)]
        numbers = [all(row[place].number for row in rows) for place in range(len(shown))]
        if is_terminal():
            from tracker.cli.terminal import print_table as print_on_terminal  # rich is loaded where it is needed

            print_on_terminal(titles, rows, widths, numbers, wide=form is Form.WIDE)
        else:
            for texts in [*([titles] if titles else []), *([cell.text for cell in row] for row in rows)]:
                print_line(_aligned(texts, widths, numbers))
        titles = None


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
        from tracker.cli.terminal import print_pairs as print_on_terminal

        print_on_terminal(known)
        return
    width = max(len(name) for name, _ in known)
    for name, value in known:
        print_line(f"{name:<{width}}  {value}".rstrip())


def _cell(column: Column[T], item: T) -> Cell:
    from tracker.client.texts import text

    value = column.value(item)
    return Cell(text(value), column.style(item) if column.style else "", isinstance(value, int))


def _chunks(rows: Iterable[list[Cell]]) -> Iterator[list[list[Cell]]]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk


def _aligned(texts: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    cells = [
        text.rjust(width) if number else text.ljust(width)
        for text, width, number in zip(texts, widths, numbers, strict=True)
    ]
    return _GAP.join(cells).rstrip()
