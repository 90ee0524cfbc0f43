"""`tracker watch`, `events` and `wait`: a job's events as they happen, those that are kept, and waiting for ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tracker.cli.connection import Connection
from tracker.cli.declarations import CommandFailedError, WrongUsageError, command, ending_at, new_commands
from tracker.cli.options import Job, micros
from tracker.cli.output import Form, print_json, print_line

if TYPE_CHECKING:
    from tracker.client import Kind, ShardedClient, ShardedWatch, TrackerClient, Watch
    from tracker.client.waiting import AcceptedEnds
    from tracker.contract.events import EventPage

commands = new_commands()

_Segments = Annotated[
    list[str] | None, typer.Option(metavar="SEGMENT", help="only ends on this segment; may be repeated")
]
_Scopes = Annotated[list[str] | None, typer.Option(metavar="SCOPE", help="only ends in this scope; may be repeated")]


def _end_time(text: str) -> int:
    """Read an end time: a number as it is, a date or time as microseconds since 1970, UTC if it names no zone.

    >>> _end_time("24"), _end_time("2013-02-01"), _end_time("2013-02-01T01:00+01:00")
    (24, 1359676800000000, 1359676800000000)
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return micros(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a number nor a date or time such as 2013-02-01 or 2013-02-01T12:00:00Z"
        ) from None


def _kind(name: str) -> str:
    from tracker.cli.views import KINDS

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
    from tracker.cli.views import print_event
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
    name: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="only events of substreams of this name; may be repeated")
    ] = None,
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
    """List the events of a job that are kept, in their order; --scope and --name have the history of one substream."""
    from tracker.cli.views import print_event
    from tracker.client.watch import pages

    with at.single_client() as client:
        shown = 0

        def read(place: int, up_to: int) -> EventPage:
            return client.list_events(
                job, place, up_to, segments=segment or [], scopes=scope or [], own_position=place > 0
            )

        for page in pages(read, after):
            for event in page.events:
                if kind and type(event.kind).__name__ not in kind:
                    continue
                if name and not _is_of(event.kind, name, scope):
                    continue
                if limit and shown == limit:
                    if form is not Form.JSON:
                        print_line(f"… and more: only the first {shown} are shown; --limit 0 lists all")
                    return 0
                shown += 1
                print_event(event, form)
    if not shown and form is not Form.JSON:
        print_line(f"job {job} keeps no such events")
    return 0


def _is_of(kind: Kind, names: Sequence[str], scopes: Sequence[str] | None) -> bool:
    """Return whether an event is of a substream of these. The tracker's filter leaves kinds such as Stalled to us."""
    return getattr(kind, "name", None) in names and (not scopes or getattr(kind, "scope", None) in scopes)


@command(commands, "wait", "tracker wait flights clean JFK 2013-01-01T00:00:00Z/2013-01-02T00:00:00Z --timeout 3600")
def wait(
    at: Connection,
    form: Form,
    job: Job,
    segment: Annotated[str, typer.Argument(metavar="SEGMENT", help="a segment of the job's graph")],
    scope: Annotated[
        str | None, typer.Argument(metavar="SCOPE", help="the substream's scope; may be empty: ''", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="the substream's name", show_default=False)] = None,
    up_to: Annotated[
        int | None,
        typer.Option(
            metavar="TIME",
            parser=_end_time,
            show_default=False,
            help="wait for all substreams of all scopes with an end time up to this one, in a job with progress: a "
            "number in the job's unit, or for one that counts microseconds, as Spark's do, a date or time in ISO 8601",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="how long to wait (default: for ever)")
    ] = None,
    reasons: Annotated[
        list[str],
        typer.Option(
            "--reason",
            metavar="REASON",
            envvar="TRACKER_WAIT_REASON",
            help="of an end that is good enough; may be given several times: COMPLETE, DEADLINE, THRESHOLD, IDLE, "
            "EXPIRED, ABANDONED",
        ),
    ] = ["COMPLETE"],  # noqa: B006 - typer copies it
    by_drain: Annotated[
        bool,
        typer.Option("--by-drain", help="the end of a substream that only a drain has closed is good enough, too"),
    ] = False,
) -> int:
    """Wait until a substream has ended on a segment, and print how; with --up-to, until all up to a time have ended.

    Exit status 1: not in time, or the end is not good enough: of another reason than COMPLETE, or by a drain. --up-to
    takes every end.
    """
    from tracker.client.waiting import AcceptedEnds

    if (scope is None or name is None) == (up_to is None) or (up_to is not None and scope is not None):
        raise WrongUsageError("give either the SCOPE and the NAME of a substream, or --up-to TIME")
    with ending_at():
        accepted = AcceptedEnds(reasons, by_drain)
    with at.client() as client:
        try:
            if up_to is not None:
                return _wait_for_all(client, form, job, segment, up_to, timeout)
            return _wait_for_one(client, form, job, segment, scope or "", name or "", timeout, accepted)
        except TimeoutError as late:
            raise CommandFailedError(f"{late}; `tracker explain` shows why") from None


def _wait_for_one(
    client: TrackerClient | ShardedClient,
    form: Form,
    job: str,
    segment: str,
    scope: str,
    name: str,
    timeout: float | None,
    accepted: AcceptedEnds,
) -> int:
    from tracker.cli.views import substream

    ended = client.wait_for_end(job, segment, scope, name, timeout=timeout)
    if form is Form.JSON:
        print_json(ended)
    else:
        print_line(f"{substream(ended.scope, ended.name)} has ended on {ended.segment}: {ended.account}")
    if complaint := accepted.complaint(ended):
        accepting = f"--reason {ended.reason}" if ended.reason.name not in accepted.reasons else "--by-drain"
        raise CommandFailedError(f"{complaint}; {accepting} accepts that")
    return 0


def _wait_for_all(
    client: TrackerClient | ShardedClient, form: Form, job: str, segment: str, up_to: int, timeout: float | None
) -> int:
    from tracker.client import wait_for_progress
    from tracker.client.texts import time_text

    with ending_at():
        reached = wait_for_progress(client, job, segment, up_to, timeout)
    if form is Form.JSON:
        print_json({"segment": segment, "up_to": reached})
    else:
        print_line(f"all substreams up to {time_text(reached)} have ended on {segment}")
    return 0
