"""`tracker serve`, `dev`, `notify` and `relay`: programs that run until a signal stops them.

They log for people and programs alike: each entry is a line of ``key=value`` pairs on stderr.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tracker.cli.connection import DEFAULT_SERVER, SERVER_VARIABLE, Connection, TlsCa, TlsCert, TlsKey, TokenFile
from tracker.cli.declarations import command, ending_at, given, new_commands
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

_PLAIN = re.compile(r"[^\s\"=\\]+")
_OWN = frozenset(vars(logging.makeLogRecord({})))


class KeyValueFormatter(logging.Formatter):
    """Formatter of a record as ``ts=… level=… logger=… msg=…``, followed by its `extra`.

    >>> record = logging.makeLogRecord({"levelname": "INFO", "name": "tracker", "msg": "ready", "port": 7654})
    >>> KeyValueFormatter().format(record).partition(" ")[2]
    'level=info logger=tracker msg=ready port=7654'
    """

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs: dict[str, object] = {
            "ts": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        pairs.update((key, value) for key, value in vars(record).items() if key not in _OWN and key != "message")
        if record.exc_info:
            pairs["error"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_value(value)}" for key, value in pairs.items())


def _value(value: object) -> str:
    text = str(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    # Characters that a terminal would act on are escaped as in JSON: escape sequences, and marks that reverse the text.
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in quoted)


def log_to_stderr(level: str) -> None:
    """Send this process's logs to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


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
        from tracker.journal import JournalError
        from tracker.security.guard import Security
        from tracker.server.app import CannotListenError, Options
        from tracker.server.app import serve as serve_tracker
        from tracker.server.limits import parse_limits
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
        from tracker.dev import dev as run_dev
        from tracker.wire.addresses import CannotListenError
    with ending_at(CannotListenError):
        run_dev(listen, metrics, print_line)
    return 0


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
        from tracker.wire.addresses import CannotListenError
    with ending_at(CannotListenError):
        if check:
            print_line(f"{rules} has {len(read_rules(rules))} rules, and they can be used")
            return 0
        log_to_stderr(log_level)
        with at.single_client() as client:
            asyncio.run(run_notify(rules, client, metrics))
    return 0


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
        from tracker.client.credentials import TOKEN_VARIABLE, Credentials, CredentialsError
        from tracker.client.relay import sockets
        from tracker.relay.app import Options
        from tracker.relay.app import relay as run_relay
        from tracker.security.guard import Security
        from tracker.wire.addresses import CannotListenError
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
