"""`tracker completion`: what a shell needs to complete commands, options, jobs and contexts."""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, Literal

import typer

from tracker.cli.declarations import command, new_commands

commands = new_commands()
_VARIABLE: Final = "_TRACKER_COMPLETE"
_PROGRAM: Final = "tracker"


@command(commands, "completion", "source <(tracker completion bash)")
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish")],
) -> int:
    """Print a script that completes commands, options, jobs and contexts.

    bash: add `source <(tracker completion bash)` to ~/.bashrc. zsh: add `source <(tracker completion zsh)` to ~/.zshrc,
    behind compinit. fish: run `tracker completion fish > ~/.config/fish/completions/tracker.fish`.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    typer.echo(get_completion_script(prog_name=_PROGRAM, complete_var=_VARIABLE, shell=shell))
    return 0


def answer(root: Any) -> int | None:
    """Answer a shell that asks for completions; None: no shell asks."""
    instruction = os.environ.get(_VARIABLE)
    if not instruction:
        return None
    from typer.completion import completion_init, shell_complete  # type: ignore[attr-defined]

    completion_init()
    return shell_complete(root, {}, _PROGRAM, _VARIABLE, instruction)


def complete_jobs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs that begin so, as the tracker has them at this moment; none if it does not answer at once."""
    from tracker.cli.connection import completing_client
    from tracker.client import TrackerError, TrackerUnavailable

    try:
        with completing_client(ctx) as client:
            return [job for job in client.jobs() if job.startswith(incomplete)]
    except (TrackerError, TrackerUnavailable, ValueError):
        return []
