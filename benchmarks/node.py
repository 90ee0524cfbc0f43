"""A node of an engine, as a process: workers that report at the same moment, and a driver that commits.

`python -m benchmarks.node ORDER` forks the workers, as an engine does, and prints the seconds that each epoch
took, from the moment at which its workers have something to report until its commit is answered. The environment
decides on a relay.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from benchmarks.workload import JOB, SEGMENT
from tracker.client import TrackerClient

WARM_UP: Final = 5  #: epochs that are not told of


@dataclass(frozen=True, slots=True)
class Order:
    """An order to a node."""

    server: str
    producer: str
    workers: int
    epochs: int
    entries: int  #: of each report; all workers speak of the same substreams

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.node", json.dumps(asdict(self))]


def main(order: Order) -> None:
    """Carry the order out."""
    done, report_done = os.pipe()
    starts = []
    for worker in range(order.workers):
        started, start = os.pipe()
        if os.fork() == 0:
            os.close(start)
            _work(order, worker, started, report_done)
            os._exit(0)
        os.close(started)
        starts.append(start)
    os.close(report_done)  # so that a worker's death is seen
    with TrackerClient(order.server) as client:
        producer = client.open_producer(JOB, order.producer, "r1", resume_epoch=0)
        _wait(done, order.workers)
        took = []
        for epoch in range(WARM_UP + order.epochs):
            begin = time.perf_counter()
            for start in starts:
                os.write(start, b".")
            _wait(done, order.workers)
            producer.commit(epoch)
            took.append(time.perf_counter() - begin)
    print(json.dumps(took[WARM_UP:]))


def _wait(done: int, count: int) -> None:
    while count:
        said = os.read(done, count)
        if not said:
            raise RuntimeError("a worker has ended; why is above")
        count -= len(said)


def _work(order: Order, worker: int, started: int, done: int) -> None:
    names = [f"window-{number:09}" for number in range(order.entries)]
    scopes, ones = ["tenant"] * order.entries, np.ones(order.entries, np.int64)
    labels = np.random.default_rng(worker).integers(1, 2**63, order.entries)
    with TrackerClient(order.server) as client:
        producer = client.producer(JOB, order.producer, "r1")
        os.write(done, b".")
        for epoch in range(WARM_UP + order.epochs):
            report = producer.epoch(epoch)
            report.add_columns(SEGMENT, scopes, names, None, labels, ones, ones)
            os.read(started, 1)
            report.report(units=[f"probe/{worker}"])
            os.write(done, b".")


if __name__ == "__main__":
    main(Order(**json.loads(sys.argv[1])))
