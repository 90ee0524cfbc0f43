"""`tracker subscriptions` and `unsubscribe`: the durable readers of a job, and their progress."""

from __future__ import annotations

from typing import Annotated

import typer

from tracker.cli.connecting import Connection
from tracker.cli.declaring import command, new_commands
from tracker.cli.forms import Form
from tracker.cli.options import Job
from tracker.cli.output import print_done, print_json, print_line, print_rows

commands = new_commands()


@command(commands, "subscriptions")
def subscriptions(at: Connection, form: Form, job: Job) -> int:
    """List a job's subscriptions: durable readers, whose events are kept until they have acknowledged them.

    KEPT is the number of events that the tracker keeps for a reader beyond the job's retention.
    """
    from tracker.cli.views.jobs import SUBSCRIPTIONS

    with at.single_client() as client:
        found = client.subscriptions(job)
    if form is Form.JSON:
        print_json(found, indent=2)
        return 0
    if not found:
        print_line(f"job {job} has no subscriptions")
        return 0
    print_rows(SUBSCRIPTIONS, found, form)
    return 0


@command(commands, "unsubscribe")
def unsubscribe(
    at: Connection,
    form: Form,
    job: Job,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="the subscription, as `tracker subscriptions JOB` shows it")
    ],
) -> int:
    """Remove a subscription: the tracker keeps no more events for it, and refuses its readers."""
    with at.single_client() as client:
        client.unsubscribe(job, name)
    return print_done(form, name, "unsubscribed")
