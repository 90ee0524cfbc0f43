"""`tracker dev`: a tracker with its status page and an example job, to look around."""

from __future__ import annotations

from typing import Annotated

import typer

from tracker.cli.declaring import WrongUsageError, command, new_commands
from tracker.cli.options import need_server_python, needs
from tracker.cli.output import print_line

commands = new_commands()


@command(commands, "dev", "tracker dev")
def dev(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="where the tracker listens; a free port, if another program uses the default"
        ),
    ] = "127.0.0.1:7654",
    metrics: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="where the status page and the metrics are; likewise")
    ] = "127.0.0.1:7660",
) -> int:
    """Run a tracker with its status page and an example job, until Ctrl-C.

    Nothing is kept: its journal is in memory. It prints the page's address, and what to look at.
    """
    need_server_python("dev")
    with needs("dev", "server"):
        # Imported here, since the other commands do not need these modules, and their requirements may be missing.
        from tracker.dev import running
        from tracker.web.listening import CannotListenError
    try:
        running.dev(listen, metrics, print_line)
    except ValueError as error:
        raise WrongUsageError(str(error)) from error
    except CannotListenError as error:
        print_line(f"tracker: {error}", error=True)
        return 1
    return 0
