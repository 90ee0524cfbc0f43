"""`tracker serve`: runs a tracker until a signal stops it."""

from __future__ import annotations

import argparse
import asyncio
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the description and the options of `tracker serve`."""
    parser.description = (
        "Run a tracker. It prints `listening on HOST:PORT` when it is ready, logs to stderr, and stops gracefully on "
        "SIGTERM or Ctrl-C. Exit status: 0 stopped, 1 it could not start or continue, 2 wrong usage."
    )
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:7654", help="where to listen; port 0 picks a free one"
    )
    parser.add_argument(
        "--journal",
        metavar="KIND",
        default="sqlite:tracker.db",
        help="`sqlite:PATH` keeps the state in a file, `memory` loses it at a restart",
    )
    parser.add_argument(
        "--retention",
        metavar="HOURS",
        type=float,
        default=24.0,
        help="how long ended substreams and events are kept, for jobs that define no retention",
    )
    parser.add_argument(
        "--snapshot-every",
        metavar="MIB",
        type=int,
        default=256,
        help="the least amount to journal between two snapshots: less makes restarts quicker",
    )
    parser.add_argument(
        "--limit",
        metavar="NAME=NUMBER",
        action="append",
        default=[],
        help="change a limit; may be repeated. `tracker info` lists the names",
    )
    parser.add_argument(
        "--accept-loss",
        action="store_true",
        help="start although acknowledged records of the journal are lost; every job's log gets a new id. Use it once",
    )
    parser.add_argument(
        "--set-aside",
        metavar="RECORD",
        type=int,
        action="append",
        default=[],
        help="leave a journal record out from now on, because starts end at it; may be repeated",
    )
    parser.add_argument(
        "--reflection",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="describe services and messages to tools such as grpcurl",
    )
    parser.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], default="info", help="what to log"
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs `tracker serve` and returns the exit status."""
    if sys.version_info < (3, 11):
        running = sys.version.partition(" ")[0]
        print(f"tracker serve: needs Python 3.11 or newer, and this is {running}; clients do not", file=sys.stderr)
        return 2
    try:
        # Imported here, since the other commands do not need these modules, and their requirements may be missing.
        from tracker.journal import JournalError
        from tracker.server.app import CannotListenError, Options, serve
        from tracker.server.limits import parse_limits
        from tracker.server.logs import log_to_stderr
    except ModuleNotFoundError as missing:
        print(f"tracker serve: needs {missing.name}: pip install 'substream-tracker[server]'", file=sys.stderr)
        return 2
    log_to_stderr(arguments.log_level)
    try:
        options = Options(
            listen=arguments.listen,
            journal=arguments.journal,
            retention_s=round(arguments.retention * 3600),
            snapshot_bytes=arguments.snapshot_every << 20,
            limits=parse_limits(arguments.limit),
            reflection=arguments.reflection,
            accept_loss=arguments.accept_loss,
            set_aside=frozenset(arguments.set_aside),
        )
        asyncio.run(serve(options))
    except ValueError as error:
        print(f"tracker serve: {error}", file=sys.stderr)
        return 2
    except (JournalError, CannotListenError) as error:
        print(f"tracker serve: {error}", file=sys.stderr)
        return 1
    return 0
