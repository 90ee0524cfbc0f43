"""What the user of `tracker top` has chosen: the order of the jobs, and the job whose substreams are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tracker.cli.live.observing import JobLook
from tracker.cli.live.sorting import KEYS, Sort

_VALUES: Final[dict[Sort, Callable[[JobLook], Any]]] = {
    Sort.NAME: lambda job: job.job,
    Sort.OPEN: lambda job: job.open,
    Sort.IN_FLIGHT: lambda job: job.in_flight,
    Sort.EVENTS: lambda job: job.events_per_s or 0.0,
    Sort.EPOCHS: lambda job: job.epochs_per_s or 0.0,
    Sort.LATE: lambda job: job.late,
    Sort.SILENT: lambda job: len(job.silent_fronts),
}


@dataclass
class Choice:
    """The order of the jobs, and the chosen job.

    Args:
        sort: the order. Numbers are listed from the highest, names from the first.
        turned: the order is turned around.
        job: the chosen job; None: the first one in the order.
    """

    sort: Sort = Sort.OPEN
    turned: bool = False
    job: str | None = None

    def ordered(self, jobs: Sequence[JobLook]) -> list[JobLook]:
        """Return the jobs in the order; those that are alike by their names."""
        by_name = sorted(jobs, key=lambda job: job.job)
        return sorted(by_name, key=_VALUES[self.sort], reverse=(self.sort is not Sort.NAME) != self.turned)

    def chosen(self, jobs: Sequence[JobLook]) -> str | None:
        """Return the chosen job; if it does not exist, the first one."""
        names = [job.job for job in self.ordered(jobs)]
        return self.job if self.job in names else next(iter(names), None)

    def press(self, key: str, jobs: Sequence[JobLook]) -> bool:
        """Change the choice as a key asks for it.

        Args:
            key: a letter of `KEYS`, which turns the order around if it is the same as before; or ``up``, ``down``,
                ``home``, ``end``, or ``k`` and ``j`` for up and down.
            jobs: the jobs that are shown.

        Returns:
            Whether another job is chosen.
        """
        if key in KEYS:
            self.turned = KEYS[key] is self.sort and not self.turned
            self.sort = KEYS[key]
            return False
        names = [job.job for job in self.ordered(jobs)]
        before = self.chosen(jobs)
        if before is None:
            return False
        place = names.index(before)
        places = {"up": place - 1, "k": place - 1, "down": place + 1, "j": place + 1, "home": 0, "end": len(names) - 1}
        self.job = names[max(0, min(places.get(key, place), len(names) - 1))]
        return self.job != before
