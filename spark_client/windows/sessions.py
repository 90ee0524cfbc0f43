"""Sessions by gap: rows of which none is further than the gap from the next one, as with Spark's ``session_window``.

A session's end moves with each of its rows, and what the tracker ends has its name from the start. So time is cut into
steps, and a row of a step is an element of all *stretches* that have the step: each is a gap and a step long, and the
next one begins a step later. Whatever may join a row, before it or after it, lies in a stretch with it. So a session
has certainly ended as soon as all stretches of its rows have: nothing that could join it is in flight, or will come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from spark_client.errors import UsageError
from spark_client.windows import durations
from spark_client.windows.durations import Duration

_MOST: Final = 100  #: steps of a gap: each row is an element of one stretch more


@dataclass(frozen=True)
class Session:
    """Sessions by gap, as `session` makes them.

    Attributes:
        gap: the longest pause within a session.
        step: by how much later than it could a session may come out; None: half of the gap.
    """

    gap: Duration
    step: Duration | None

    def lengths(self, spark: SparkSession) -> tuple[int, int]:
        """Return the gap and the step, in microseconds.

        Raises:
            UsageError: one is no length of time, or the gap is no multiple of the step, or one of too many.
        """
        gap = durations.length(spark, self.gap, "session")
        if self.step is None:
            return gap, gap if gap % 2 else gap // 2
        step = durations.length(spark, self.step, "session: step")
        if gap // step > _MOST:
            raise UsageError(
                f"session({self.gap!r}, step={self.step!r}): each row would be an element of {gap // step + 1} "
                f"stretches of time at the tracker: give a step that is no less than the {_MOST}th part of the gap"
            )
        if gap % step:
            raise UsageError(
                f"session({self.gap!r}, step={self.step!r}): the gap has to be a multiple of the step: give a half, a "
                "third, a tenth of it, or the gap itself"
            )
        return gap, step


def session(gap: Duration, step: Duration | None = None) -> Session:
    """Make sessions: a row belongs to the session of the same scope and keys that it is no further than a gap from.

    They are those of Spark's ``session_window(time, gap)``, grouped by the scope and the keys of the release. A session
    comes out as soon as its source has promised times up to a gap and a step after its last row, or a little sooner.

    Args:
        gap: the longest pause within a session: ``"30 minutes"``, or a timedelta.
        step: how much later than it could a session may come out: the gap, or a half, a third, … of it. Shorter steps
            make more entries in reports, and more state. None: half of the gap.

    >>> tracking.source(raw, "clicks", scope="site", window=("at", session("30 minutes")))   # doctest: +SKIP
    """
    return Session(gap, step)


def stretches(end: int, step: int, gap: int) -> list[tuple[int, int]]:
    """Return the bounds of all stretches that have a step, oldest first.

    Args:
        end: of the step.
        step: its length.
        gap: of the sessions.

    >>> stretches(end=60, step=30, gap=30)
    [(0, 60), (30, 90)]
    >>> stretches(end=60, step=15, gap=30)
    [(15, 60), (30, 75), (45, 90)]
    """
    return [(start, start + gap + step) for start in range(end - step - gap, end, step)]
