"""`tracker top`: the jobs of a tracker, live."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Final

import typer

from tracker.cli.completion import complete_jobs
from tracker.cli.connection import Connection
from tracker.cli.declarations import command, new_commands
from tracker.cli.live import Sort
from tracker.cli.output import Form, console, is_terminal, print_json, print_line

commands = new_commands()
_SILENT_AFTER_S: Final = 900.0  # as in the alert TrackerSilentFront


@command(commands, "top", "tracker top flights --sort in-flight")
def top(
    at: Connection,
    form: Form,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            autocompletion=complete_jobs,
            help="the job whose substreams are shown below the list (default: the first in the list)",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, help="the time between two looks at the tracker")
    ] = 2.0,
    sort: Annotated[Sort, typer.Option(metavar="ORDER", help=f"the order of the jobs: {', '.join(Sort)}")] = Sort.OPEN,
    silent_after: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="how long a front may promise nothing before it is silent")
    ] = _SILENT_AFTER_S,
    once: Annotated[bool, typer.Option("--once", help="print it once, after two looks, and stop")] = False,
) -> int:
    """Show the jobs of a tracker, live: what is open, how fast events and epochs come, which fronts are silent.

    Below the list is what the oldest open substreams of one job wait for. Arrow keys choose the job, letters the order,
    and q quits. Without a terminal, and with --json, the answer is printed once: after two looks, since rates need two.
    """
    from tracker.cli.live.looks import Choice, Observer
    from tracker.cli.live.screen import draw

    choice = Choice(sort, job=job)
    with at.client() as client:
        if job is not None:
            client.job(job)  # raises if there is none of this name
        observer = Observer(client, timedelta(seconds=silent_after))
        look = observer.look(choice.chosen)
        if is_terminal() and sys.stdin.isatty() and not once and form is not Form.JSON:
            from tracker.cli.live.screen import show

            show(observer, choice, at.server, look, interval)
            return 0
        time.sleep(interval)
        look = observer.look(choice.chosen)
    if form is Form.JSON:
        print_json(replace(look, jobs=tuple(choice.ordered(look.jobs))), indent=2)
        return 0
    for line in draw(look, choice, at.server, console().width if is_terminal() else None):
        if is_terminal():
            console().print(line, soft_wrap=True)
        else:
            print_line(line.plain.rstrip())
    return 0
