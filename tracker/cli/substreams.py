"""`tracker substreams`: the substreams of a job, and what they wait for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import chain, islice
from typing import Annotated

import typer

from tracker.cli.connecting import Connection
from tracker.cli.declaring import command, new_commands
from tracker.cli.forms import Form
from tracker.cli.options import Job
from tracker.cli.output import followed, print_json, print_line, print_rows

commands = new_commands()


@command(commands, "substreams", "tracker substreams flights --scope JFK --stalled")
def substreams(
    at: Connection,
    form: Form,
    job: Job,
    scope: Annotated[list[str] | None, typer.Option(metavar="SCOPE", help="only this scope; may be repeated")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="also substreams that have ended and are still kept")] = False,
    stalled: Annotated[bool, typer.Option("--stalled", help="only stalled substreams")] = False,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="the most substreams to list; 0: all")] = 1000,
) -> int:
    """List substreams: whether they are closed, which fronts they wait for, what is in flight."""
    from tracker.cli.views.jobs import SUBSTREAMS

    scopes = scope or []
    with at.client() as client:
        found = client.substreams(job, scopes=scopes, include_ended=ended, only_stalled=stalled)
        filtered = bool(scopes or ended or stalled or limit)
        total = 0 if filtered else client.job(job).open_substreams
        shown = followed(islice(found, limit or None), "substreams", limit or total)
        if form is Form.JSON:
            for substream in shown:
                print_json(substream)
            return 0
        first = next(shown, None)
        if first is None:
            unchanged = client.job(job).spec.stall_after if stalled else None
            print_line(_nothing(job, scopes, ended, stalled, unchanged))
            return 0
        print_rows(SUBSTREAMS, chain([first], shown), form)
        if next(found, None) is not None:
            print_line(f"… and more: only the first {limit} are shown; --limit 0 lists all")
    return 0


def _nothing(job: str, scopes: Sequence[str], ended: bool, stalled: bool, stall_after: timedelta | None) -> str:
    of = f" of scope {', '.join(scopes)}" if scopes else ""
    if stall_after is not None:
        return (
            f"no stalled substreams{of} in job {job}; one is stalled when nothing of it has changed for {stall_after}"
        )
    if stalled:
        return f"no stalled substreams{of} in job {job}; only a job with stall_after has any"
    if ended:
        return f"no substreams{of} in job {job}"
    return f"no open substreams{of} in job {job}; --ended lists ended ones, too"
