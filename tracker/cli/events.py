"""`tracker watch`: a job's events as they happen."""

from __future__ import annotations

import argparse
import sys

from tracker.cli import asking
from tracker.cli.output import print_json, text
from tracker.client import (
    Advanced,
    Ended,
    Event,
    FrontIdle,
    Late,
    Reason,
    ShardedWatch,
    Stalled,
    TrackerClient,
    Watch,
)

_WRONG_USAGE = 2


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    watch = commands.add_parser(
        "watch",
        parents=[asking.options()],
        help="show a job's events as they happen",
        description="Show a job's events, those kept and then new ones as they happen, until interrupted. Comes back "
        "by itself when the tracker restarts.",
        epilog="example: tracker watch flights --segment clean --scope JFK --json | jq .name",
    )
    watch.add_argument("job", metavar="JOB")
    watch.add_argument("--after", metavar="SEQ", type=int, default=0, help="the last event seen (default: show all)")
    watch.add_argument(
        "--segment", metavar="SEGMENT", action="append", default=[], help="only ends on these; may be repeated"
    )
    watch.add_argument("--scope", metavar="SCOPE", action="append", default=[], help="only ends in these; likewise")
    watch.set_defaults(run=watch_job)


def watch_job(arguments: argparse.Namespace) -> int:
    job, filters = arguments.job, {"segments": arguments.segment, "scopes": arguments.scope}
    with asking.client(arguments) as client:
        if isinstance(client, TrackerClient):
            events: Watch | ShardedWatch = client.watch(job, arguments.after, **filters)
        elif arguments.after:
            print("tracker: --after is a place in one server's events: not with --sharded", file=sys.stderr)
            return _WRONG_USAGE
        else:
            events = client.watch(job, **filters)
        with events:
            for event in events:
                if arguments.json:
                    print_json(event)
                else:
                    print(line(event), flush=True)
    return 0


def line(event: Event) -> str:
    """An event as people read it.

    >>> from datetime import UTC, datetime
    >>> line(Event(7, datetime(2013, 1, 2, tzinfo=UTC), "d1", Advanced("raw", 24)))
    '     7  2013-01-02 00:00:00.000  Advanced          raw  up to 24'
    """
    return f"{event.seq:>6}  {text(event.at)}  {type(event.kind).__name__:<16}  {_said(event)}"


def _said(event: Event) -> str:
    match event.kind:
        case Ended() as ended:
            lost = "" if ended.reason is Reason.COMPLETE else f"  {ended.reason}, {ended.in_flight} lost sight of"
            return f"{ended.segment}  {_substream(ended.scope, ended.name)}  {ended.elements} elements{lost}"
        case Late() as late:
            return (
                f"{late.segment}  {_substream(late.scope, late.name)}  "
                f"{late.sent} sent, {late.received} received by {late.producer}"
            )
        case Stalled() as stalled:
            return f"{text(stalled.segments)}  {_substream(stalled.scope, stalled.name)}  {stalled.in_flight} in flight"
        case FrontIdle(front, idle):
            return f"{front} {'is silent, and not waited for' if idle else 'is back'}"
        case Advanced(segment, time):
            return f"{segment}  up to {time}"
        case drain:
            return drain.drain_id


def _substream(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope else name
