"""`tracker leader`: which of a tracker's servers leads."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tracker.cli.connection import Connection
from tracker.cli.declarations import CommandFailedError, Group, command, ending_at, new_commands
from tracker.cli.forms import Form
from tracker.cli.output import print_json, print_line

commands = new_commands()
_group = new_commands()
_LOOK_S = 0.05  # between two looks at which server leads


@_group.callback(cls=Group, epilog="example: tracker leader move --server a:7654+b:7654")
def leader() -> None:
    """Decide which of a tracker's servers leads."""


commands.add_typer(_group, name="leader")


@command(_group, "move", "tracker leader move --server a:7654+b:7654")
def move(
    at: Connection,
    form: Form,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="how long to wait until the standby serves")
    ] = 60.0,
) -> int:
    """Hand the tracker to its standby, as before an upgrade of the leader's machine, without a failed call.

    The leader finishes its calls, and clients repeat what they ask meanwhile. A leader that was started with --standby
    stands by afterwards; another one ends. Exit status: 0 another server leads; 1 no standby follows, and nothing was
    changed, or it does not serve in time; 3 no tracker could be reached.
    """
    from tracker.client import TrackerUnavailable
    from tracker.client.servers import finder

    with at.single_client() as client:
        with ending_at():
            before = client.server_info().instance
            to = client.move_leader()
        started = time.monotonic()
        while True:
            try:
                now = client.server_info().instance
            except TrackerUnavailable:
                now = before
            if now != before:
                break
            if time.monotonic() - started > timeout:
                raise CommandFailedError(
                    f"{to} has the journal, and does not answer at {at.server} after {timeout:g} s; see its log, and "
                    "name all addresses of the tracker: --server HOST:PORT+HOST:PORT"
                )
            time.sleep(_LOOK_S)
    leads = finder(at.server).current
    if form is Form.JSON:
        print_json({"leader": leads, "instance": now, "handed_to": to})
    else:
        print_line(f"{leads} leads now; it was handed to {to}")
    return 0
