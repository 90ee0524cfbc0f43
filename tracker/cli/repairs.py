"""`tracker abandon`, `finish-front` and `forget-producer`: an operator decides for a program that will never return."""

from __future__ import annotations

import argparse

from tracker.cli import connecting
from tracker.cli.output import print_json, print_line


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    options = [connecting.options()]
    abandon = commands.add_parser(
        "abandon",
        parents=options,
        help="end a substream, whatever is in flight",
        description="End an open substream on every segment at once, with the reason ABANDONED, whatever is in flight.",
    )
    abandon.add_argument("job", metavar="JOB")
    abandon.add_argument("scope", metavar="SCOPE", help="may be empty: ''")
    abandon.add_argument("name", metavar="NAME")
    abandon.set_defaults(run=abandon_substream)

    finish = commands.add_parser(
        "finish-front",
        parents=options,
        help="finish the front of a source that will not return",
        description="Finish the front of a source that will not promise anything again, so that nothing waits for it.",
    )
    finish.add_argument("job", metavar="JOB")
    finish.add_argument("front", metavar="FRONT")
    finish.set_defaults(run=finish_front)

    forget = commands.add_parser(
        "forget-producer",
        parents=options,
        help="forget a producer that will not return",
        description="Forget a producer that will not return: its staged epochs are dropped, its fronts are free.",
    )
    forget.add_argument("job", metavar="JOB")
    forget.add_argument("producer", metavar="PRODUCER")
    forget.set_defaults(run=forget_producer)


def abandon_substream(arguments: argparse.Namespace) -> int:
    """Runs `tracker abandon` and returns the exit status."""
    with connecting.client(arguments) as client:
        client.abandon(arguments.job, arguments.scope, arguments.name)
    return _done(arguments, "abandoned", arguments.name)


def finish_front(arguments: argparse.Namespace) -> int:
    """Runs `tracker finish-front` and returns the exit status."""
    with connecting.client(arguments) as client:
        client.finish_front(arguments.job, arguments.front)
    return _done(arguments, "finished", arguments.front)


def forget_producer(arguments: argparse.Namespace) -> int:
    """Runs `tracker forget-producer` and returns the exit status."""
    with connecting.client(arguments) as client:
        client.forget_producer(arguments.job, arguments.producer)
    return _done(arguments, "forgotten", arguments.producer)


def _done(arguments: argparse.Namespace, what: str, name: str) -> int:
    if arguments.json:
        print_json({what: name})
    else:
        print_line(f"{name} is {what}")
    return 0
