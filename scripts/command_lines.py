"""A check that a program would take a command line that is written somewhere; nothing is run."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.site.commands import reference  # noqa: E402 - the project need not be installed
from tracker.cli.app import refusal_of  # noqa: E402 - the project need not be installed

_ASSIGNMENT = re.compile(r"([A-Z_]+)=(.*)", re.DOTALL)


@cache
def known_variables() -> frozenset[str]:
    """Return the variables that `tracker` reads: from its help and docs/reference/cli.md."""
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    return frozenset(re.findall(r"\bTRACKER_[A-Z_]+", page + reference()))


def refusal(line: str) -> str:
    """Return why a command line, as a shell has it, cannot be run; empty: it can, or is none of this project's.

    Variables before the command count: `TRACKER_SERVE_LISTEN=nonsense tracker serve`. Words after a redirection or
    a pipe are not looked at.
    """
    words = shlex.split(line, comments=True)
    words = list(takewhile(lambda word: word not in (">", ">>", "|"), words))
    variables = {}
    while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
        variables[assigned[1]] = assigned[2]
        words = words[1:]
    return refusal_of_words(words, variables)


def refusal_of_words(words: list[str], variables: Mapping[str, str]) -> str:
    """Return the refusal of a command line given as a list of words.

    Args:
        words: the program and its arguments.
        variables: what the environment has.
    """
    if not words:
        return ""
    program, *arguments = [words[0].removeprefix(".venv/bin/"), *words[1:]]
    if program == "tracker":
        ours = {name: value for name, value in variables.items() if name.startswith("TRACKER_")}
        if unknown := ours.keys() - known_variables():
            return f"`tracker` reads no variable {', '.join(sorted(unknown))}"
        with _environment(ours):
            return refusal_of(arguments)
    if program == "python" and arguments[:1] == ["-m"]:
        if importlib.util.find_spec(arguments[1]) is None:
            return f"there is no module {arguments[1]}"
    elif program == "python" and not (ROOT / arguments[0]).is_file():
        return f"there is no file {arguments[0]}"
    return ""


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables of the tracker in the environment, and no others."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith("TRACKER_")]:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
