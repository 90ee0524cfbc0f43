"""`tracker watch`, `events` and `wait`: a job's events as they happen, those that are kept, and one end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracker.cli.arguments import Job, Name, Scope
from tracker.cli.connecting import Connection
from tracker.cli.declaring import WrongUsageError, command, new_commands
from tracker.cli.forms import Form
from tracker.cli.output import print_json, print_line

if TYPE_CHECKING:
    from tracker.client import ShardedWatch, Watch

commands = new_commands()
_NOT_IN_TIME: Final = 1

_Segments = Annotated[
    list[str] | None, typer.Option(metavar="SEGMENT", help="only ends on this segment; may be repeated")
]
_Scopes = Annotated[list[str] | None, typer.Option(metavar="SCOPE", help="only ends in this scope; may be repeated")]


def _kind(name: str) -> str:
    from tracker.cli.views.events import KINDS

    if name not in KINDS:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(KINDS)}")
    return name


@command(commands, "watch", "tracker watch flights --segment clean --scope JFK --json | jq .name")
def watch(
    at: Connection,
    form: Form,
    job: Job,
    after: Annotated[
        int,
        typer.Option(metavar="SEQ", min=0, show_default=False, help="the last event seen (default: show all)"),
    ] = 0,
    segment: _Segments = None,
    scope: _Scopes = None,
) -> int:
    """Show a job's events: first those that are kept, then new ones as they happen, until interrupted.

    It reconnects by itself when the tracker restarts.
    """
    from tracker.cli.views.events import print_event
    from tracker.client import TrackerClient

    segments, scopes = segment or [], scope or []
    with at.client() as client:
        if isinstance(client, TrackerClient):
            events: Watch | ShardedWatch = client.watch(job, after, segments=segments, scopes=scopes)
        elif after:
            raise WrongUsageError("--after is a position in one server's events; it cannot be used with --sharded")
        else:
            events = client.watch(job, segments=segments, scopes=scopes)
        with events:
            for event in events:
                print_event(event, form)
    return 0


@command(commands, "events", "tracker events flights --kind Late --scope JFK")
def list_events(
    at: Connection,
    form: Form,
    job: Job,
    after: Annotated[
        int,
        typer.Option(
            metavar="SEQ", min=0, show_default=False, help="only events after this one (default: all that are kept)"
        ),
    ] = 0,
    segment: _Segments = None,
    scope: _Scopes = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            parser=_kind,
            help="only events of this kind, such as Ended or Late; may be repeated",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="the most events to list; 0: all")] = 1000,
) -> int:
    """List the events of a job that are kept."""
    from tracker.cli.views.events import print_event

    with at.single_client() as client:
        shown, place = 0, after
        while True:
            page = client.list_events(job, place, segments=segment or [], scopes=scope or [], own_position=place > 0)
            for event in page.events:
                if kind and type(event.kind).__name__ not in kind:
                    continue
                if limit and shown == limit:
                    if form is not Form.JSON:
                        print_line(f"… and more: only the first {shown} are shown; --limit 0 lists all")
                    return 0
                shown += 1
                print_event(event, form)
            if page.last_seq <= place:
                break
            place = page.last_seq
    if not shown and form is not Form.JSON:
        print_line(f"job {job} keeps no such events")
    return 0


@command(commands, "wait", "tracker wait flights clean JFK 2013-01-01T00:00:00Z/2013-01-02T00:00:00Z --timeout 3600")
def wait(
    at: Connection,
    form: Form,
    job: Job,
    segment: Annotated[str, typer.Argument(metavar="SEGMENT", help="a segment of the job's graph")],
    scope: Scope,
    name: Name,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="how long to wait (default: for ever)")
    ] = None,
) -> int:
    """Wait until a substream has ended on a segment, and print how. Exit status 1: not in time."""
    from tracker.cli.views.events import substream
    from tracker.client import Reason

    with at.client() as client:
        try:
            ended = client.wait_for_end(job, segment, scope, name, timeout=timeout)
        except TimeoutError as late:
            print_line(f"tracker: {late}; `tracker explain` shows why", error=True)
            return _NOT_IN_TIME
    if form is Form.JSON:
        print_json(ended)
    else:
        lost = "" if ended.reason is Reason.COMPLETE else f", {ended.in_flight} of them were not received"
        how = f"{ended.reason}, {ended.elements} elements{lost}"
        print_line(f"{substream(ended.scope, ended.name)} has ended on {ended.segment}: {how}")
    return 0
