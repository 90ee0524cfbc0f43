"""The options of all commands that call a tracker: which tracker, and how long to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tracker.cli.configuration import CREDENTIALS, Context, Ordering, complete_contexts, read
from tracker.cli.declarations import CHECK_ONLY, WrongUsageError, given, is_set, shared

if TYPE_CHECKING:
    from tracker.client import Credentials, TrackerClient
    from tracker.sharded import ShardedClient

SERVER_VARIABLE: Final = "TRACKER_SERVER"
DEFAULT_SERVER: Final = "127.0.0.1:7654"
_PANEL: Final = "The tracker"
_PATIENCE_S: Final = 1.0  # for a person who has pressed a key

TlsCa = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        envvar="TRACKER_TLS_CA",
        rich_help_panel=_PANEL,
        help="use TLS, and trust the authorities in this file (PEM); `system`: those of the system",
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", envvar="TRACKER_TLS_CERT", rich_help_panel=_PANEL, help="this client's certificate (PEM)"
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(metavar="FILE", envvar="TRACKER_TLS_KEY", rich_help_panel=_PANEL, help="its key (PEM)"),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        envvar="TRACKER_TOKEN_FILE",
        rich_help_panel=_PANEL,
        help="the file that holds the token; without it, the variable TRACKER_TOKEN may",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Connection(Context):
    """Tracker that a command calls.

    Args:
        retry_for: seconds for which a call is repeated if no tracker can be reached.
    """

    retry_for: float

    def client(self, timeout: float = 10.0) -> TrackerClient | ShardedClient:
        """Return a client of this tracker.

        Args:
            timeout: seconds after which a call is given up.
        """
        # The client is loaded when a command calls, so help is quick.
        from tracker.client import TrackerClient

        credentials = self.credentials()
        try:
            if self.sharded:
                from tracker.sharded import ShardedClient

                return ShardedClient(self.server, self.sharded, timeout, self.retry_for, credentials)
            return TrackerClient(self.server, timeout, self.retry_for, credentials)
        except ValueError as wrong:
            raise WrongUsageError(f"--server: {wrong}") from wrong

    def credentials(self) -> Credentials:
        """Return what the command shows to the tracker; a token is taken from the environment if no file has it."""
        from tracker.client.credentials import TOKEN_VARIABLE, Credentials

        variable = None if self.token_file else TOKEN_VARIABLE
        try:
            return Credentials(self.tls_ca, self.tls_cert, self.tls_key, self.token_file, variable)
        except ValueError as wrong:
            raise WrongUsageError(f"--tls-cert and --tls-key: {wrong}") from wrong

    def single_client(self) -> TrackerClient:
        """Return a client for a command that does not work with sharded jobs."""
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
        Ordering | None,
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
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
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
    files = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key, "token_file": token_file}
    return Connection(
        retry_for=given(context, "retry_for", retry_for),
        server=option(context, "server", server, chosen),
        sharded=option(context, "sharded", sharded, chosen),
        **{name: option(context, name, file, chosen) for name, file in files.items()},
    )


def _chosen(context: typer.Context, named: str | None) -> Context:
    """Return the context that counts: the one asked for, or the current one unless a server is given."""
    if named == "" or context.obj is CHECK_ONLY or context.parent is None:  # what stands before a command calls nothing
        return Context()
    if named is None and is_set(context, "server"):
        return Context()
    configuration = read()
    chosen = configuration.current if named is None else named
    return configuration.get(chosen) if chosen else Context()


def completing_client(context: typer.Context) -> TrackerClient | ShardedClient:
    """Return a client for a shell that completes: it uses what the command line has so far, and gives up at once."""
    known = {**context.find_root().params, **{n: v for n, v in context.params.items() if is_set(context, n)}}
    chosen = _chosen(context, known.get("named"))
    server = known.get("server") if is_set(context, "server") else chosen.server
    files = {name: known[name] if is_set(context, name) else getattr(chosen, name) for name in CREDENTIALS}
    server = server or DEFAULT_SERVER
    return Connection(retry_for=0, server=server, sharded=chosen.sharded, **files).client(timeout=_PATIENCE_S)


def option(context: typer.Context, name: str, value: Any, chosen: Context) -> Any:
    """Return the value of an option: as it is given, or as the chosen context has it, or the default."""
    kept = getattr(chosen, name)
    return kept if kept and not is_set(context, name) else given(context, name, value)
