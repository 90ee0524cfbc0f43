"""The tracker's time: it never goes back, and a clock of the machine that jumps does not stop it.

Commands carry the time at which they were taken, and all timers count in it. It follows the machine's clock, with two
differences. It never goes back: where the machine's clock is behind, it goes on by elapsed time, also after a restart,
until the clock has caught up. And it follows a jump ahead only once the jump has lasted: a clock that is wrong for a
few seconds moves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_JUMP_NS = 60 * 10**9  #: what is further ahead than this came by a jump, not by drift
_LASTS_NS = 60 * 10**9  #: and is believed once it has lasted so long


class Clock:
    """Nanoseconds since the Unix epoch, as commands are stamped.

    Args:
        last: no time before this is ever given: the last one that the journal knows.
        wall: the machine's clock, in ns since the Unix epoch.
        elapsed: a clock in ns that nobody can set.

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
        # Whether a server was away for long or its clock is wrong cannot be told: the clock is believed.
        self._now = max(last, wall())
        self._ahead_since: int | None = None

    def now(self) -> int:
        """The time; never less than before."""
        elapsed, wall = self._elapsed(), self._wall()
        goes_on = self._now + max(0, elapsed - self._looked)
        self._looked = elapsed
        if wall - goes_on <= _JUMP_NS:
            self._ahead_since = None
            # A clock that was set back a little is caught up with; one that runs a little faster is followed.
            self._now = max(goes_on, wall)
        else:
            if self._ahead_since is None:
                self._ahead_since = elapsed
            self._now = wall if elapsed - self._ahead_since >= _LASTS_NS else goes_on
        return self._now
