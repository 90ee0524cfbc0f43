"""The form of an answer: a table for people, or JSON for programs; and what progress and tables are shown with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

import typer

from tracker.cli.declarations import WrongUsageError, given, is_given, shared
from tracker.python310 import StrEnum

_PANEL = "The form of the answer"


class Form(StrEnum):
    """Form of a printed answer."""

    TABLE = "table"
    WIDE = "wide"  #: a table with more columns, each row on one line
    JSON = "json"


@dataclass
class Cell:
    """A value as it is printed."""

    text: str
    style: str
    number: bool


class Show(Protocol):
    """Display of the work's progress."""

    def __call__(self, done: float, total: float, text: str) -> None:
        """Show a state.

        Args:
            done: how much of the work is done.
            total: how much there is, in the same unit; 0: unknown.
        """


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
