"""`tracker info`: the server that answers, and its limits."""

from __future__ import annotations

import argparse

from tracker.cli import connecting
from tracker.cli.output import print_json, print_line, print_pairs, print_table


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    info = commands.add_parser(
        "info",
        parents=[connecting.options()],
        help="show which server answers, and its limits",
        description="Show the server's version, its journal and its limits. Of several servers, the first by name.",
    )
    info.set_defaults(run=show_info)


def show_info(arguments: argparse.Namespace) -> int:
    """Runs `tracker info` and returns the exit status."""
    with connecting.single_client(arguments) as client:
        info = client.server_info()
    if arguments.json:
        print_json(info, indent=2)
        return 0
    print_pairs([("server", arguments.server), ("version", info.version), ("journal", info.journal)])
    print_line()
    print_table(["LIMIT", "VALUE"], sorted(info.limits.items()))
    return 0
