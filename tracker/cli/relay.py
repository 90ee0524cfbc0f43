"""`tracker relay`: runs a node's relay until a signal stops it."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tracker.cli.connecting import DEFAULT_SERVER, SERVER_VARIABLE
from tracker.client.relay import VARIABLE, sockets


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the commands of this module."""
    relay = commands.add_parser(
        "relay",
        help="run a node's relay, which combines the reports of its workers",
        description="Run a relay: clients on this node send their reports to it, and it combines them into one. It "
        "prints `listening on ADDRESS` when it is ready, logs to stderr, and stops gracefully on SIGTERM or Ctrl-C. "
        f"Clients find a relay that listens at the default address; for another one, set {VARIABLE}=ADDRESS for "
        "them. Exit status: 0 stopped, 1 it could not start, 2 wrong usage.",
    )
    relay.add_argument(
        "--server",
        metavar="HOST:PORT",
        default=argparse.SUPPRESS,
        help="the tracker's address, exactly as its clients use it: the relay rejects reports for another tracker "
        f"(default: ${SERVER_VARIABLE}, or {DEFAULT_SERVER})",
    )
    relay.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="unix:PATH, or HOST:PORT (port 0 picks a free one); default: a socket in "
        "$XDG_RUNTIME_DIR/substream-tracker, or without that variable in /run/substream-tracker",
    )
    relay.add_argument(
        "--socket-mode",
        metavar="OCTAL",
        type=lambda text: int(text, 8),
        default=0o660,
        help="the permissions of the socket file (default: 660, its owner and group)",
    )
    relay.add_argument(
        "--max-delay",
        metavar="MS",
        type=float,
        default=5.0,
        help="the longest time a report waits for others while one is under way (default: 5)",
    )
    relay.add_argument(
        "--max-pending",
        metavar="MIB",
        type=float,
        default=256.0,
        help="the most memory for reports that the tracker has not answered; further ones are refused (default: 256)",
    )
    relay.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], default="info", help="what to log (default: info)"
    )
    relay.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs `tracker relay` and returns the exit status."""
    try:
        # Imported here, since the other commands do not need these modules, and their requirements may be missing.
        from tracker.relay.app import Options, relay
        from tracker.relay.listening import CannotListenError
        from tracker.server.logs import log_to_stderr
    except ModuleNotFoundError as missing:
        print(f"tracker relay: needs {missing.name}: pip install 'substream-tracker[server]'", file=sys.stderr)
        return 2
    log_to_stderr(arguments.log_level)
    try:
        options = Options(
            server=arguments.server,
            listen=arguments.listen or f"unix:{next(sockets(arguments.server))}",
            socket_mode=arguments.socket_mode,
            max_delay=arguments.max_delay / 1000,
            max_pending_bytes=round(arguments.max_pending * (1 << 20)),
        )
        asyncio.run(relay(options))
    except ValueError as error:
        print(f"tracker relay: {error}", file=sys.stderr)
        return 2
    except CannotListenError as error:
        print(f"tracker relay: {error}", file=sys.stderr)
        return 1
    return 0
