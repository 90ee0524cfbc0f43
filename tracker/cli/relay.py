"""`tracker relay`: runs a node's relay until a signal stops it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from tracker.cli.connection import DEFAULT_SERVER, SERVER_VARIABLE, TlsCa, TlsCert, TlsKey, TokenFile
from tracker.cli.declarations import command, ending_at, given, new_commands
from tracker.cli.options import ClientAuthorities, Insecure, LogLevel, Metrics, ServerCert, ServerKey, Tokens, needs

commands = new_commands()


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no octal number; an example is 660") from None


@command(commands, "relay", "tracker relay --server tracker:7654")
def relay(
    context: typer.Context,
    server: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            envvar=SERVER_VARIABLE,
            help="the tracker's address, exactly as its clients use it (HOST:PORT+HOST:PORT with a standby): the relay "
            "rejects reports for another tracker",
        ),
    ] = DEFAULT_SERVER,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="unix:PATH, or HOST:PORT (port 0 picks a free one); default: a socket in "
            "$XDG_RUNTIME_DIR/substream-tracker, or without that variable in /run/substream-tracker",
        ),
    ] = None,
    socket_mode: Annotated[
        int,
        typer.Option(
            metavar="OCTAL",
            parser=_mode,
            help="the permissions of the socket file; 660: its owner and group",
        ),
    ] = "660",  # type: ignore[assignment] # Typer parses the default, too
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    listen_tls_cert: ServerCert = "",
    listen_tls_key: ServerKey = "",
    listen_tls_client_ca: ClientAuthorities = "",
    listen_tokens: Tokens = "",
    insecure: Insecure = False,
    max_delay: Annotated[
        float,
        typer.Option(metavar="MS", help="the longest time a report waits for others while one is under way"),
    ] = 5.0,
    max_pending: Annotated[
        float,
        typer.Option(
            metavar="MIB",
            help="the most memory for reports that the tracker has not answered; further ones are refused",
        ),
    ] = 256.0,
    metrics: Metrics = "",
    log_level: LogLevel = "info",
) -> int:
    """Run a node's relay: clients on this node send their reports to it, and it combines them into one.

    It prints `listening on ADDRESS` when it is ready, logs to stderr, and stops gracefully on SIGTERM or Ctrl-C.
    Clients find a relay that listens at the default address; for another one, set TRACKER_RELAY=ADDRESS for them. Exit
    status: 0 stopped, 1 it could not start, 2 wrong usage.
    """
    server = given(context, "server", server)
    with needs("relay", "server"):
        # Imported here, since the other commands do not need these modules, and their requirements may be missing.
        from tracker.client.credentials import TOKEN_VARIABLE, Credentials, CredentialsError
        from tracker.client.relay import sockets
        from tracker.relay.app import Options
        from tracker.relay.app import relay as run_relay
        from tracker.security.guard import Security
        from tracker.server.logs import log_to_stderr
        from tracker.web.listening import CannotListenError
    log_to_stderr(log_level)
    own = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key, "token_file": token_file}
    ca, cert, key, token = (given(context, name, value) for name, value in own.items())
    with ending_at(CannotListenError, wrong=(ValueError, CredentialsError)):
        options = Options(
            server=server,
            listen=listen or f"unix:{next(sockets(server))}",
            socket_mode=socket_mode,
            max_delay=max_delay / 1000,
            max_pending_bytes=round(max_pending * (1 << 20)),
            credentials=Credentials(ca, cert, key, token, None if token else TOKEN_VARIABLE),
            security=Security(
                listen_tls_cert, listen_tls_key, listen_tls_client_ca, listen_tokens, insecure, "--listen-"
            ),
            metrics=metrics,
        )
        asyncio.run(run_relay(options))
    return 0
