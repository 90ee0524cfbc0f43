"""The workers of a node: `python -m tests.relay.node SERVER WORKERS STOP` forks them, and ends when all have.

Each reports until the file STOP is there, a unit of its own at a time, `UNITS` of them an epoch, and prints how many it
has reported and what became of them.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

from tracker.client import Report, TrackerClient, label

JOB, PRODUCER, RUN = "job", "query", "r1"
NAMES = 5
UNITS = 25


def fill(report: Report, worker: int, unit: int) -> None:
    """Fill a unit's report: an element for each name, and all but the last name's received."""
    for name in range(NAMES):
        report.sent("raw", "s", f"n{name}", label(worker, unit, name))
        if name < NAMES - 1:
            report.received("raw", "s", f"n{name}", label(worker, unit, name))


def work(server: str, worker: int, stop: Path) -> None:
    outcomes: Counter[str] = Counter()
    unit = 0
    with TrackerClient(server, retry_for=120) as client:
        while not stop.exists():
            report = client.producer(JOB, PRODUCER, RUN).epoch(unit // UNITS)
            fill(report, worker, unit)
            outcomes[report.report(units=[f"{worker}/{unit}"]).outcome] += 1
            unit += 1
    said = json.dumps({"worker": worker, "reports": unit, "outcomes": outcomes}) + "\n"
    os.write(sys.stdout.fileno(), said.encode())


def main(server: str, workers: str, stop: str) -> int:
    children = []
    for worker in range(int(workers)):
        child = os.fork()
        if child == 0:
            work(server, worker, Path(stop))
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
