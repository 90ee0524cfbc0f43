"""What the commands that ask a tracker have in common: which tracker, how long to try, and in which form to answer."""

from __future__ import annotations

import argparse
import os
from typing import Final

from tracker.client import TrackerClient, TrackerError
from tracker.sharded import ShardedClient

SERVER_VARIABLE: Final = "TRACKER_SERVER"
DEFAULT_SERVER: Final = "127.0.0.1:7654"


def options(first: bool = False) -> argparse.ArgumentParser:
    """A parent parser with the options of every such command.

    Args:
        first: they are those before the command, which have the defaults; those after it count if they are given.
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
    """The client that the options describe."""
    if arguments.sharded:
        return ShardedClient(arguments.server, arguments.sharded, retry_for=arguments.retry_for)
    return TrackerClient(arguments.server, retry_for=arguments.retry_for)


def single_client(arguments: argparse.Namespace) -> TrackerClient:
    """The same for commands that know no jobs shared by several servers.

    Raises:
        TrackerError: ``NOT_SHARDED``.
    """
    asked = client(arguments)
    if isinstance(asked, TrackerClient):
        return asked
    raise TrackerError(
        "UNIMPLEMENTED",
        "NOT_SHARDED",
        "NOT_SHARDED: this command reads one server of a shared job; leave out --sharded",
    )
