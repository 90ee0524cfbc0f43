"""`tracker abandon`, `finish-front` and `forget-producer`: an operator decides for a program that will never return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracker.cli.connection import Connection
from tracker.cli.declarations import command, new_commands
from tracker.cli.forms import Form
from tracker.cli.options import Consent, Job, Name, Scope
from tracker.cli.output import print_done

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
