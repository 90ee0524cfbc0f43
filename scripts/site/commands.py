"""Print the help of every command of `tracker` as Markdown, for the site: `python -m scripts.site.commands`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from unittest.mock import patch

from tracker.cli.app import COMMANDS, run

_NESTED = {"context": ("list", "show", "use", "set", "remove")}


def names() -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, the program alone first."""
    yield ()
    for name in COMMANDS:
        yield (name,)
        yield from ((name, nested) for nested in _NESTED.get(name, ()))


def help_of(words: tuple[str, ...]) -> str:
    """Return what `tracker WORDS --help` prints on 100 columns."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("TRACKER_")}
    with patch.dict(os.environ, others | {"COLUMNS": "100"}, clear=True), redirect_stdout(StringIO()) as printed:
        run([*words, "--help"])
    return printed.getvalue()


@cache
def reference() -> str:
    """Return the page, a section for each command."""
    return "\n".join(
        [
            "# Help of every command\n",
            *(f"## {' '.join(['tracker', *words])}\n\n```text\n{help_of(words)}```\n" for words in names()),
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(reference())
