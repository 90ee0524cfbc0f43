"""The form of an answer: a table for people, or JSON for programs."""

from __future__ import annotations

from typing import Annotated

import typer

from tracker.cli.declaring import WrongUsageError, given, is_given, shared
from tracker.python310 import StrEnum

_PANEL = "The form of the answer"


class Form(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    WIDE = "wide"  #: a table with more columns, each row on one line
    JSON = "json"


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
