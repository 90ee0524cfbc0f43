"""`tracker drain` and `cancel-drain`: bring a deployment to its end, or cancel that."""

from __future__ import annotations

import argparse
import time
import uuid
from typing import Final

from tracker.cli import connecting
from tracker.cli.output import print_json, print_line, print_pairs
from tracker.client import DrainState, DrainStatus, TrackerClient, TrackerError
from tracker.sharded import ShardedClient

_LOOK_AGAIN_S: Final = 0.5


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    options = [connecting.options()]
    drain = commands.add_parser(
        "drain",
        parents=options,
        help="ask a deployment to finish what it has begun and to stop",
        description="Ask a deployment to finish what it has begun and to stop: its sources stop reading and finish "
        "their fronts with their last epochs, and the job is drained once every substream has ended. Run again, the "
        "command shows how far the drain is and what is missing.",
        epilog="example: tracker drain flights d1 --timeout 600 --wait",
    )
    drain.add_argument("job", metavar="JOB")
    drain.add_argument("deployment", metavar="DEPLOYMENT", help="the drain affects no other deployment")
    drain.add_argument("--id", metavar="ID", help="the name of this drain (default: a new one)")
    drain.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        help="announce it if the drain is not complete by then (default: never)",
    )
    drain.add_argument(
        "--wait",
        action="store_true",
        help="wait until the drain is complete; exit status 1 if it was cancelled or is not complete in time",
    )
    drain.set_defaults(run=drain_job)

    cancel = commands.add_parser(
        "cancel-drain",
        parents=options,
        help="cancel a drain",
        description="Cancel a drain, as long as no front has finished in it.",
    )
    cancel.add_argument("job", metavar="JOB")
    cancel.add_argument("--deployment", metavar="DEPLOYMENT", default="", help="default: the current one")
    cancel.add_argument("--id", metavar="ID", default="", help="only this drain (default: whichever is under way)")
    cancel.set_defaults(run=cancel_drain)


def drain_job(arguments: argparse.Namespace) -> int:
    """Runs `tracker drain` and returns the exit status."""
    drain_id = arguments.id or f"drain-{uuid.uuid4().hex[:12]}"
    over = {DrainState.DRAINED, DrainState.CANCELLED, DrainState.TIMED_OUT, DrainState.NOT_DRAINING}
    with connecting.client(arguments) as client:
        status = client.drain(arguments.job, arguments.deployment, drain_id, timeout=arguments.timeout)
        if status.state is DrainState.PENDING:
            _warn_of_pending(client, arguments)
        while arguments.wait and status.state not in over:
            time.sleep(_LOOK_AGAIN_S)
            status = client.get_drain(arguments.job, arguments.deployment)
    _show(arguments, status)
    return 0 if not arguments.wait or status.state is DrainState.DRAINED else 1


def _warn_of_pending(client: TrackerClient | ShardedClient, arguments: argparse.Namespace) -> None:
    """Warns that the deployment does not exist yet: its name may be misspelt."""
    try:
        there = f"the current one is {client.job(arguments.job).spec.deployment!r}"
    except TrackerError as refused:
        if refused.reason != "UNKNOWN_JOB":
            raise
        there = "the job does not exist"
    print_line(
        f"tracker: job {arguments.job} has no deployment {arguments.deployment!r} yet ({there}): the drain is PENDING, "
        f"and begins when that deployment is defined. To cancel it: tracker cancel-drain {arguments.job} "
        f"--deployment {arguments.deployment}",
        error=True,
    )


def cancel_drain(arguments: argparse.Namespace) -> int:
    """Runs `tracker cancel-drain` and returns the exit status."""
    with connecting.client(arguments) as client:
        _show(arguments, client.cancel_drain(arguments.job, arguments.id, arguments.deployment))
    return 0


def _show(arguments: argparse.Namespace, status: DrainStatus) -> None:
    if arguments.json:
        print_json(status, indent=2)
        return
    print_pairs(
        [
            ("state", status.state),
            ("drain", status.drain_id or None),
            ("deployment", status.deployment),
            ("unfinished fronts", status.unfinished_fronts),
            ("open", f"{status.open_substreams} substreams, {status.in_flight} elements in flight"),
            ("with staged epochs", status.uncommitted_producers),
            ("with open runs", status.open_producers),
        ]
    )
