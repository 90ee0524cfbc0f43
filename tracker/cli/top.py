"""`tracker top`: the jobs of a tracker, live: looks in the background, drawn in one place, and what keys do.

The client and rich are loaded when the command runs, so help is quick.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracker.cli.completion import complete_jobs
from tracker.cli.connection import Connection
from tracker.cli.declarations import command, new_commands
from tracker.cli.options import Sort
from tracker.cli.output import Form, console, is_terminal, print_json, print_line

if TYPE_CHECKING:
    from tracker.cli.looks import Choice, Look, Observer

commands = new_commands()
_SILENT_AFTER_S: Final = 900.0  # as in the alert TrackerSilentFront


@command(commands, "top", "tracker top flights --sort in-flight")
def top(
    at: Connection,
    form: Form,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB",
            autocompletion=complete_jobs,
            help="the job whose substreams are shown below the list (default: the first in the list)",
        ),
    ] = None,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, help="the time between two looks at the tracker")
    ] = 2.0,
    sort: Annotated[Sort, typer.Option(metavar="ORDER", help=f"the order of the jobs: {', '.join(Sort)}")] = Sort.OPEN,
    silent_after: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="how long a front may promise nothing before it is silent")
    ] = _SILENT_AFTER_S,
    once: Annotated[bool, typer.Option("--once", help="print it once, after two looks, and stop")] = False,
) -> int:
    """Show the jobs of a tracker, live: what is open, how fast events and epochs come, which fronts are silent.

    Below the list is what the oldest open substreams of one job wait for. Arrow keys choose the job, letters the order,
    and q quits. Without a terminal, and with --json, the answer is printed once: after two looks, since rates need two.
    """
    from tracker.cli.looks import Choice, Observer, draw

    choice = Choice(sort, job=job)
    with at.client() as client:
        if job is not None:
            client.job(job)  # raises if there is none of this name
        observer = Observer(client, timedelta(seconds=silent_after))
        look = observer.look(choice.chosen)
        if is_terminal() and sys.stdin.isatty() and not once and form is not Form.JSON:
            show(observer, choice, at.server, look, interval)
            return 0
        time.sleep(interval)
        look = observer.look(choice.chosen)
    if form is Form.JSON:
        print_json(replace(look, jobs=tuple(choice.ordered(look.jobs))), indent=2)
        return 0
    for line in draw(look, choice, at.server, console().width if is_terminal() else None):
        if is_terminal():
            console().print(line, soft_wrap=True)
        else:
            print_line(line.plain.rstrip())
    return 0


_SHARE: Final = 10  # a tracker is looked at for one part in so many of the time at most
_SOON_S: Final = 0.3  # seconds until the next look if another job is chosen
_REDRAW_S: Final = 0.5  # seconds after which the ages are drawn again, and a new size of the terminal is noticed
_TERMINATED: Final = 128 + signal.SIGTERM


def pause_after(took: float, interval: float, soon: bool = False) -> float:
    """Return the seconds to wait before the next look, so that a tracker with much to show is not asked all the time.

    Args:
        took: the seconds that the last look took.
        interval: the seconds between two looks that the user wants.

    >>> pause_after(0.01, 2), pause_after(1, 2), pause_after(1, 2, soon=True)
    (2, 9, 1)
    """
    return max(_SOON_S, took) if soon else max(interval, took * (_SHARE - 1))


class _Looking(threading.Thread):
    """Thread of repeated looks, beside the loop that draws and reads keys.

    Attributes:
        look: what was found last.
        trouble: why there is nothing newer; empty: there is no trouble.
        failed: what has ended the looks; None: nothing.
        news: a descriptor from which something can be read after each look.
    """

    def __init__(self, observer: Observer, choice: Choice, look: Look, interval: float) -> None:
        super().__init__(daemon=True)  # a call that gets no answer does not keep the process
        self._observer = observer
        self._choice = choice
        self._interval = interval
        self._sooner = threading.Event()
        self.look = look
        self.trouble = ""
        self.failed: Exception | None = None
        self.news, self._found = os.pipe()

    def look_soon(self) -> None:
        """Ask for the next look at once, or nearly so."""
        self._sooner.set()

    def run(self) -> None:
        """Look until the process ends."""
        from tracker.client import TrackerError, TrackerUnavailable

        away = ""
        while self.failed is None:
            if self._sooner.wait(pause_after(self.look.took, self._interval)):
                self._sooner.clear()
                time.sleep(pause_after(self.look.took, self._interval, soon=True))
            try:
                self.look = self._observer.look(self._choice.chosen)
                self.trouble = away = ""
            except (TrackerError, TrackerUnavailable) as refused:
                away = away or f"{datetime.now(timezone.utc):%H:%M:%S} UTC"
                self.trouble = f"no answer since {away}: {refused}"
            except Exception as failed:
                self.failed = failed
            os.write(self._found, b".")


def show(observer: Observer, choice: Choice, server: str, first: Look, interval: float) -> None:
    """Show looks until the user presses q.

    Args:
        choice: the order of the jobs and the chosen one; keys change it.
        server: the server's address, as the user gave it.
    """
    from rich.console import Group
    from rich.live import Live

    from tracker.cli.looks import draw

    screen = console()
    looking = _Looking(observer, choice, first, interval)
    with _terminable(), raw_keys() as keys, Live(console=screen, screen=True, auto_refresh=False) as live:
        looking.start()
        while True:
            width, height = screen.size
            lines = draw(looking.look, choice, server, width, height, looking.trouble)
            live.update(Group(*lines), refresh=True)
            ready, _, _ = select.select([keys, looking.news], [], [], _REDRAW_S)
            if looking.news in ready:
                os.read(looking.news, 1)
            if looking.failed is not None:
                raise looking.failed
            if keys in ready:
                try:
                    pressed = read_keys(keys)
                except EOFError:
                    return
                for key in pressed:
                    if key == "q":
                        return
                    if choice.press(key, looking.look.jobs):
                        looking.look_soon()


@contextmanager
def _terminable() -> Iterator[None]:
    """Leave in the usual way on SIGTERM, so that the terminal is as it was before."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_LONGEST: Final = 64  # bytes that are read together: one key, or some that are pressed fast
