"""`tracker jobs`, `job` and `delete-job`: the jobs, and their states."""

from __future__ import annotations

from typing import Annotated

import typer

from tracker.cli.connecting import Connection
from tracker.cli.declaring import command, new_commands
from tracker.cli.forms import Form
from tracker.cli.options import Consent, Job
from tracker.cli.output import print_done, print_json, print_line, print_rows
from tracker.cli.statuses import read_statuses

commands = new_commands()


@command(commands, "jobs")
def jobs(at: Connection, form: Form) -> int:
    """List the jobs, with their open substreams and elements in flight."""
    from tracker.cli.views.jobs import JOBS

    with at.client() as client:
        statuses = list(read_statuses(client))
    if form is Form.JSON:
        print_json(statuses, indent=2)
        return 0
    if not statuses:
        print_line(f"no jobs at {at.server}")
        return 0
    print_rows(JOBS, statuses, form)
    return 0


@command(commands, "job")
def show_job(at: Connection, form: Form, job: Job) -> int:
    """Show a job's graph, its open substreams and elements in flight, its producers and its fronts."""
    from tracker.cli.views.jobs import print_job

    with at.client() as client:
        status = client.job(job)
        oldest = None if form is Form.JSON else next(client.substreams(job), None)
    if form is Form.JSON:
        print_json(status, indent=2)
        return 0
    print_job(status, oldest, form)
    return 0


@command(commands, "delete-job")
def delete_job(
    at: Connection,
    form: Form,
    consent: Consent,
    job: Job,
    force: Annotated[bool, typer.Option("--force", help="delete the job even if producers have open runs")] = False,
) -> int:
    """Delete a job with all its events. Its watchers get an error, since their log no longer exists."""
    with at.client() as client:
        status = client.job(job)
        dropped = [f"{status.open_substreams:,} open substreams and {status.last_seq:,} events are dropped"]
        with consent.to(f"delete the job {job!r}", dropped):
            client.delete_job(job, force=force)
    return print_done(form, job, "deleted")
