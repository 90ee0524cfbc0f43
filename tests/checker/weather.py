"""Settings of the checker in trackers that run: their clock, and how many requests to an object store come late.

A tracker that was started by `launcher` reads both from a file, which the checker writes.
"""

from __future__ import annotations

import mmap
import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tracker.server.owning import Readiness
from tracker.store import NoAnswerError
from tracker.store.directory import DirectoryStore

_FORM: Final = struct.Struct("qd")  # the clock's offset in ns; the share of requests that come late
_LATEST_S: Final = 2.0
RECOVERING: Final = "the checker: it recovers now"  # in the log


class Weather:
    """The settings of one place.

    Args:
        file: where they are.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._mapped: mmap.mmap | None = None

    def set(self, clock: float = 0.0, late: float = 0.0) -> None:
        """Change the settings.

        Args:
            clock: how far the tracker's clock is from the machine's, in seconds.
            late: the share of requests to an object store that get no answer, and take effect later.
        """
        with self._file.open("r+b" if self._file.exists() else "w+b") as written:
            written.write(_FORM.pack(int(clock * 1e9), late))

    def now(self) -> int:
        """Return the tracker's clock, in ns since the Unix epoch."""
        return time.time_ns() + self._read()[0]

    @property
    def late(self) -> float:
        """The share of requests that come late."""
        return self._read()[1]

    def _read(self) -> tuple[int, float]:
        if self._mapped is None:
            with self._file.open("rb") as read:
                self._mapped = mmap.mmap(read.fileno(), _FORM.size, access=mmap.ACCESS_READ)
        clock, late = _FORM.unpack_from(self._mapped)
        return clock, late

    def reach_the_store(self) -> None:
        """Let writes of this process to a directory of objects come late."""
        for each in ("create", "put"):
            setattr(DirectoryStore, each, self._late(getattr(DirectoryStore, each)))

    def _late(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def late(*request: Any) -> Any:
            if random.random() >= self.late:
                return write(*request)
            threading.Thread(target=_later, args=[lambda: write(*request)], daemon=True).start()
            raise NoAnswerError("the checker lets this request come late")

        return late


def tell_of_recoveries() -> None:
    """Note in the log of this process when it has got the journal."""
    recovering: Any = Readiness.recovering

    def told(readiness: Readiness) -> None:
        print(RECOVERING, file=sys.stderr, flush=True)
        recovering(readiness)

    Readiness.recovering = told  # type: ignore[assignment, method-assign]


def _later(request: Callable[[], None]) -> None:
    time.sleep(random.uniform(0, _LATEST_S))
    request()
