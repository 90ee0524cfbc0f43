"""Options that many commands have, and the extras and consent that a command needs before it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from tracker.cli.completion import complete_jobs
from tracker.cli.declaring import WrongUsageError, shared
from tracker.cli.output import print_line

Job = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_jobs, help="the job's name")]
Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="the substream's scope; may be empty: ''")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="the substream's name")]


LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="what to log")]


@contextmanager
def needs(command: str, extra: str) -> Iterator[None]:
    """Import in the body what only this command needs: whoever lacks it is told what to install.

    Args:
        command: its name, such as ``serve``.
        extra: the extra of the package that has it.

    Raises:
        WrongUsageError: a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise WrongUsageError(
            f"`tracker {command}` needs {missing.name}: pip install 'substream-tracker[{extra}]'"
        ) from missing


def need_server_python(command: str) -> None:
    """Refuse a command that runs a server in this process on a Python that is too old for it.

    Raises:
        WrongUsageError: this Python is older than 3.11.
    """
    if sys.version_info < (3, 11):
        running = sys.version.partition(" ")[0]
        raise WrongUsageError(f"`tracker {command}` needs Python 3.11 or newer, and this is {running}; clients do not")


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
