"""The options of all commands that call a tracker: which tracker, how long to try, and the form of the answer."""

from __future__ import annotations

import argparse
import os
from typing import Final

from tracker.client import TrackerClient, TrackerError
from tracker.sharded import ShardedClient

SERVER_VARIABLE: Final = "TRACKER_SERVER"
DEFAULT_SERVER: Final = "127.0.0.1:7654"


def options(first: bool = False) -> argparse.ArgumentParser:
    """Returns a parent parser with the options of every such command.

    Args:
        first: make the options that stand before the command, which have the defaults. Those after the command have
            none, so they override the former only if they are given.
    """

    def default(value: object) -> object:
        return value if first else argparse.SUPPRESS

    parent = argparse.ArgumentParser(add_help=False)
    group = parent.add_argument_group("the tracker, and the form of the answer")
    group.add_argument(
        "--server",
        metavar="HOST:PORT,…",
        default=default(os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER)),
        help="the tracker's address, or those of several trackers that share the jobs "
        f"(default: ${SERVER_VARIABLE}, or {DEFAULT_SERVER})",
    )
    group.add_argument(
        "--sharded",
        metavar="ORDERING",
        choices=["none", "scope", "global"],
        default=default(None),
        help="each job is shared by all of these servers, and has this ordering: none, scope or global",
    )
    group.add_argument(
        "--retry-for",
        metavar="SECONDS",
        type=float,
        default=default(5.0),
        help="how long to try to reach the tracker (default: 5)",
    )
    group.add_argument("--json", action="store_true", default=default(False), help="print JSON, for programs")
    return parent


def client(arguments: argparse.Namespace) -> TrackerClient | ShardedClient:
    """Returns the client that the options describe."""
    if arguments.sharded:
        return ShardedClient(arguments.server, arguments.sharded, retry_for=arguments.retry_for)
    return TrackerClient(arguments.server, retry_for=arguments.retry_for)


def single_client(arguments: argparse.Namespace) -> TrackerClient:
    """Returns the client for a command that does not work with sharded jobs.

    Raises:
        TrackerError: ``NOT_SHARDED``: the options ask for a sharded job.
    """
    asked = client(arguments)
    if isinstance(asked, TrackerClient):
        return asked
    raise TrackerError(
        "UNIMPLEMENTED",
        "NOT_SHARDED",
        "NOT_SHARDED: this command reads one server of a shared job; leave out --sharded",
    )
