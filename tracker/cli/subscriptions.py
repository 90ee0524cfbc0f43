"""`tracker subscriptions` and `unsubscribe`: the durable readers of a job, and their progress."""

from __future__ import annotations

import argparse

from tracker.cli import connecting
from tracker.cli.output import print_json, print_line, print_table, text
from tracker.client import SubscriptionStatus


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    options = [connecting.options()]
    subscriptions = commands.add_parser(
        "subscriptions",
        parents=options,
        help="list a job's durable readers",
        description="List a job's subscriptions: durable readers, whose events are kept until they have acknowledged "
        "them. KEPT is the number of events that the tracker keeps for a reader beyond the job's retention.",
    )
    subscriptions.add_argument("job", metavar="JOB")
    subscriptions.set_defaults(run=list_subscriptions)

    unsubscribe = commands.add_parser(
        "unsubscribe",
        parents=options,
        help="remove a subscription, expired or not",
        description="Remove a subscription: the tracker keeps no more events for it, and refuses its readers.",
    )
    unsubscribe.add_argument("job", metavar="JOB")
    unsubscribe.add_argument("name", metavar="NAME")
    unsubscribe.set_defaults(run=end_subscription)


def list_subscriptions(arguments: argparse.Namespace) -> int:
    """Runs `tracker subscriptions` and returns the exit status."""
    with connecting.single_client(arguments) as client:
        found = client.subscriptions(arguments.job)
    if arguments.json:
        print_json(found, indent=2)
        return 0
    if not found:
        print_line(f"job {arguments.job} has no subscriptions")
        return 0
    print_table(
        ["NAME", "SEGMENTS", "SCOPES", "ACKNOWLEDGED", "KEPT", "OLDEST KEPT", "MAX AGE", "LAST ACK", "STATE"],
        [
            [
                each.name,
                each.segments or "all",
                each.scopes or "all",
                each.acknowledged,
                each.retained,
                each.oldest_retained,
                each.max_age,
                each.last_ack,
                _state(each),
            ]
            for each in found
        ],
    )
    return 0


def _state(subscription: SubscriptionStatus) -> str:
    if subscription.expired is None:
        return "active"
    return f"expired {text(subscription.expired)}: {subscription.expired_because}"


def end_subscription(arguments: argparse.Namespace) -> int:
    """Runs `tracker unsubscribe` and returns the exit status."""
    with connecting.single_client(arguments) as client:
        client.unsubscribe(arguments.job, arguments.name)
    if arguments.json:
        print_json({"unsubscribed": arguments.name})
    else:
        print_line(f"{arguments.name} is unsubscribed")
    return 0