_NAMES: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}


@contextmanager
def raw_keys() -> Iterator[int]:
    """Give stdin's descriptor, from which keys can be read at once as long as the context is open.

    Ctrl-C still interrupts. Ctrl-Z does nothing, since it would leave the terminal as it is here.
    """
    import termios  # not every system has it
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin, termios.TCSADRAIN)
    changed = termios.tcgetattr(stdin)
    changed[6][termios.VSUSP] = b"\0"
    termios.tcsetattr(stdin, termios.TCSADRAIN, changed)
    try:
        yield stdin
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def read_keys(descriptor: int) -> list[str]:
    """Read what was pressed: letters, ``up``, ``down``, ``home``, ``end``; other keys are left out.

    Raises:
        EOFError: the terminal is gone.
    """
    try:
        data = os.read(descriptor, _LONGEST)
    except OSError:
        data = b""
    if not data:
        raise EOFError
    return keys_in(data)


def keys_in(data: bytes) -> list[str]:
    r"""Return the keys for which a terminal sends some bytes.

    >>> keys_in(b"o\x1b[Bq\x1b[15~\x1b[A")
    ['o', 'down', 'q', 'up']
    """
    keys = []
    while data:
        length = _length(data)
        key, data = data[:length], data[length:]
        if key in _NAMES:
            keys.append(_NAMES[key])
        elif length == 1 and key.isalpha():
            keys.append(key.decode())
    return keys


def _length(data: bytes) -> int:
    """Return how many bytes the first key has: sequences of escape end with a letter or a tilde."""
    if data[:1] != b"\x1b" or data[1:2] not in (b"[", b"O"):
        return 1
    for place, byte in enumerate(data[2:], 2):
        if 0x40 <= byte <= 0x7E:
            return place + 1
    return len(data)
