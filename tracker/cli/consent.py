"""Commands that cannot be undone: each shows what it drops, and asks on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from tracker.cli.declaring import WrongUsageError, shared
from tracker.cli.output import print_line


@dataclass(frozen=True)
class Consent:
    """The consent to a command that cannot be undone.

    Attributes:
        given: whether ``--yes`` was given.
    """

    given: bool

    @contextmanager
    def to(self, action: str, dropped: Sequence[str]) -> Iterator[None]:
        """Ask before the body is carried out, if a terminal can answer and ``--yes`` was not given.

        What is dropped is shown on stderr: before the question, or once it is dropped where nobody is asked.

        Args:
            action: as a question without its mark, such as ``abandon 'monday'``.
            dropped: a line for each thing that is lost.

        Raises:
            WrongUsageError: the answer is no.
        """
        asks = not self.given and sys.stdin.isatty() and sys.stderr.isatty()
        if asks:
            _show(dropped)
            print_line(f"{action}? This cannot be undone. [y/N] ", error=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                raise WrongUsageError("nothing was done")
        yield
        if not asks:
            _show(dropped)


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        print_line(line, error=True)


@shared(Consent)
def _consent(
    context: typer.Context,  # noqa: ARG001 - of every shared option
    yes: Annotated[
        bool, typer.Option("--yes", "-y", allow_from_autoenv=False, help="do not ask on a terminal")
    ] = False,
) -> Consent:
    return Consent(yes)
