"""`tracker notify`: calls webhooks and writes markers when substreams have ended, by a file of rules."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tracker.cli.connection import Connection
from tracker.cli.declarations import command, ending_at, new_commands
from tracker.cli.options import LogLevel, Metrics, need_server_python, needs
from tracker.cli.output import print_line

commands = new_commands()


@command(commands, "notify", "tracker notify rules.toml --metrics 127.0.0.1:7662")
def notify(
    at: Connection,
    rules: Annotated[Path, typer.Argument(metavar="FILE", help="the rules, in TOML; read again when it changes")],
    check: Annotated[bool, typer.Option("--check", help="only check the file, without a tracker")] = False,
    metrics: Metrics = "",
    log_level: LogLevel = "info",
) -> int:
    """Call webhooks and write marker files when substreams have ended: each event at least once, in order.

    Each rule has a durable subscription at the tracker, `notify/` and the rule's name, so nothing is lost while this
    process is stopped. It prints `notifying by N rules` when they are at work, logs to stderr, and stops on SIGTERM or
    Ctrl-C. To give up a rule for good, remove it and run `tracker unsubscribe JOB notify/RULE`.
    """
    need_server_python("notify")
    with needs("notify", "notify"):
        from tracker.notify.app import notify as run_notify
        from tracker.notify.rules import read_rules
        from tracker.server.logs import log_to_stderr
        from tracker.web.listening import CannotListenError
    with ending_at(CannotListenError):
        if check:
            print_line(f"{rules} has {len(read_rules(rules))} rules, and they can be used")
            return 0
        log_to_stderr(log_level)
        with at.single_client() as client:
            asyncio.run(run_notify(rules, client, metrics))
    return 0
