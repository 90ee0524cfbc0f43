"""The command `tracker`: its subcommands, and their exit statuses.

It must never import the server, its journal or its core before a subcommand needs them: where only the client is
installed, they are missing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from tracker.cli import connecting, drains, events, explain, info, jobs, load, relay, repairs, serve, subscriptions
from tracker.cli.output import print_line
from tracker.client import TrackerError, TrackerUnavailable

_REFUSED = 1
_UNREACHABLE = 3
_INTERRUPTED = 130

_EPILOG = """\
exit status: 0 done; 1 the tracker refused; 2 the command line is wrong; 3 no tracker could be reached

examples:
  tracker serve                                a tracker on 127.0.0.1:7654 that keeps everything in ./tracker.db
  tracker watch flights                        what has ended, as it ends
  tracker substreams flights --stalled         what does not end, and where its elements are
  tracker explain flights JFK 2013-01-01       why one of them does not
  tracker drain flights d1 --wait              bring deployment d1 of the job to its end
  TRACKER_SERVER=tracker:7654 tracker jobs     ask another tracker
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: the command line without the program's name; None: this process's own.

    Returns:
        The exit status: 0 for success; 1 if the tracker refused; 3 if no tracker could be reached; 130 after Ctrl-C.

    Raises:
        SystemExit: with status 2, if the command line is wrong.
    """
    parsed = parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except TrackerError as refused:
        print_line(f"tracker: {refused}", error=True)
        return _REFUSED
    except TrackerUnavailable as unavailable:
        print_line(f"tracker: {unavailable}", error=True)
        return _UNREACHABLE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    whole = argparse.ArgumentParser(
        prog="tracker",
        description="Knows exactly when a substream of a streaming job has ended.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[connecting.options(first=True)],
    )
    whole.add_argument("--version", action="version", version=f"tracker {version('substream-tracker')}")
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    serving = commands.add_parser("serve", help="run a tracker")
    serve.add_arguments(serving)
    serving.set_defaults(run=serve.run)
    for commands_of in (jobs, explain, events, subscriptions, info, drains, repairs, relay, load):
        commands_of.add_commands(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
