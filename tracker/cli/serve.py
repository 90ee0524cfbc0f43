"""`tracker serve` and `dev`: run a tracker until a signal stops it."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from tracker.cli.declarations import command, ending_at, new_commands
from tracker.cli.options import (
    ClientAuthorities,
    Insecure,
    LogLevel,
    Metrics,
    ServerCert,
    ServerKey,
    Tokens,
    need_server_python,
    needs,
)
from tracker.cli.output import print_line

commands = new_commands()

_Journal = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="`sqlite:PATH` keeps the state in a file, `redis://HOST` in Redis, `s3://BUCKET/PREFIX` in an object "
        "store, `memory` loses it at a restart",
    ),
]
_Retention = Annotated[
    float,
    typer.Option(
        metavar="HOURS", help="how long ended substreams and events are kept, for jobs that define no retention"
    ),
]
_SnapshotEvery = Annotated[
    int,
    typer.Option(metavar="MIB", help="the least amount to journal between two snapshots: less makes restarts quicker"),
]
_Limits = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=NUMBER", help="change a limit; may be repeated. `tracker info` lists the names"),
]
_AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="start although acknowledged records of the journal are lost; every job's log gets a new id. Use it once",
    ),
]
_SetAside = Annotated[
    list[int] | None,
    typer.Option(
        metavar="RECORD",
        help="leave a journal record out from now on, because starts end at it; may be repeated",
    ),
]
_Audit = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="append a line of JSON for each command of an operator, with who and what came of it; `-`: stderr",
    ),
]
_Reflection = Annotated[
    bool, typer.Option("--reflection", help="describe services and messages to tools such as grpcurl, to anybody")
]
_Standby = Annotated[
    bool, typer.Option("--standby", help="wait while another tracker uses the journal, and take over when it ends")
]
_Compiled = Annotated[
    bool,
    typer.Option(
        "--compiled", help="fold entries three times as fast, for a start that takes a second more (extra `fast`)"
    ),
]


@command(
    commands,
    "serve",
    "tracker serve --listen 0.0.0.0:7654 --tls-cert tracker.pem --tls-key tracker.key --tokens tokens.toml",
)
def serve(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="where to listen; port 0 picks a free one")
    ] = "127.0.0.1:7654",
    journal: _Journal = "sqlite:tracker.db",
    retention: _Retention = 24.0,
    snapshot_every: _SnapshotEvery = 256,
    limit: _Limits = None,
    accept_loss: _AcceptLoss = False,
    set_aside: _SetAside = None,
    tls_cert: ServerCert = "",
    tls_key: ServerKey = "",
    tls_client_ca: ClientAuthorities = "",
    tokens: Tokens = "",
    audit: _Audit = "",
    insecure: Insecure = False,
    reflection: _Reflection = False,
    metrics: Metrics = "",
    standby: _Standby = False,
    compiled: _Compiled = False,
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
        from tracker.security.guard import Security
        from tracker.server.app import CannotListenError, Options
        from tracker.server.app import serve as serve_tracker
        from tracker.server.limits import parse_limits
        from tracker.server.logs import log_to_stderr
    if compiled:
        with needs("serve --compiled", "fast"):
            from tracker.core.compiled import use
        use()
    log_to_stderr(log_level)
    with ending_at(JournalError, CannotListenError):
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
    if moved and standby:  # a fresh start of the same command stands by, with nothing left of what this one served
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return 0


@command(commands, "dev", "tracker dev")
def dev(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="where the tracker listens; a free port, if another program uses the default"
        ),
    ] = "127.0.0.1:7654",
    metrics: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="where the status page and the metrics are; likewise")
    ] = "127.0.0.1:7660",
) -> int:
    """Run a tracker with its status page and an example job, until Ctrl-C.

    Nothing is kept: its journal is in memory. It prints the page's address, and what to look at.
    """
    need_server_python("dev")
    with needs("dev", "server"):
        # Imported here, since the other commands do not need these modules, and their requirements may be missing.
        from tracker.dev.run import dev as run_dev
        from tracker.web.listening import CannotListenError
    with ending_at(CannotListenError):
        run_dev(listen, metrics, print_line)
    return 0
