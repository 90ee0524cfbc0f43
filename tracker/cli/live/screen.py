"""`tracker top` on a terminal: looks in the background, draws them in one place, and acts on keys."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Final

from rich.console import Group
from rich.live import Live

from tracker.cli.live.choosing import Choice
from tracker.cli.live.drawing import draw
from tracker.cli.live.keys import raw_keys, read_keys
from tracker.cli.live.observing import Look, Observer
from tracker.cli.terminal import console
from tracker.client import TrackerError, TrackerUnavailable

_SHARE: Final = 10  # a tracker is looked at for one part in so many of the time at most
_SOON_S: Final = 0.3  # seconds until the next look if another job is chosen
_REDRAW_S: Final = 0.5  # seconds after which the ages are drawn again, and a new size of the terminal is noticed
_TERMINATED: Final = 128 + signal.SIGTERM


def pause_after(took: float, interval: float, soon: bool = False) -> float:
    """Return the seconds to wait before the next look, so that a tracker with much to show is not asked all the time.

    Args:
        took: the seconds that the last look took.
        interval: the seconds between two looks that the user wants.
        soon: the user has chosen another job.

    >>> pause_after(0.01, 2), pause_after(1, 2), pause_after(1, 2, soon=True)
    (2, 9, 1)
    """
    return max(_SOON_S, took) if soon else max(interval, took * (_SHARE - 1))


class _Looking(threading.Thread):
    """Looks again and again, beside the loop that draws and reads keys.

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
        observer: looks at the tracker.
        choice: the order of the jobs and the chosen one; keys change it.
        server: the server's address, as the user gave it.
        first: a look to begin with.
        interval: the seconds between two looks.
    """
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
