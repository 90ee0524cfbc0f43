"""The tracker's time: it never goes back, and jumps of the machine's clock do not stop it.

Each command has the time at which the server accepted it, and all timers use this time. It follows the machine's clock,
with two differences. It never goes back: while the machine's clock is behind, even after a restart, it advances by
elapsed time until the clock has caught up. And it follows a jump ahead only once the jump has lasted a while, so a
clock that is wrong for a few seconds has no effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_JUMP_NS = 60 * 10**9  #: a clock that is further ahead than this has jumped, not drifted
_LASTS_NS = 60 * 10**9  #: the clock's new time counts once the jump has lasted so long


class Clock:
    """The time of commands, in nanoseconds since the Unix epoch.

    Args:
        last: the last time in the journal; the clock never returns an earlier one.
        wall: the machine's clock, in ns since the Unix epoch.
        elapsed: a monotonic clock, in ns.

    >>> wall, elapsed = iter([100, 200, 50]), iter([0, 100, 130])
    >>> clock = Clock(0, lambda: next(wall), lambda: next(elapsed))
    >>> clock.now(), clock.now()
    (200, 230)
    """

    def __init__(
        self,
        last: int,
        wall: Callable[[], int] = lambda: time.time_ns(),
        elapsed: Callable[[], int] = lambda: time.monotonic_ns(),
    ) -> None:
        self._wall = wall
        self._elapsed = elapsed
        self._looked = elapsed()
        # A long stop of the server looks the same as a wrong clock, so here the clock counts.
        self._now = max(last, wall())
        self._ahead_since: int | None = None

    def now(self) -> int:
        """Return the time; it is never less than the one before."""
        elapsed, wall = self._elapsed(), self._wall()
        goes_on = self._now + max(0, elapsed - self._looked)
        self._looked = elapsed
        if wall - goes_on <= _JUMP_NS:
            self._ahead_since = None
            # A clock that was set back a little catches up; a clock that runs a little faster is followed.
            self._now = max(goes_on, wall)
        else:
            if self._ahead_since is None:
                self._ahead_since = elapsed
            self._now = wall if elapsed - self._ahead_since >= _LASTS_NS else goes_on
        return self._now
