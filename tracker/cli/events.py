"""`tracker watch`, `events` and `wait`: a job's events as they happen, those that are kept, and one end."""

from __future__ import annotations

import argparse
from typing import get_args

from tracker.cli import connecting
from tracker.cli.output import print_json, print_line, text, time_text
from tracker.client import (
    Advanced,
    Ended,
    Event,
    Excess,
    FrontIdle,
    Kind,
    Late,
    Reason,
    ShardedWatch,
    Stalled,
    TrackerClient,
    Watch,
)

_WRONG_USAGE = 2
_LATE = 1


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    watch = commands.add_parser(
        "watch",
        parents=[connecting.options()],
        help="show a job's events as they happen",
        description="Show a job's events: first those that are kept, then new ones as they happen, until "
        "interrupted. It reconnects by itself when the tracker restarts.",
        epilog="example: tracker watch flights --segment clean --scope JFK --json | jq .name",
    )
    watch.add_argument("job", metavar="JOB")
    watch.add_argument("--after", metavar="SEQ", type=int, default=0, help="the last event seen (default: show all)")
    watch.add_argument(
        "--segment", metavar="SEGMENT", action="append", default=[], help="only ends on this segment; may be repeated"
    )
    watch.add_argument(
        "--scope", metavar="SCOPE", action="append", default=[], help="only ends in this scope; may be repeated"
    )
    watch.set_defaults(run=watch_job)

    events = commands.add_parser(
        "events",
        parents=[connecting.options()],
        help="list a job's events",
        description="List the events of a job that are kept.",
        epilog="example: tracker events flights --kind Late --scope JFK",
    )
    events.add_argument("job", metavar="JOB")
    events.add_argument(
        "--after", metavar="SEQ", type=int, default=0, help="only events after this one (default: all that are kept)"
    )
    events.add_argument("--segment", metavar="SEGMENT", action="append", default=[], help="as for watch")
    events.add_argument("--scope", metavar="SCOPE", action="append", default=[], help="as for watch")
    events.add_argument(
        "--kind",
        metavar="KIND",
        action="append",
        choices=sorted(kind.__name__ for kind in get_args(Kind)),
        default=[],
        help="only events of this kind, such as Ended or Late; may be repeated",
    )
    events.add_argument(
        "--limit", metavar="NUMBER", type=int, default=1000, help="the most events to list; 0: all (default: 1000)"
    )
    events.set_defaults(run=list_events)

    wait = commands.add_parser(
        "wait",
        parents=[connecting.options()],
        help="wait until a substream has ended on a segment",
        description="Wait until a substream has ended on a segment, and print how. Exit status 1: not in time.",
        epilog="example: tracker wait flights clean JFK 2013-01-01T00:00:00Z/2013-01-02T00:00:00Z --timeout 3600",
    )
    wait.add_argument("job", metavar="JOB")
    wait.add_argument("segment", metavar="SEGMENT")
    wait.add_argument("scope", metavar="SCOPE", help="may be empty: ''")
    wait.add_argument("name", metavar="NAME")
    wait.add_argument("--timeout", metavar="SECONDS", type=float, help="default: for ever")
    wait.set_defaults(run=wait_for_end)


def watch_job(arguments: argparse.Namespace) -> int:
    """Runs `tracker watch` and returns the exit status."""
    job, filters = arguments.job, {"segments": arguments.segment, "scopes": arguments.scope}
    with connecting.client(arguments) as client:
        if isinstance(client, TrackerClient):
            events: Watch | ShardedWatch = client.watch(job, arguments.after, **filters)
        elif arguments.after:
            print_line(
                "tracker: --after is a position in one server's events; it cannot be used with --sharded", error=True
            )
            return _WRONG_USAGE
        else:
            events = client.watch(job, **filters)
        with events:
            for event in events:
                if arguments.json:
                    print_json(event)
                else:
                    print_line(line(event), flush=True)
    return 0


def list_events(arguments: argparse.Namespace) -> int:
    """Runs `tracker events` and returns the exit status."""
    with connecting.single_client(arguments) as client:
        shown, place = 0, arguments.after
        while True:
            page = client.list_events(
                arguments.job, place, segments=arguments.segment, scopes=arguments.scope, own_position=place > 0
            )
            for event in page.events:
                if arguments.kind and type(event.kind).__name__ not in arguments.kind:
                    continue
                if arguments.limit and shown == arguments.limit:
                    if not arguments.json:
                        print_line(f"… and more: only the first {shown} are shown; --limit 0 lists all")
                    return 0
                shown += 1
                if arguments.json:
                    print_json(event)
                else:
                    print_line(line(event))
            if page.last_seq <= place:
                break
            place = page.last_seq
    if not shown and not arguments.json:
        print_line(f"job {arguments.job} keeps no such events")
    return 0


def wait_for_end(arguments: argparse.Namespace) -> int:
    """Runs `tracker wait` and returns the exit status."""
    with connecting.client(arguments) as client:
        try:
            ended = client.wait_for_end(
                arguments.job, arguments.segment, arguments.scope, arguments.name, timeout=arguments.timeout
            )
        except TimeoutError as late:
            print_line(f"tracker: {late}; `tracker explain` shows why", error=True)
            return _LATE
    if arguments.json:
        print_json(ended)
    else:
        lost = "" if ended.reason is Reason.COMPLETE else f", {ended.in_flight} of them were not received"
        how = f"{ended.reason}, {ended.elements} elements{lost}"
        print_line(f"{_substream(ended.scope, ended.name)} has ended on {ended.segment}: {how}")
    return 0


def line(event: Event) -> str:
    """Formats an event as a line for people.

    >>> from datetime import datetime, timezone
    >>> line(Event(7, datetime(2013, 1, 2, tzinfo=timezone.utc), "d1", Advanced("raw", 24)))
    '     7  2013-01-02 00:00:00.000  Advanced          raw  up to 24'
    """
    return f"{event.seq:>6}  {text(event.at)}  {type(event.kind).__name__:<16}  {_said(event)}"


def _said(event: Event) -> str:
    match event.kind:
        case Ended() as ended:
            lost = "" if ended.reason is Reason.COMPLETE else f"  {ended.reason}, {ended.in_flight} not received"
            of = "" if ended.expected is None else f" of {ended.expected}"
            drain = "  closed by a drain: more may follow" if ended.by_drain else ""
            return f"{ended.segment}  {_substream(ended.scope, ended.name)}  {ended.elements}{of} elements{lost}{drain}"
        case Late() as late:
            return (
                f"{late.segment}  {_substream(late.scope, late.name)}  "
                f"{late.sent} sent, {late.received} received by {late.producer}"
            )
        case Stalled() as stalled:
            of = f", {stalled.sent} of {stalled.expected} sent" if stalled.expected else ""
            where = f"{text(stalled.segments)}  {_substream(stalled.scope, stalled.name)}"
            return f"{where}  {stalled.in_flight} in flight{of}"
        case Excess() as excess:
            where = f"{excess.segment}  {_substream(excess.scope, excess.name)}"
            return f"{where}  {excess.sent} sent, only {excess.expected} expected"
        case FrontIdle(front, idle):
            return f"{front} {'is idle and not waited for' if idle else 'is active again'}"
        case Advanced(segment, time):
            return f"{segment}  up to {time_text(time)}"
        case drain:
            return drain.drain_id


def _substream(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope else name
