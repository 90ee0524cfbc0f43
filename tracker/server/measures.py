"""Counters kept where things happen: calls, reports, ends, syncs of the journal, snapshots.

Everything here is added to on the event loop, and read by whoever collects it, in any thread. A number only grows.
Counts of a job are kept under the job's label, of which there are only so many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from operator import lt

from tracker.contract.commands import Report
from tracker.contract.status import Tally
from tracker.core import JobView

OTHERS = "(other)"  #: for what has no label of its own; no job can be called so
CALL_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SYNC_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
DELAY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SNAPSHOT_S = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)


class JobLabels:
    """Labels of jobs: a bounded number, whatever jobs there are and whatever they are called.

    Each series costs memory in whoever scrapes, for as long as it keeps data. So only so many jobs have series of their
    own: the first that there are. The counts of all others are summed under one label. A job keeps its label until it
    is deleted, so a counter never changes its label, and never falls.

    Args:
        most: how many jobs get one of their own.
        exists: whether there is a job; callers may name others, which get none.

    >>> labels = JobLabels(1, lambda job: job != "unknown")
    >>> labels.of("unknown"), labels.of("a"), labels.of("b"), labels.of("a")
    ('(other)', 'a', '(other)', 'a')
    >>> labels.keep(["b"])
    ['a']
    >>> labels.of("b")
    'b'
    """

    def __init__(self, most: int, exists: Callable[[str], bool]) -> None:
        self._most = most
        self._exists = exists
        self._own: set[str] = set()

    def of(self, job: str) -> str:
        if job in self._own:
            return job
        if len(self._own) < self._most and self._exists(job):
            self._own.add(job)
            return job
        return OTHERS

    def keep(self, jobs: Iterable[str]) -> list[str]:
        """Take the labels of all jobs but these, and return them."""
        gone = self._own.difference(jobs)
        self._own -= gone
        return list(gone)


def escaped(name: str) -> str:
    """Return the label of a segment or a front, which must not be taken for the sum of the others.

    >>> escaped("orders"), escaped("(other)"), escaped("((other))")
    ('orders', '((other))', '(((other)))')
    """
    return f"({name})" if name.strip("()") == "other" and name.startswith("(") and name.endswith(")") else name


class Distribution:
    """Frequency of values between some bounds: a histogram that costs next to nothing to add to.

    prometheus_client's own take a lock and go through the bounds one by one for each observation; and they cannot take
    many equal observations at once, such as the thousand ends of one report. Its exposition is used as it is. Add from
    one thread; read from any.

    Args:
        bounds: the upper bounds of the buckets, ascending; one more bucket takes what is above.

    >>> seconds = Distribution([0.1, 1.0])
    >>> seconds.add(0.1)
    >>> seconds.add(5.0, times=2)
    >>> seconds.buckets(), seconds.sum
    ([('0.1', 1), ('1.0', 1), ('+Inf', 3)], 10.1)
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Add a value, or as many of it."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Return the bounds, and how many values did not lie above each."""
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))


class Measures:
    """The server's counters."""

    def __init__(self, labels: JobLabels, find: Callable[[str], JobView | None]) -> None:
        self._labels = labels
        self._find = find
        self._tallies: dict[str, Tally] = {}  # by job, as last counted
        self.calls = defaultdict[tuple[str, str], Distribution](partial(Distribution, CALL_S))  #: by method and code
        self.refusals = Counter[str]()  #: by reason
        self.reports = Counter[tuple[str, str]]()  #: by label and outcome
        self.entries = Counter[tuple[str, str]]()  #: likewise
        self.announced: dict[str, Tally] = {}  #: by label
        self.delays = defaultdict[str, Distribution](
            partial(Distribution, DELAY_S)
        )  #: of ends after commands, by label
        self.syncs = Distribution(SYNC_S)
        self.sync_failures = self.journal_bytes = self.journal_records = 0
        self.snapshots = Distribution(SNAPSHOT_S)
        self.snapshot_failures = self.snapshot_bytes = 0
        self.snapshot_at = 0.0  #: Unix time of the last one; 0: none since the start
        self.backup_at = 0.0  #: Unix time of the last backup that was sent whole; 0: none since the start

    def began(self, jobs: list[str]) -> None:
        """Count from now on: what these jobs announced before was counted by an earlier process."""
        for job in jobs:
            view = self._find(job)
            if view is not None:
                self._tallies[job] = view.tally()

    def called(self, method: str, code: str, seconds: float) -> None:
        """Count a call that has ended."""
        self.calls[method, code].add(seconds)

    def refused(self, reason: str) -> None:
        """Count a refusal, of a call or of a report of a stream."""
        self.refusals[reason] += 1

    def reported(self, command: Report, outcome: str) -> None:
        """Count a report and its entries, with what became of it."""
        key = self._labels.of(command.job), outcome
        self.reports[key] += 1
        self.entries[key] += len(command.xor)

    def news(self, job: str, seconds: float) -> None:
        """Count what a job has announced since the last time.

        Args:
            job: whose log has grown, or which was deleted.
            seconds: since the command that caused it was taken.
        """
        view = self._find(job)
        if view is None:
            self._tallies.pop(job, None)
            return
        tally = view.tally()
        before = self._tallies.get(job, Tally())
        self._tallies[job] = tally
        if tally.late < before.late or any(map(lt, tally.ends, before.ends)):
            before = Tally()  # another job of the same name
        label = self._labels.of(job)
        new = tuple(now - then for now, then in zip(tally.ends, before.ends, strict=True))
        old = self.announced.get(label, Tally())
        ends_so_far = tuple(map(sum, zip(old.ends, new, strict=True)))
        self.announced[label] = Tally(old.late + tally.late - before.late, ends_so_far)
        if ends := sum(new):
            self.delays[label].add(seconds, ends)

    def synced(self, seconds: float, records: int, size: int) -> None:
        """Count a sync of the journal: how long it took, how many records and bytes it made durable."""
        self.syncs.add(seconds)
        self.journal_records += records
        self.journal_bytes += size

    def snapshot(self, seconds: float, size: int, at: float) -> None:
        """Count a snapshot: how long it took, its bytes, and the Unix time."""
        self.snapshots.add(seconds)
        self.snapshot_bytes = size
        self.snapshot_at = at

    def forget(self, label: str) -> None:
        """Drop what was counted under a label whose job was deleted."""
        for of_outcome in (self.reports, self.entries):
            for key in [key for key in of_outcome if key[0] == label]:
                del of_outcome[key]
        self.announced.pop(label, None)
        self.delays.pop(label, None)
