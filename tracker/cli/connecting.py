"""The options of all commands that call a tracker: which tracker, and how long to try."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from tracker.cli.configuration import Context, complete_contexts, read
from tracker.cli.declaring import CHECK_ONLY, WrongUsageError, given, is_set, shared

if TYPE_CHECKING:
    from tracker.client import TrackerClient
    from tracker.sharded import ShardedClient

SERVER_VARIABLE: Final = "TRACKER_SERVER"
DEFAULT_SERVER: Final = "127.0.0.1:7654"
_PANEL: Final = "The tracker"
_PATIENCE_S: Final = 1.0  # for a person who has pressed a key


@dataclass(frozen=True)
class Connection:
    """Which tracker a command calls.

    Args:
        server: its address, or those of several trackers, as `tracker.client.servers.names` takes them.
        sharded: the ordering of the jobs, if all of these servers share each job.
        retry_for: seconds for which a call is repeated if no tracker can be reached.
    """

    server: str
    sharded: Literal["none", "scope", "global"] | None
    retry_for: float

    def client(self, timeout: float = 10.0) -> TrackerClient | ShardedClient:
        """Returns a client of this tracker.

        Args:
            timeout: seconds after which a call is given up.
        """
        # The client is loaded when a command calls, so help is quick.
        from tracker.client import TrackerClient

        try:
            if self.sharded:
                from tracker.sharded import ShardedClient

                return ShardedClient(self.server, self.sharded, retry_for=self.retry_for, timeout=timeout)
            return TrackerClient(self.server, retry_for=self.retry_for, timeout=timeout)
        except ValueError as wrong:
            raise WrongUsageError(f"--server: {wrong}") from wrong

    def single_client(self) -> TrackerClient:
        """Returns a client for a command that does not work with sharded jobs."""
        from tracker.client import TrackerClient

        client = self.client()
        if isinstance(client, TrackerClient):
            return client
        raise WrongUsageError("this command reads one server of a sharded job: leave out --sharded")


@shared(Connection)
def _connection(
    context: typer.Context,
    server: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,…",
            envvar=SERVER_VARIABLE,
            rich_help_panel=_PANEL,
            help="the tracker's address, or those of several trackers that share the jobs",
        ),
    ] = DEFAULT_SERVER,
    sharded: Annotated[
        Literal["none", "scope", "global"] | None,
        typer.Option(
            metavar="ORDERING",
            envvar="TRACKER_SHARDED",
            rich_help_panel=_PANEL,
            help="each job is shared by all of these servers, and has this ordering: none, scope or global",
        ),
    ] = None,
    retry_for: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            envvar="TRACKER_RETRY_FOR",
            rich_help_panel=_PANEL,
            help="how long to try to reach the tracker",
        ),
    ] = 5.0,
    named: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="NAME",
            envvar="TRACKER_CONTEXT",
            rich_help_panel=_PANEL,
            autocompletion=complete_contexts,
            help="a named server of `tracker context list`; what it has counts where no option is given; '': none",
        ),
    ] = None,
) -> Connection:
    named = given(context, "named", named)
    chosen = _chosen(context, named)
    server = option(context, "server", server, chosen)
    return Connection(server, option(context, "sharded", sharded, chosen), given(context, "retry_for", retry_for))


def _chosen(context: typer.Context, named: str | None) -> Context:
    """Returns the context that counts: the one asked for, or the current one unless a server is given."""
    if named == "" or context.obj is CHECK_ONLY or context.parent is None:  # what stands before a command calls nothing
        return Context()
    if named is None and is_set(context, "server"):
        return Context()
    configuration = read()
    chosen = configuration.current if named is None else named
    context_of_that_name = configuration.get(chosen) if chosen else Context()
    for variable, file in context_of_that_name.credentials().items():
        os.environ.setdefault(variable, file)  # whence a client takes what no option gives
    return context_of_that_name


def completing_client(context: typer.Context) -> TrackerClient | ShardedClient:
    """Returns a client for a shell that completes: it uses what the command line has so far, and gives up at once."""
    known = {**context.find_root().params, **{n: v for n, v in context.params.items() if is_set(context, n)}}
    chosen = _chosen(context, known.get("named"))
    server = known.get("server") if is_set(context, "server") else chosen.server
    sharded = cast('Literal["none", "scope", "global"] | None', chosen.sharded)
    return Connection(server or DEFAULT_SERVER, sharded, 0).client(timeout=_PATIENCE_S)


def option(context: typer.Context, name: str, value: Any, chosen: Context) -> Any:
    """Returns the value of an option: as it is given, or as the chosen context has it, or the default."""
    kept = getattr(chosen, name)
    return kept if kept and not is_set(context, name) else given(context, name, value)
