"""`tracker abandon`, `finish-front` and `forget-producer`: an operator decides for a program that will never return."""

from __future__ import annotations

from typing import Annotated

import typer

from tracker.cli.arguments import Job, Name, Scope
from tracker.cli.connecting import Connection
from tracker.cli.declaring import command, new_commands
from tracker.cli.forms import Form
from tracker.cli.output import print_done

commands = new_commands()


@command(commands, "abandon")
def abandon(at: Connection, form: Form, job: Job, scope: Scope, name: Name) -> int:
    """End an open substream on every segment at once, with the reason ABANDONED, whatever is in flight."""
    with at.client() as client:
        client.abandon(job, scope, name)
    return print_done(form, name, "abandoned")


@command(commands, "finish-front")
def finish_front(
    at: Connection,
    form: Form,
    job: Job,
    front: Annotated[str, typer.Argument(metavar="FRONT", help="a front of the job, as `tracker job JOB` shows it")],
) -> int:
    """Finish the front of a source that will not promise anything again, so that nothing waits for it."""
    with at.client() as client:
        client.finish_front(job, front)
    return print_done(form, front, "finished")


@command(commands, "forget-producer")
def forget_producer(
    at: Connection,
    form: Form,
    job: Job,
    producer: Annotated[
        str, typer.Argument(metavar="PRODUCER", help="a producer of the job, as `tracker job JOB` shows it")
    ],
) -> int:
    """Forget a producer that will not return: its staged epochs are dropped, its fronts are free."""
    with at.client() as client:
        client.forget_producer(job, producer)
    return print_done(form, producer, "forgotten")
