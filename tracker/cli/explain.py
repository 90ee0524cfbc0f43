"""`tracker explain`: why a substream has not ended, and which producers can change that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracker.cli.connecting import Connection
from tracker.cli.declaring import command, new_commands
from tracker.cli.forms import Form
from tracker.cli.options import Job, Scope
from tracker.cli.output import print_json, print_line

if TYPE_CHECKING:
    from tracker.client import JobStatus

commands = new_commands()
_UNKNOWN: Final = 1
_MOST_NAMES: Final = 10  # the most names that are shown if several begin with the given text


@command(commands, "explain", "tracker explain flights JFK 2013-01-01")
def explain(
    at: Connection,
    form: Form,
    job: Job,
    scope: Scope,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="the name, or a beginning that no other name in the scope has"),
    ],
) -> int:
    """Show why a substream has not ended.

    The answer names the segments that have elements in flight and which producers reported last, the fronts that it
    waits for, the reports of it that are not committed, and the segments that have never been read. In a job with an
    ordering it also names the substreams that end earlier and hold its end back, with their reasons.
    """
    from tracker.client.texts import ago, text, why_open

    with at.client() as client:
        status = client.job(job)
        found = client.explain(job, scope, name)
        if found.substream is None and not found.staged:
            in_scope = client.substreams(job, scopes=[scope], include_ended=True)
            names = list(islice((each.name for each in in_scope if each.name.startswith(name)), _MOST_NAMES + 1))
            if len(names) != 1:
                _print_unknown(status, scope, name, names)
                return _UNKNOWN
            name, found = names[0], client.explain(job, scope, names[0])
    substream = found.substream
    ended = substream is not None and all(segment.ended for segment in substream.segments)
    reasons = list(why_open(status, found))
    if form is Form.JSON:
        earlier = {"earlier": found.earlier, "earlier_count": found.earlier_count}
        whole = {"substream": substream, "staged": found.staged, **earlier, "ended": ended, "reasons": reasons}
        print_json(whole, indent=2)
        return 0
    print_line(f"{name} of scope {scope!r}: {'has ended' if ended else 'has not ended'}")
    for reason in reasons:
        print_line(f"- {reason}")
    if substream is None:
        return 0
    if substream.by_drain:
        where = ", ".join(repr(segment.segment) for segment in substream.segments if segment.by_drain)
        print_line(f"it was closed only by a drain on {where}: more elements may follow in a later deployment")
    print_line(
        f"first reported {text(substream.created)} ({ago(substream.created)}), last changed {text(substream.changed)} "
        f"({ago(substream.changed)})"
    )
    if substream.late_reports:
        print_line(f"{substream.late_reports} reports came after its end: `tracker events {job}` lists them as Late")
    return 0


def _print_unknown(job: JobStatus, scope: str, name: str, names: Sequence[str]) -> None:
    """Print that no substream, or more than one, has this name."""
    from tracker.client.texts import text

    if names:
        print_line(f"tracker: several substreams of scope {scope!r} begin with {name!r}; name one:", error=True)
        for each in [*names[:_MOST_NAMES], *(["…"] if len(names) > _MOST_NAMES else [])]:
            print_line(f"  {each}", error=True)
        return
    print_line(
        f"tracker: {job.spec.job} has no substream {name!r} in scope {scope!r}, and none that begins with this name: "
        f"nothing was reported of it, or it ended more than {text(job.spec.retention)} ago. "
        f"`tracker substreams {job.spec.job} --ended` lists all substreams",
        error=True,
    )
