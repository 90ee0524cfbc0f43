"""Output for terminals only: tables that fit the width, colours, progress bars.

Only this module and `tracker top` load rich. Texts are never read as rich's markup: names that users gave are in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from tracker.client.texts import shown

_UNLIMITED: Final = 1_000_000  # columns, for tables that the terminal wraps itself


def console(error: bool = False) -> Console:
    """Return a console for stdout or stderr. Colour depends on the terminal, and on `NO_COLOR`."""
    return Console(stderr=error, markup=False, emoji=False, highlight=False)


def print_table(
    titles: Sequence[str] | None,
    rows: Sequence[Sequence[tuple[str, str, bool]]],
    widths: Sequence[int],
    numbers: Sequence[bool],
    *,
    wide: bool,
) -> None:
    """Print a part of a table.

    Args:
        titles: the header; None: an earlier part had it.
        widths: the columns' widths in the parts so far.
        numbers: which columns are aligned to the right.
        wide: print each row on one line, however long.
    """
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
        table.add_row(*(Text(text, style=style) for text, style, _ in row))
    shown = console()
    shown.print(table, width=_UNLIMITED if wide else shown.width, crop=False)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair a line or more."""
    table = _grid(header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(name), Text(value))
    console().print(table)


def print_styled(line: str, style: str) -> None:
    """Print one line in a style. It is as long as it is: the terminal wraps it."""
    console().print(Text(line, style=style), soft_wrap=True)


def _grid(header: bool) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=header)


@contextmanager
def bar() -> Iterator[Callable[[float, float, str], None]]:
    """Show a progress bar on stderr, with a text beside it."""
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
