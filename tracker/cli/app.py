"""All commands: where each is, in which order help lists them, and what stands before them.

A command's module is loaded when the command is used, so `tracker --help` and a completion load none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from typing import Annotated, Any, Final

import typer
import typer.main

import tracker
from tracker.cli.completion import answer
from tracker.cli.connection import Connection
from tracker.cli.declarations import (
    CHECK_ONLY,
    CommandLineError,
    Group,
    WrongUsageError,
    describe,
    new_commands,
    with_shared_options,
)
from tracker.cli.output import Form

#: The prefix of the environment variables: `TRACKER_SERVE_LISTEN` stands for `tracker serve --listen`.
PREFIX: Final = "TRACKER"
#: The sections of the help, and of each command its module and a summary.
SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Look": {
        "top": ("top", "show all jobs live: what is open, how fast it moves, what is silent"),
        "jobs": ("jobs", "list the jobs"),
        "job": ("jobs", "show a job's state"),
        "substreams": ("jobs", "list open substreams, and what they wait for"),
        "explain": ("jobs", "show why a substream has not ended"),
        "watch": ("events", "show a job's events as they happen"),
        "events": ("events", "list a job's events"),
        "wait": ("events", "wait until a substream has ended, or all up to a time"),
        "subscriptions": ("jobs", "list a job's durable readers"),
        "ledger": ("ledger", "add up what became of every row, from receipts"),
        "replay": ("replay", "show which promise a history would have kept"),
        "info": ("jobs", "show which server answers, and its limits"),
    },
    "Operate": {
        "drain": ("operations", "ask a deployment to finish what it has begun and to stop"),
        "cancel-drain": ("operations", "cancel a drain"),
        "abandon": ("operations", "end a substream, whatever is in flight"),
        "finish-front": ("operations", "finish the front of a source that will not return"),
        "forget-producer": ("operations", "forget a producer that will not return"),
        "unsubscribe": ("jobs", "remove a subscription, expired or not"),
        "leader": ("operations", "hand a tracker to its standby"),
        "backup": ("backups", "make a backup of a whole tracker, or check one"),
        "restore": ("backups", "make a journal continue with a backup"),
        "import": ("backups", "move a tracker that ran in a driver to a service"),
        "delete-job": ("jobs", "delete a job with all its events"),
    },
    "This machine": {
        "completion": ("completion", "print what a shell needs to complete commands, options and jobs"),
        "context": ("contexts", "name servers, and choose one of them"),
        "token": ("tokens", "make a token for a client, and its entry for the server"),
    },
    "Run": {
        "dev": ("serve", "run a tracker with its page and an example job, to look around"),
        "serve": ("serve", "run a tracker"),
        "notify": ("serve", "call webhooks and write markers when substreams have ended"),
        "relay": ("serve", "run a node's relay, which combines the reports of its workers"),
        "load": ("load", "drive a tracker as many producers would, and check what it announces"),
    },
}
#: All commands, and the module of each.
COMMANDS: Final = {name: module for section in SECTIONS.values() for name, (module, _) in section.items()}
_EPILOG: Final = """
Exit status: 0 done; 1 the tracker refused; 2 the command line is wrong; 3 no tracker could be reached

Examples:
  tracker dev                                  a look around: a tracker, its page, and a job with stuck substreams
  tracker serve                                a tracker on 127.0.0.1:7654 that keeps everything in ./tracker.db
  tracker top                                  all jobs, live: what is open, and what it waits for
  tracker watch flights                        what has ended, as it ends
  tracker substreams flights --stalled         what does not end, and where its elements are
  tracker explain flights JFK 2013-01-01       why one of them does not
  tracker drain flights d1 --wait              bring deployment d1 of the job to its end
  TRACKER_SERVER=tracker:7654 tracker jobs     ask another tracker
"""


class _Commands(Group):
    """The command `tracker`: it loads a command's module when the command is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - Typer's signature
        """Return the commands' names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command, or None."""
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            module = import_module(f"tracker.cli.{COMMANDS[cmd_name]}")
            self.commands.update(typer.main.get_group(module.commands).commands)
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a command line names. A wrong name is compared with all names for a suggestion."""
        if args and args[0] not in COMMANDS:
            for name in COMMANDS:
                self.commands.setdefault(name, None)  # type: ignore[arg-type]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the commands by their sections."""
        for section, rows in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, summary) for name, (_, summary) in rows.items()])


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tracker {tracker.__version__}")
        raise typer.Exit


_root = new_commands()


@_root.callback(
    cls=_Commands,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"auto_envvar_prefix": PREFIX, "max_content_width": 100, "help_option_names": ["--help", "-h"]},
)
@with_shared_options
def _tracker(
    context: typer.Context,
    at: Connection,  # noqa: ARG001 - the commands take what stands before them
    form: Form,  # noqa: ARG001
    show_version: Annotated[  # noqa: ARG001 - its callback has shown it
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, allow_from_autoenv=False, help="show the version"
        ),
    ] = False,
) -> None:
    """Knows exactly when a substream of a streaming job has ended.

    The options of the tracker and of the answer may stand before the command or after it.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def root() -> Any:
    """Return the whole command line, as Typer's command."""
    return typer.main.get_command(_root)


def run(arguments: Sequence[str] | None) -> int:
    """Run one command line.

    Args:
        arguments: the command line without the program's name; None: this process's own.

    Returns:
        The exit status of the command.
    """
    whole = root()
    if (answered := answer(whole)) is not None:
        return answered
    try:
        # Typer's own entry would print errors in another form, and take a closed pipe for a failure.
        with whole.make_context("tracker", [*(sys.argv[1:] if arguments is None else arguments)]) as context:
            status = whole.invoke(context)
    except typer.Exit as left:
        return left.exit_code
    return status if isinstance(status, int) else 0


def refusal_of(arguments: Sequence[str]) -> str:
    """Return why a command line would not be taken, without running it; an empty text if it would be.

    Args:
        arguments: the command line without the program's name.

    >>> refusal_of(["job"])
    "Missing argument 'JOB'; see `tracker job --help`"
    """
    try:
        with redirect_stdout(StringIO()), root().make_context("tracker", [*arguments], obj=CHECK_ONLY) as context:
            context.command.invoke(context)
    except CommandLineError as wrong:
        return describe(wrong)
    except WrongUsageError as wrong:
        return str(wrong)
    except typer.Exit:  # it only shows something, such as the help
        return ""
    return ""
