"""`tracker abandon`, `finish-front`, `forget-producer` and `leader`: an operator decides for a program or a server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from tracker.cli.connection import Connection
from tracker.cli.declarations import CommandFailedError, Group, command, ending_at, new_commands
from tracker.cli.options import Consent, Job, Name, Scope
from tracker.cli.output import Form, print_done, print_json, print_line

if TYPE_CHECKING:
    from tracker.client import JobStatus

commands = new_commands()


@command(commands, "abandon")
def abandon(at: Connection, form: Form, consent: Consent, job: Job, scope: Scope, name: Name) -> int:
    """End an open substream on every segment at once, with the reason ABANDONED, whatever is in flight."""
    with at.client() as client:
        known = client.explain(job, scope, name)
        in_flight = 0 if known.substream is None else known.substream.in_flight
        dropped = [f"{in_flight:,} elements in flight are given up"] if in_flight else []
        if known.staged:
            dropped.append(f"{len(known.staged)} epochs that are not committed have reported it: they will be late")
        with consent.to(f"abandon {name!r} of scope {scope!r}", dropped):
            client.abandon(job, scope, name)
    return print_done(form, name, "abandoned")


@command(commands, "finish-front")
def finish_front(
    at: Connection,
    form: Form,
    consent: Consent,
    job: Job,
    front: Annotated[str, typer.Argument(metavar="FRONT", help="a front of the job, as `tracker job JOB` shows it")],
) -> int:
    """Finish the front of a source that will not promise anything again, so that nothing waits for it."""
    with at.client() as client:
        opened = client.job(job).open_substreams
        waiting = [f"nothing of the {opened:,} open substreams waits for it any more"] if opened else []
        with consent.to(f"finish the front {front!r}", waiting):
            client.finish_front(job, front)
    return print_done(form, front, "finished")


@command(commands, "forget-producer")
def forget_producer(
    at: Connection,
    form: Form,
    consent: Consent,
    job: Job,
    producer: Annotated[
        str, typer.Argument(metavar="PRODUCER", help="a producer of the job, as `tracker job JOB` shows it")
    ],
) -> int:
    """Forget a producer that will not return: its staged epochs are dropped, its fronts are free."""
    with at.client() as client, consent.to(f"forget the producer {producer!r}", _staged(client.job(job), producer)):
        client.forget_producer(job, producer)
    return print_done(form, producer, "forgotten")


def _staged(status: JobStatus, producer: str) -> list[str]:
    """Return a line with the epochs of a producer that nobody could commit any more."""
    staged = [epoch for each in status.producers if each.producer == producer for epoch in each.staged_epochs]
    if not staged:
        return []
    return [f"its staged epochs {', '.join(map(str, staged))} are dropped, with all that they have sent and received"]


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
