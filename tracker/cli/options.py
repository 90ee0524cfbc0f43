"""Options of commands and their values, and the extras and consent that a command needs before it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Annotated, Literal

import typer

from tracker.cli.completion import complete_jobs
from tracker.cli.declarations import WrongUsageError, shared
from tracker.cli.output import print_line
from tracker.python310 import StrEnum

Job = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_jobs, help="the job's name")]
Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="the substream's scope; may be empty: ''")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="the substream's name")]


LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="what to log")]
Metrics = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        show_default=False,
        help="where to serve /metrics for Prometheus, /healthz and /readyz by HTTP; port 0 picks a free one, and a "
        "line, `metrics on http://HOST:PORT`, tells which. Without it they are not served",
    ),
]
#: How an address that others call is protected: the arguments of `tracker.security.guard.Security`.
ServerCert = Annotated[
    str, typer.Option(metavar="FILE", show_default=False, help="serve by TLS with this certificate (PEM)")
]
ServerKey = Annotated[
    str,
    typer.Option(metavar="FILE", show_default=False, help="the certificate's key (PEM), without a password"),
]
ClientAuthorities = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="ask every client for a certificate of these authorities (PEM); without tokens, each may do everything",
    ),
]
Tokens = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="the clients, by the hashes of their tokens or by their certificates: only they may call. "
        "`tracker token new` prints entries",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="listen beyond this machine although TLS or the clients are missing")
]


class Sort(StrEnum):
    """An order of the jobs."""

    NAME = "name"
    OPEN = "open"
    IN_FLIGHT = "in-flight"
    EVENTS = "events"
    EPOCHS = "epochs"
    LATE = "late"
    SILENT = "silent"


def micros(moment: datetime | str) -> int:
    """Return a moment, or its text in ISO 8601, as microseconds since 1970; it is in UTC if it names no zone."""
    if isinstance(moment, str):  # Python 3.10 reads no Z
        moment = datetime.fromisoformat(moment.removesuffix("Z") + "+00:00" * moment.endswith("Z"))
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return (aware - datetime.fromtimestamp(0, timezone.utc)) // timedelta(microseconds=1)


@contextmanager
def needs(command: str, extra: str) -> Iterator[None]:
    """Import in the body what only this command needs: whoever lacks it gets a message with what to install.

    Args:
        extra: the extra of the package that has it.

    Raises:
        WrongUsageError: a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        raise WrongUsageError(
            f"`tracker {command}` needs {missing.name}: pip install 'substream-tracker[{extra}]'"
        ) from missing


def need_server_python(command: str) -> None:
    """Refuse a command that runs a server in this process on a Python that is too old for it.

    Raises:
        WrongUsageError: this Python is older than 3.11.
    """
    if sys.version_info < (3, 11):
        running = sys.version.partition(" ")[0]
        raise WrongUsageError(f"`tracker {command}` needs Python 3.11 or newer, and this is {running}; clients do not")


@dataclass(frozen=True)
class Consent:
    """The consent to a command that cannot be undone.

    Attributes:
        given: whether ``--yes`` was given.
    """

    given: bool

    @contextmanager
    def to(self, action: str, dropped: Sequence[str]) -> Iterator[None]:
        """Ask before the body is carried out, if a terminal can answer and ``--yes`` was not given.

        Stderr shows the things that are dropped: before the question, or once they are dropped where nobody is asked.

        Args:
            action: as a question without its mark, such as ``abandon 'monday'``.
            dropped: a line for each thing that is lost.

        Raises:
            WrongUsageError: the answer is no.
        """
        asks = not self.given and sys.stdin.isatty() and sys.stderr.isatty()
        if asks:
            _show(dropped)
            print_line(f"{action}? This cannot be undone. [y/N] ", error=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                raise WrongUsageError("nothing was done")
        yield
        if not asks:
            _show(dropped)


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        print_line(line, error=True)


@shared(Consent)
def _consent(
    context: typer.Context,  # noqa: ARG001 - of every shared option
    yes: Annotated[
        bool, typer.Option("--yes", "-y", allow_from_autoenv=False, help="do not ask on a terminal")
    ] = False,
) -> Consent:
    return Consent(yes)
