"""The line that shows how far the replay is: rewritten in a terminal, now and then a new one elsewhere."""

from __future__ import annotations

import sys
import threading
import time

_EVERY = 5.0  # seconds between lines where they cannot be rewritten


class Progress:
    """A printer of what happens, with the seconds since the beginning. Threads may call it."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._printed = 0.0
        self._line = ""
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    def say(self, what: str) -> None:
        """Print a line of its own."""
        with self._lock:
            self._erase()
            print(f"[{self.seconds:4.0f} s] {what}", flush=True)

    def show(self, how_far: str) -> None:
        """Show how far the replay is."""
        with self._lock:
            if sys.stdout.isatty():
                self._erase()
                self._line = f"[{self.seconds:4.0f} s] {how_far}"
                print(self._line, end="", flush=True)
            elif self.seconds - self._printed >= _EVERY:
                self._printed = self.seconds
                print(f"[{self.seconds:4.0f} s] {how_far}", flush=True)

    def _erase(self) -> None:
        if self._line:
            print("\r" + " " * len(self._line) + "\r", end="")
            self._line = ""
