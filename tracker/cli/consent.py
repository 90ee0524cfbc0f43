"""Commands that cannot be undone: each shows what it drops, and asks on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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

    def ask(self, action: str, dropped: Sequence[str]) -> None:
        """Show what an action drops on stderr, and ask, unless ``--yes`` was given or no terminal can answer.

        Args:
            action: as a question without its mark, such as ``abandon LGA / monday``.
            dropped: a line for each thing that is lost.

        Raises:
            WrongUsageError: the answer is no.
        """
        for line in dropped:
            print_line(line, error=True)
        if self.given or not (sys.stdin.isatty() and sys.stderr.isatty()):
            return
        print_line(f"{action}? This cannot be undone. [y/N] ", error=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise WrongUsageError("nothing was done")


@shared(Consent)
def _consent(
    context: typer.Context,  # noqa: ARG001 - of every shared option
    yes: Annotated[
        bool, typer.Option("--yes", "-y", allow_from_autoenv=False, help="do not ask on a terminal")
    ] = False,
) -> Consent:
    return Consent(yes)
