"""How far long work is, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from tracker.cli.forms import Show
from tracker.cli.output import print_line

T = TypeVar("T")
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
        from tracker.cli.terminal import bar  # rich is loaded where it is needed

        with bar() as show:
            yield show
    elif quiet:
        yield _nothing
    else:
        yield _Lines()


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


def _nothing(done: float, total: float, text: str) -> None:
    """Show nothing."""


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
