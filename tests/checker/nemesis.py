"""Plays a plan's faults on a cluster, and notes them in the history."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from itertools import count

from tests.checker.cluster import Cluster
from tests.checker.faults import KINDS
from tests.checker.history import History, Operation
from tests.checker.plan import Fault, Plan


class Nemesis:
    """A player of faults, one thread after the clock; several may last at the same time.

    Args:
        cluster: what suffers.
        history: notes them.
    """

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._began = time.monotonic()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def play(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Play all faults of a plan, end them, and return when its time is over."""
        self._began = time.monotonic()
        for fault in plan.faults:
            self._at(fault.at, lambda fault=fault: self._strike(fault, say))  # type: ignore[misc]
        while self._due and self._due[0][0] < plan.seconds:
            at, _, work = heapq.heappop(self._due)
            self._wait_until(at)
            work()
        self._wait_until(plan.seconds)
        while self._due:
            heapq.heappop(self._due)[2]()

    def _at(self, seconds: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._due, (seconds, next(self._order), work))

    def _wait_until(self, seconds: float) -> None:
        time.sleep(max(0.0, self._began + seconds - time.monotonic()))

    def _strike(self, fault: Fault, say: Callable[[str], None]) -> None:
        asked = {"fault": fault.kind, "target": fault.target, **fault.options}
        operation = self._history.begin("nemesis", "fault", "", **asked)
        found, end = KINDS[fault.kind].strike(self._cluster, fault.target, fault.options)
        say(f"{fault.shown()} {found or ''}".rstrip())
        now = time.monotonic() - self._began
        self._at(now + fault.lasts, lambda: self._end(operation, end, found))

    def _end(self, operation: Operation, end: Callable[[], None], found: dict[str, object]) -> None:
        end()
        self._history.end(operation, "ok", **found)
