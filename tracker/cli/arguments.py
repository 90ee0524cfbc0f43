"""The arguments that many commands have, by the contract's names."""

from __future__ import annotations

from typing import Annotated

import typer

from tracker.cli.completion import complete_jobs

Job = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_jobs, help="the job's name")]
Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="the substream's scope; may be empty: ''")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="the substream's name")]
