"""`tracker relay`: runs a node's relay until a signal stops it."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from tracker.cli.connecting import DEFAULT_SERVER, SERVER_VARIABLE
from tracker.cli.declaring import WrongUsageError, command, given, new_commands
from tracker.cli.options import LogLevel, needs
from tracker.cli.output import print_line

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
    tls_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="TRACKER_TLS_CA",
            help="call the tracker by TLS, and trust the authorities in this file (PEM); `system`: those of the system",
        ),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", envvar="TRACKER_TLS_CERT", help="the certificate that the relay shows to the tracker (PEM)"
        ),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", envvar="TRACKER_TLS_KEY", help="that certificate's key (PEM)")
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="TRACKER_TOKEN_FILE",
            help="the file with the relay's token, which needs the scope report; without it, the variable "
            "TRACKER_TOKEN may hold it",
        ),
    ] = None,
    listen_tls_cert: Annotated[
        str,
        typer.Option(metavar="FILE", show_default=False, help="serve a HOST:PORT by TLS with this certificate (PEM)"),
    ] = "",
    listen_tls_key: Annotated[
        str, typer.Option(metavar="FILE", show_default=False, help="that certificate's key (PEM)")
    ] = "",
    listen_tls_client_ca: Annotated[
        str,
        typer.Option(metavar="FILE", show_default=False, help="ask callers for a certificate of these authorities"),
    ] = "",
    listen_tokens: Annotated[
        str,
        typer.Option(metavar="FILE", show_default=False, help="who may call the relay, as `tracker serve --tokens`"),
    ] = "",
    insecure: Annotated[
        bool, typer.Option("--insecure", help="listen beyond this machine although TLS or the callers are missing")
    ] = False,
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
    metrics: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            show_default=False,
            help="where to serve /metrics for Prometheus, /healthz and /readyz by HTTP, such as 127.0.0.1:7661; port 0 "
            "picks a free one, and a second line, `metrics on http://HOST:PORT`, tells which. Without it they are not "
            "served",
        ),
    ] = "",
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
        from tracker.relay.listening import CannotListenError
        from tracker.security.settings import Security
        from tracker.server.logs import log_to_stderr
        from tracker.web.listening import CannotListenError as CannotListenForMetricsError
    log_to_stderr(log_level)
    ca, cert, key, token = (
        given(context, name, value)
        for name, value in (
            ("tls_ca", tls_ca),
            ("tls_cert", tls_cert),
            ("tls_key", tls_key),
            ("token_file", token_file),
        )
    )
    try:
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
    except (ValueError, CredentialsError) as error:
        raise WrongUsageError(str(error)) from error
    except (CannotListenError, CannotListenForMetricsError) as error:
        print_line(f"tracker: {error}", error=True)
        return 1
    return 0
