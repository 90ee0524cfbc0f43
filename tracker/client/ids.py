"""The ids that the tracker gave to substreams' names: to name one costs the tracker ten times what an entry costs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TypeAlias

from tracker.contract.callers import Contents

Named: TypeAlias = tuple[str, str, int]  #: (scope, name, end time): an id is used only where all three agree


def named(contents: Contents) -> list[Named]:
    """The substreams of a report as they are remembered with their ids."""
    times = contents.end_times.tolist()
    return [(scope, name, time) for (scope, name), time in zip(contents.substreams, times, strict=True)]


class SubstreamIds:
    """What is known of one job's ids; bounded, and thrown away as soon as it is found to hold no more.

    Ids are good for every run and producer of the job, so a process keeps them once. For many threads.

    Args:
        capacity: how many are kept; beyond it the oldest are dropped. One takes about 300 bytes.

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
        """The log's id, and for each substream its id there or None."""
        with self._lock:
            return self._log_id, list(map(self._ids.get, substreams))

    def learn(self, log_id: str, substreams: Sequence[Named], ids: Sequence[int]) -> None:
        """Keeps what an answer gave; what was known of another log is dropped."""
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
        """Drops everything: the tracker does not know an id, or the log is another."""
        with self._lock:
            self._log_id = ""
            self._ids.clear()
