"""`tracker token`: new tokens, and what the server's file of tokens needs for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tracker.cli.declarations import Group, WrongUsageError, command, ending_at, new_commands
from tracker.cli.output import print_line
from tracker.security.identities import Scope, entry, new_token

commands = new_commands()
_group = new_commands()


@_group.callback(cls=Group, epilog="example: tracker token new shop --scope report --job 'shop*' --out shop.token")
def token() -> None:
    """Make tokens, which let clients call a server that has their entries in its file (`tracker serve --tokens`)."""


commands.add_typer(_group, name="token")


@command(_group, "new", "tracker token new shop --scope report --job 'shop*' --out shop.token >> tokens.toml")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the client's name, which the server's logs have")],
    scope: Annotated[
        list[Scope],
        typer.Option(
            metavar="SCOPE",
            help="what the client may do: report (what a job does), watch (read), operate (drain, abandon, …; includes "
            "watch), backup (read all, for backups) or admin (delete jobs; includes all); may be repeated",
        ),
    ],
    job: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help="the jobs with which it may do that, as a glob; may be repeated"),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="write the token to this new file, which only you may read (default: stderr shows it)"
        ),
    ] = None,
) -> int:
    """Make a token, and print the entry of the server's file for it.

    The entry has only the token's hash. So this is the only moment at which the token can be kept.
    """
    made = new_token()
    with ending_at():
        lines = entry(name, made, scope, job).splitlines()
    if out is None:
        print_line(f"token: {made}", error=True)
    else:
        _write(out, made)
    for line in lines:
        print_line(line)
    return 0


def _write(file: Path, made: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise WrongUsageError(f"{file} exists, and may hold a token that is in use; name a new file") from None
    except OSError as failed:
        raise WrongUsageError(f"{file} cannot be written: {failed.strerror}") from failed
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{made}\n")
