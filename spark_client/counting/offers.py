"""Counts that a driver gives by a call: the tracker is asked first, and what it refuses changes nothing.

So a number that is refused never becomes one of the front's, where it would be given again and again, and stop the
query. And whoever gave counts that nobody has taken learns of it, since they would be given only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime

from spark_client.counting.livefronts import AT_ONCE, Count, LiveFront, LiveSchedule
from spark_client.counting.runs import Run
from spark_client.errors import TrackingError
from spark_client.plan.schedule import Rows
from spark_client.windows.substreams import Substream
from tracker.client import Expected
from tracker.contract.promises import CommitPromise


class Offer(LiveFront):
    """Counts on their way to the tracker, before they are a front's.

    Args:
        schedule: whose they will be.
        counts: they.

    Attributes:
        left: those that the tracker has not taken yet.
    """

    def __init__(self, schedule: LiveSchedule, counts: Mapping[Substream, Count]) -> None:
        super().__init__(schedule.front)
        self.left = dict(counts)
        self._schedule = schedule

    def due(self) -> Sequence[CommitPromise]:
        return self._schedule.expected(dict(list(self.left.items())[:AT_ONCE]))

    def promised(self, promises: Sequence[CommitPromise]) -> None:
        for promise in promises:
            if isinstance(promise, Expected):
                self.left.pop(Substream(promise.scope, promise.name, promise.end_time), None)


def give(
    schedule: LiveSchedule,
    runs: Sequence[Run],
    rows: Rows,
    through: datetime | date | None = None,
    revise: bool = False,
) -> None:
    """Give counts to the tracker, or to a query that is to start. What a batch under way holds up follows after it.

    Args:
        schedule: the front.
        runs: the newest run of each query that reads its source.
        rows: the counts.
        through: a time up to whose window there will be no others.
        revise: whether they take the place of other numbers.

    Raises:
        UsageError: rows of another form, a substream twice, a time that does not fit the source's.
        TrackingError: the tracker refuses, or cannot be reached; no query runs any more that would give them. Nothing
            that the tracker has not taken is kept.
    """
    counts = schedule.counts_of(rows, revise)
    end = schedule.end_of(counts, through)
    if not runs:
        schedule.take(counts, end)
        return
    offer = Offer(schedule, counts)
    for run in runs:
        run.announce(schedule)
        if not schedule.owes:  # else these follow after those that a batch under way holds up
            run.announce(offer)
    if (offer.left or end is not None) and all(run.closed for run in runs):
        raise TrackingError(
            f"the query that reads {schedule.front.name!r} has ended, and nobody has taken these counts: start it "
            "again, and give them again"
        )
    schedule.take(offer.left, end)
    for run in runs:
        run.announce(schedule)
