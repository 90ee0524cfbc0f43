"""Commands of an operator: end a deployment or hand it over, give up what will not come, and move the lead."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracker.cli.connection import Connection
from tracker.cli.declarations import CommandFailedError, Group, command, ending_at, new_commands
from tracker.cli.options import Consent, Job, Name, Scope
from tracker.cli.output import Form, print_done, print_json, print_line, print_pairs, progress
from tracker.contract.refusal import Refusal

if TYPE_CHECKING:
    from tracker.client import DrainStatus, JobStatus, TrackerClient
    from tracker.sharded import ShardedClient

commands = new_commands()
_LOOK_AGAIN_S: Final = 0.5
_LOOK_AT_LEADER_S: Final = 0.05


@command(commands, "drain", "tracker drain flights d1 --timeout 600 --wait")
def drain(
    at: Connection,
    form: Form,
    job: Job,
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="the drain affects no other deployment")],
    drain_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", envvar="TRACKER_DRAIN_ID", help="the name of this drain (default: a new one)"
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="announce it if the drain is not complete by then (default: never)",
        ),
    ] = None,
    hand_over: Annotated[
        bool,
        typer.Option(
            "--hand-over",
            help="leave open substreams to the next deployment instead of finishing them",
        ),
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="wait until the drain is complete; exit status 1 if it was cancelled or is not complete in time",
        ),
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="with --wait: write the drain's certificate, as JSON with all counts, when it is complete",
        ),
    ] = None,
) -> int:
    """Ask a deployment to finish what it has begun and to stop, or to hand it over.

    Its sources stop reading and finish their fronts with their last epochs, and the job is drained once every substream
    has ended. With --hand-over they stop without finishing: the job is drained once nothing is in flight and every run
    has closed, and the next deployment goes on with what is open. Run again, the command shows how far the drain is and
    what is missing.
    """
    from tracker.client import DrainState

    if certificate is not None and not wait:
        raise typer.BadParameter("a certificate is of a drain that is complete: give --wait, too")
    over = {DrainState.DRAINED, DrainState.CANCELLED, DrainState.NOT_DRAINING}
    until = time.monotonic() + (timeout or 0)
    with at.client() as client:
        name = drain_id or f"drain-{uuid.uuid4().hex[:12]}"
        status = client.drain(job, deployment, name, timeout=timeout, hand_over=hand_over)
        if status.state is DrainState.PENDING:
            _warn_of_pending(client, job, deployment)
        if wait:
            with progress() as show:
                most = 0
                # A drain that has timed out goes on, and may have done so before this command: its own time counts.
                while status.state not in over and (
                    status.state is not DrainState.TIMED_OUT or time.monotonic() < until
                ):
                    left = len(status.open_producers) if hand_over else status.open_substreams
                    most = max(most, left)
                    show(most - left, most, _remaining(job, status))
                    time.sleep(_LOOK_AGAIN_S)
                    status = client.get_drain(job, deployment)
        if certificate is not None and status.state is DrainState.DRAINED:
            _write_certificate(client, job, deployment, certificate)
    _show(form, status)
    if status.state is DrainState.TIMED_OUT and _waits_for_runs(status):
        print_line(
            f"tracker: the drain waits for open runs of {', '.join(status.open_producers)}. Stop each program, or "
            "start it again and let it close its run. To forget one that will never return: "
            f"tracker forget-producer {job} {status.open_producers[0]}",
            error=True,
        )
    return 0 if not wait or status.state is DrainState.DRAINED else 1


def _write_certificate(client: TrackerClient | ShardedClient, job: str, deployment: str, file: Path) -> None:
    """Write a certificate whole or not at all."""
    from tracker.client import TrackerClient
    from tracker.client.certificates import certificate

    if not isinstance(client, TrackerClient):
        raise typer.BadParameter("a job on several servers has a certificate for each shard: name one server")
    part = file.with_name(f"{file.name}.part")
    part.write_text(json.dumps(certificate(client, job, deployment), indent=2) + "\n", encoding="utf-8")
    part.replace(file)


def _remaining(job: str, status: DrainStatus) -> str:
    """Describe what a drain still waits for."""
    from tracker.client import DrainMode

    hands_over = status.mode is DrainMode.HAND_OVER
    waits = [f"{status.open_substreams} substreams open", f"{status.in_flight} elements in flight"]
    if hands_over and status.unbalanced_segments:
        waits.append(f"in flight on: {', '.join(status.unbalanced_segments)}")
    if status.unfinished_fronts and not hands_over:
        waits.append(f"unfinished fronts: {', '.join(status.unfinished_fronts)}")
    if status.uncommitted_producers:
        waits.append(f"not committed: {', '.join(status.uncommitted_producers)}")
    if _waits_for_runs(status):
        waits.append(f"open runs: {', '.join(status.open_producers)}")
    return f"{job} is {status.state}: {'; '.join(waits)}"


def _waits_for_runs(status: DrainStatus) -> bool:
    """Return whether open runs hold a drain back: of a hand-over, or of a job without fronts that is done."""
    from tracker.client import DrainMode

    else_left = status.open_substreams or status.unfinished_fronts or status.uncommitted_producers
    return bool(status.open_producers) and (status.mode is DrainMode.HAND_OVER or not else_left)


def _warn_of_pending(client: TrackerClient | ShardedClient, job: str, deployment: str) -> None:
    """Warn that the deployment does not exist yet: its name may be misspelt."""
    from tracker.client import TrackerError

    try:
        there = f"the current one is {client.job(job).spec.deployment!r}"
    except TrackerError as refused:
        if refused.reason != Refusal.UNKNOWN_JOB:
            raise
        there = "the job does not exist"
    print_line(
        f"tracker: job {job} has no deployment {deployment!r} yet ({there}): the drain is PENDING, and begins when "
        f"that deployment is defined. To cancel it: tracker cancel-drain {job} --deployment {deployment}",
        error=True,
    )


@command(commands, "cancel-drain")
def cancel_drain(
    at: Connection,
    form: Form,
    job: Job,
    deployment: Annotated[
        str, typer.Option(metavar="DEPLOYMENT", help="default: the current one", show_default=False)
    ] = "",
    drain_id: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="ID",
            envvar="TRACKER_CANCEL_DRAIN_ID",
            show_default=False,
            help="only this drain (default: whichever is under way)",
        ),
    ] = "",
) -> int:
    """Cancel a drain, as long as no front has finished in it; a hand-over, until it is done.

    The exit status is 1 if there is no drain that could be cancelled.
    """
    from tracker.client import DrainState

    with at.client() as client:
        status = client.cancel_drain(job, drain_id, deployment)
    _show(form, status)
    if status.state is not DrainState.CANCELLED:
        raise CommandFailedError(f"nothing is cancelled: job {job} is {status.state}")
    return 0


def _show(form: Form, status: DrainStatus) -> None:
    from tracker.client import DrainMode

    if form is Form.JSON:
        print_json(status, indent=2)
        return
    print_pairs(
        [
            ("state", status.state),
            ("drain", status.drain_id or None),
            ("mode", None if status.mode is None else status.mode.lower().replace("_", "-")),
            ("deployment", status.deployment),
            ("unfinished fronts", status.unfinished_fronts),
            ("open", f"{status.open_substreams} substreams, {status.in_flight} elements in flight"),
            ("with staged epochs", status.uncommitted_producers),
            ("with open runs", status.open_producers),
            *([("in flight on", status.unbalanced_segments)] if status.mode is DrainMode.HAND_OVER else []),
        ]
    )


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
            time.sleep(_LOOK_AT_LEADER_S)
    leads = finder(at.server).current
    if form is Form.JSON:
        print_json({"leader": leads, "instance": now, "handed_to": to})
    else:
        print_line(f"{leads} leads now; it was handed to {to}")
    return 0
