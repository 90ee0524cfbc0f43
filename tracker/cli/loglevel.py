"""The option of the commands that log."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="what to log")]
