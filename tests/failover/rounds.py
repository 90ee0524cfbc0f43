"""A round: two trackers share a journal, clients work, and the leader is killed, stopped or put to sleep."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.failover.history import Watcher, Worker, begin, expected_ends, problems
from tests.failover.pair import Pair
from tracker.client import TrackerClient

_WORKERS = 4


@dataclass
class Outcome:
    """What came of a round.

    Attributes:
        gaps: seconds without service that a worker has seen, by kind of fault: from the fault until the first commit is
            confirmed that was not confirmed before it.
        commits: how many were confirmed.
        ends: how many substreams have ended.
        problems: what does not hold.
    """

    gaps: dict[str, list[float]] = field(default_factory=dict)
    commits: int = 0
    ends: int = 0
    problems: list[str] = field(default_factory=list)


def play(directory: Path, journal: str, kinds: Sequence[str], say: Callable[[str], None] = lambda _: None) -> Outcome:
    """Plays a round, and judges it.

    Args:
        directory: of the trackers' logs.
        journal: their journal.
        kinds: the faults, in their order.
        say: gets a line for each fault.
    """
    outcome = Outcome()
    pair = Pair(directory, journal)
    with TrackerClient(pair.address, retry_for=600) as client:
        try:
            begin(client)
            workers = [Worker(client, number) for number in range(_WORKERS)]
            watcher = Watcher(client)
            for thread in (*workers, watcher):
                thread.start()
            for count, kind in enumerate(kinds, 1):
                _wait_for_answers(workers)
                struck_at = time.monotonic()
                bring_back = pair.strike(kind)
                gap = _wait_for_answers(workers) - struck_at
                outcome.gaps.setdefault(kind, []).append(gap)
                bring_back()
                say(f"{count:4} of {len(kinds)}  {kind:5}  {gap:6.2f} s without service")
            for worker in workers:
                worker.stop()
            outcome.commits = sum(worker.confirmed for worker in workers)
            outcome.ends = expected_ends(workers)
            watcher.stop(outcome.ends)
            outcome.problems = problems(client, workers, watcher)
        finally:
            pair.end()
    return outcome


def _wait_for_answers(workers: Sequence[Worker]) -> float:
    """Waits until each worker has had two more answers, and returns when the last one had its first.

    The first may answer a commit that the leader had carried out already.
    """
    before = [len(worker.answers) for worker in workers]
    firsts = []
    for worker, count in zip(workers, before, strict=True):
        while len(worker.answers) < count + 2:
            if worker.error is not None:
                raise worker.error
            time.sleep(0.002)
        firsts.append(worker.answers[count + 1])
    return max(firsts)


def summary(outcome: Outcome) -> str:
    """Returns an outcome as a table."""
    lines = [f"{'fault':6} {'times':>5} {'p50':>8} {'p99':>8} {'max':>8}   seconds without service"]
    for kind, gaps in outcome.gaps.items():
        ordered = sorted(gaps)
        middle, late = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        lines.append(f"{kind:6} {len(ordered):5} {middle:8.2f} {late:8.2f} {ordered[-1]:8.2f}")
    lines.append(f"{outcome.commits} commits confirmed, {outcome.ends} substreams ended")
    lines += outcome.problems or ["exact: nothing lost, nothing twice, no false end, no gap in the events"]
    return "\n".join(lines)


def as_json(outcome: Outcome) -> str:
    """Returns an outcome for programs."""
    return json.dumps(outcome.__dict__)
