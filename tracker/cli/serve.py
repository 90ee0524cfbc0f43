"""`tracker serve`: runs a tracker until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from tracker.cli.declaring import WrongUsageError, command, new_commands
from tracker.cli.options import LogLevel, need_server_python, needs
from tracker.cli.output import print_line

commands = new_commands()


@command(
    commands,
    "serve",
    "tracker serve --listen 0.0.0.0:7654 --tls-cert tracker.pem --tls-key tracker.key --tokens tokens.toml",
)
def serve(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="where to listen; port 0 picks a free one")
    ] = "127.0.0.1:7654",
    journal: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="`sqlite:PATH` keeps the state in a file, `redis://HOST` in Redis, `s3://BUCKET/PREFIX` in an object "
            "store, `memory` loses it at a restart",
        ),
    ] = "sqlite:tracker.db",
    retention: Annotated[
        float,
        typer.Option(
            metavar="HOURS",
            help="how long ended substreams and events are kept, for jobs that define no retention",
        ),
    ] = 24.0,
    snapshot_every: Annotated[
        int,
        typer.Option(
            metavar="MIB", help="the least amount to journal between two snapshots: less makes restarts quicker"
        ),
    ] = 256,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="change a limit; may be repeated. `tracker info` lists the names"),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="start although acknowledged records of the journal are lost; every job's log gets a new id. "
            "Use it once",
        ),
    ] = False,
    set_aside: Annotated[
        list[int] | None,
        typer.Option(
            metavar="RECORD",
            help="leave a journal record out from now on, because starts end at it; may be repeated",
        ),
    ] = None,
    tls_cert: Annotated[
        str, typer.Option(metavar="FILE", show_default=False, help="serve by TLS with this certificate (PEM)")
    ] = "",
    tls_key: Annotated[
        str, typer.Option(metavar="FILE", show_default=False, help="the certificate's key (PEM), without a password")
    ] = "",
    tls_client_ca: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="ask every client for a certificate of these authorities (PEM); without --tokens, each may do "
            "everything",
        ),
    ] = "",
    tokens: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="the clients, by the hashes of their tokens or by their certificates: only they may call. "
            "`tracker token new` prints entries",
        ),
    ] = "",
    audit: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="append a line of JSON for each command of an operator, with who and what came of it; `-`: stderr",
        ),
    ] = "",
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="listen beyond this machine although TLS or the clients are missing"),
    ] = False,
    reflection: Annotated[
        bool, typer.Option("--reflection", help="describe services and messages to tools such as grpcurl, to anybody")
    ] = False,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            show_default=False,
            help="where to serve the status page, /metrics for Prometheus, /healthz and /readyz by HTTP, such as "
            "127.0.0.1:7660; port 0 picks a free one, and a second line, `metrics on http://HOST:PORT`, tells which. "
            "Without it they are not served",
        ),
    ] = "",
    standby: Annotated[
        bool, typer.Option("--standby", help="wait while another tracker uses the journal, and take over when it ends")
    ] = False,
    page: Annotated[bool, typer.Option(help="serve the status page, too, where --metrics is")] = True,
    log_level: LogLevel = "info",
) -> int:
    """Run a tracker.

    Beyond this machine it needs TLS, and tokens or certificates of its clients: give --tls-cert, --tls-key and
    --tokens. Certificates and tokens are read again when their files change.

    It prints `listening on HOST:PORT` when it is ready, logs to stderr, and stops gracefully on SIGTERM or Ctrl-C.
    After `tracker leader move` it stands by if --standby is given, and else ends. Exit status: 0 stopped, 1 it could
    not start or continue, 2 wrong usage.
    """
    need_server_python("serve")
    with needs("serve", "server"):
        # Imported here, since the other commands do not need these modules, and their requirements may be missing.
        from tracker.journal import JournalError
        from tracker.security.settings import Security
        from tracker.server.app import CannotListenError, Options
        from tracker.server.app import serve as serve_tracker
        from tracker.server.limits import parse_limits
        from tracker.server.logs import log_to_stderr
    log_to_stderr(log_level)
    try:
        options = Options(
            listen=listen,
            journal=journal,
            retention_s=round(retention * 3600),
            snapshot_bytes=snapshot_every << 20,
            limits=parse_limits(limit or []),
            security=Security(tls_cert, tls_key, tls_client_ca, tokens, insecure),
            audit=audit,
            reflection=reflection,
            metrics=metrics,
            page=page,
            standby=standby,
            accept_loss=accept_loss,
            set_aside=frozenset(set_aside or []),
        )
        moved = asyncio.run(serve_tracker(options))
    except ValueError as error:
        raise WrongUsageError(str(error)) from error
    except (JournalError, CannotListenError) as error:
        print_line(f"tracker: {error}", error=True)
        return 1
    if moved and standby:
        _start_again()
    return 0


def _start_again() -> None:
    """Replace this process by a fresh start of the same command: it stands by, with nothing left of what it served."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
