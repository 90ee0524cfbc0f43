"""Time that passes only when a test lets it pass."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from typing import Final, Protocol

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_START: Final = datetime(2026, 1, 1, tzinfo=timezone.utc)
_MICROSECOND: Final = timedelta(microseconds=1)


class Timed(Protocol):
    """Owner of timers that run by a clock."""

    def tick(self) -> int | None:
        """Carry out the timers that are due.

        Returns:
            When the next one is due, in ns since the Unix epoch; None: never, as things stand.
        """


class ManualClock:
    """The time of a `LocalTracker`, which stands still until a test advances it.

    Several trackers may share a clock. Any thread may read it; one at a time advances it.

    Args:
        start: the first time. It needs a time zone.

    Raises:
        ValueError: `start` has no time zone.

    >>> from datetime import timedelta
    >>> clock = ManualClock()
    >>> clock.advance(timedelta(minutes=10))
    >>> clock.now().isoformat()
    '2026-01-01T00:10:00+00:00'
    """

    def __init__(self, start: datetime = _START) -> None:
        if start.tzinfo is None:
            raise ValueError(f"{start!r} has no time zone; write datetime(…, tzinfo=timezone.utc)")
        self._now = (start - _EPOCH) // _MICROSECOND * 1000
        self._timed: list[Timed] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ManualClock({self.now().isoformat()})"

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return _EPOCH + timedelta(microseconds=self._now // 1000)

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the Unix epoch."""
        return self._now

    def advance(self, by: timedelta) -> None:
        """Let time pass, and wait until all timers that come due in it have taken effect.

        Timers take effect one after the other, each at its own time, as in a tracker that runs all the while. The event
        of one that was due after ten minutes has that time, however far the clock is advanced.

        Args:
            by: how long; not negative.

        Raises:
            ValueError: `by` is negative.
        """
        if by < timedelta(0):
            raise ValueError(f"the clock cannot go back by {-by}: a tracker's time never does")
        with self._lock:
            target = self._now + by // _MICROSECOND * 1000
            due = self._tick()
            while due is not None and self._now < due <= target:
                self._now = due
                due = self._tick()
            self._now = target
            self._tick()

    def _tick(self) -> int | None:
        return min((due for due in [each.tick() for each in self._timed] if due is not None), default=None)

    def join(self, timed: Timed) -> None:
        """Add something whose timers run by this clock from now on."""
        with self._lock:
            self._timed.append(timed)

    def leave(self, timed: Timed) -> None:
        """Remove what `join` has added."""
        with self._lock:
            self._timed.remove(timed)
