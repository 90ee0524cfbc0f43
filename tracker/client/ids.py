"""The ids that the tracker assigned to substreams: to look up a name costs it ten times as much as an entry by id."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeAlias

from tracker.contract.commands import Contents

Named: TypeAlias = tuple[str, str, int]  #: (scope, name, end time): an id is used only if all three agree


def named(contents: Contents) -> list[Named]:
    """Return the substreams of a report, in the form in which `SubstreamIds` keeps them."""
    times = contents.end_times.tolist()
    return [(scope, name, time) for (scope, name), time in zip(contents.substreams, times, strict=True)]


class SubstreamIds:
    """The known ids of one job: bounded, and dropped when they turn out to be invalid.

    Ids are valid for every run and producer of the job, so a process keeps them once. Many threads may share it.

    Args:
        capacity: the most ids to keep; beyond it the oldest are dropped. One takes about 300 bytes.

    >>> ids = SubstreamIds(capacity=2)
    >>> ids.learn("log", [("JFK", "d1", 24), ("LGA", "d1", 24)], [0, 1])
    >>> ids.look_up([("LGA", "d1", 24), ("EWR", "d1", 24)])
    ('log', [1, None])
    """

    def __init__(self, capacity: int = 100_000) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._log_id = ""
        self._ids: dict[Named, int] = {}

    def look_up(self, substreams: Iterable[Named]) -> tuple[str, list[int | None]]:
        """Return the log's id, and each substream's id in that log, or None."""
        with self._lock:
            return self._log_id, list(map(self._ids.get, substreams))

    def learn(self, log_id: str, substreams: Sequence[Named], ids: Sequence[int]) -> None:
        """Keep the ids of an answer, and drop those of another log."""
        with self._lock:
            if log_id != self._log_id:
                self._log_id = log_id
                self._ids.clear()
            self._ids.update(zip(substreams, ids, strict=True))
            excess = len(self._ids) - self.capacity
            if excess > 0:
                for oldest in list(islice(self._ids, excess)):
                    del self._ids[oldest]

    def forget(self) -> None:
        """Drop all ids, because the tracker does not know one or has another log."""
        with self._lock:
            self._log_id = ""
            self._ids.clear()
