"""The commands that show a tracker, its jobs and what is in them, and `delete-job`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracker.cli.connection import Connection
from tracker.cli.declarations import CommandFailedError, command, new_commands
from tracker.cli.options import Consent, Job, Scope
from tracker.cli.output import (
    Form,
    followed,
    print_done,
    print_json,
    print_line,
    print_list,
    print_pairs,
    print_rows,
    print_table,
)

if TYPE_CHECKING:
    from tracker.client import JobStatus

commands = new_commands()
_MOST_NAMES: Final = 10  # the most names that are shown if several begin with the given text


@command(commands, "jobs")
def jobs(at: Connection, form: Form) -> int:
    """List the jobs, with their open substreams and elements in flight."""
    from tracker.cli.views import JOBS, read_statuses

    with at.client() as client:
        statuses = list(read_statuses(client))
    return print_list(JOBS, statuses, form, f"no jobs at {at.server}")


@command(commands, "job")
def show_job(at: Connection, form: Form, job: Job) -> int:
    """Show a job's graph, its open substreams and elements in flight, its producers and its fronts."""
    from tracker.cli.views import print_job

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


@command(commands, "substreams", "tracker substreams flights --scope JFK --stalled")
def substreams(
    at: Connection,
    form: Form,
    job: Job,
    scope: Annotated[list[str] | None, typer.Option(metavar="SCOPE", help="only this scope; may be repeated")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="also substreams that have ended and are still kept")] = False,
    stalled: Annotated[bool, typer.Option("--stalled", help="only stalled substreams")] = False,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="the most substreams to list; 0: all")] = 1000,
) -> int:
    """List substreams: whether they are closed, which fronts they wait for, what is in flight."""
    from tracker.cli.views import SUBSTREAMS

    scopes = scope or []
    with at.client() as client:
        found = client.substreams(job, scopes=scopes, include_ended=ended, only_stalled=stalled)
        filtered = bool(scopes or ended or stalled or limit)
        total = 0 if filtered else client.job(job).open_substreams
        shown = followed(islice(found, limit or None), "substreams", limit or total)
        if form is Form.JSON:
            for substream in shown:
                print_json(substream)
            return 0
        first = next(shown, None)
        if first is None:
            unchanged = client.job(job).spec.stall_after if stalled else None
            print_line(_nothing(job, scopes, ended, stalled, unchanged))
            return 0
        print_rows(SUBSTREAMS, chain([first], shown), form)
        if next(found, None) is not None:
            print_line(f"… and more: only the first {limit} are shown; --limit 0 lists all")
    return 0


def _nothing(job: str, scopes: Sequence[str], ended: bool, stalled: bool, stall_after: timedelta | None) -> str:
    of = f" of scope {', '.join(scopes)}" if scopes else ""
    if stall_after is not None:
        return (
            f"no stalled substreams{of} in job {job}; one is stalled when nothing of it has changed for {stall_after}"
        )
    if stalled:
        return f"no stalled substreams{of} in job {job}; only a job with stall_after has any"
    if ended:
        return f"no substreams{of} in job {job}"
    return f"no open substreams{of} in job {job}; --ended lists ended ones, too"


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
                raise _unknown(status, scope, name, names)
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


def _unknown(job: JobStatus, scope: str, name: str, names: Sequence[str]) -> CommandFailedError:
    """Return the failure of a name that no substream has, or more than one begins with."""
    from tracker.client.texts import text

    if names:
        listed = [*names[:_MOST_NAMES], *(["…"] if len(names) > _MOST_NAMES else [])]
        return CommandFailedError(
            f"several substreams of scope {scope!r} begin with {name!r}; name one:", [f"  {each}" for each in listed]
        )
    return CommandFailedError(
        f"{job.spec.job} has no substream {name!r} in scope {scope!r}, and none that begins with this name: "
        f"nothing was reported of it, or it ended more than {text(job.spec.retention)} ago. "
        f"`tracker substreams {job.spec.job} --ended` lists all substreams"
    )


@command(commands, "subscriptions")
def subscriptions(at: Connection, form: Form, job: Job) -> int:
    """List a job's subscriptions: durable readers, whose events are kept until they have acknowledged them.

    KEPT is the number of events that the tracker keeps for a reader beyond the job's retention.
    """
    from tracker.cli.views import SUBSCRIPTIONS

    with at.single_client() as client:
        found = client.subscriptions(job)
    return print_list(SUBSCRIPTIONS, found, form, f"job {job} has no subscriptions")


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


@command(commands, "info")
def info(at: Connection, form: Form) -> int:
    """Show the server's version, its journal and its limits. Of several servers, the first by name."""
    with at.single_client() as client:
        found = client.server_info()
    if form is Form.JSON:
        print_json(replace(found, limits=dict(sorted(found.limits.items()))), indent=2)
        return 0
    print_pairs([("server", at.server), ("version", found.version), ("journal", found.journal)])
    print_line()
    print_table(["LIMIT", "VALUE"], sorted(found.limits.items()))
    return 0
