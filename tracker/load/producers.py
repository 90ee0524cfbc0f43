"""A process of producers: each sends its reports at the planned moments, and continues where a killed one was.

Run as `python -m tracker.load.producers DIRECTORY NUMBER LIFE`. DIRECTORY is that of the run, NUMBER is that of the
process, and LIFE counts how often this process was started before.

A producer is a thread that sends one report after the other, as every client must, since epochs come in order. A report
that becomes due while another one is under way waits, and the wait counts: its latency begins when it was due.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from tracker.client import Outcome, Producer, Report, TrackerClient, TrackerError
from tracker.contract.refusal import Refusal
from tracker.load.plan import Plan, segment
from tracker.load.shared import REPEATED, TAKEN_OVER, Order, SharedCounters, exit_with_parent

_LONGEST_SLEEP_S: Final = 0.5  # the longest time between two checks whether to stop
_SWITCH_S: Final = 0.0005  # the longest time that a thread with a due report waits for one that prepares a report


class _Stopped(Exception):  # noqa: N818
    """The run has been stopped, whether or not everything was sent."""


class _Line:
    """One producer, and its position in the plan."""

    def __init__(self, process: _Process, producer: int) -> None:
        self._process = process
        self._plan = process.plan
        self._shared = process.shared
        self._number = producer
        self._chance = random.Random(f"{self._plan.scenario.seed}/{producer}/{process.life}")
        self._runs = (f"life-{process.life}.{number}" for number in count())
        self._name = f"producer-{producer:03}"
        self._run = self._open()
        committed = self._run.committed_epoch
        self._first = 0 if committed is None else committed + 1
        #: Reports that were due before this moment are late because the test killed or took over this producer.
        self._disturbed_until = time.monotonic() if process.life else 0.0
        self._learn()

    def _open(self) -> Producer:
        return self._process.client.open_producer(self._process.job, self._name, next(self._runs))

    def _learn(self) -> None:
        """Mark epochs that an earlier life has committed as answered: it may have died before it could do that."""
        answered = self._shared.answered[self._number, : self._first]
        unheard = np.flatnonzero(answered == 0)
        answered[unheard] = time.monotonic()
        self._shared.disturbed[self._number, unheard] = 1

    def work(self) -> None:
        """Send all reports that are left."""
        try:
            for tick in range(self._first, self._plan.ticks):
                self._send(tick)
                self._shared.free[self._number, tick] = time.monotonic()
            self._run.close()
        except _Stopped:
            pass
        except Exception as error:
            self._shared.fault(f"{self._name}: {error}")
            self._process.failed = True

    def _send(self, tick: int) -> None:
        """Send one report, when it is due."""
        report = self._report(tick)
        due = self._process.start + float(self._plan.due[self._number, tick])
        self._sleep_until(due)
        failures = self._plan.scenario.failures
        taken_over = self._chance.random() < failures.takeover
        zombie = None
        if taken_over:
            zombie, report = self._run, self._take_over(tick, report)
        disturbed = taken_over or due < self._disturbed_until
        if disturbed:
            self._shared.disturbed[self._number, tick] = 1
        if self._shared.sent[self._number, tick] == 0:
            self._shared.sent[self._number, tick] = time.monotonic()
        report.report(units=["unit"], commit=True)
        answered = self._shared.answered[self._number, tick] = time.monotonic()
        if disturbed:
            self._disturbed_until = answered
        if zombie is not None:
            self._refuse(zombie, tick)
            self._disturbed_until = time.monotonic()
        if self._chance.random() < failures.repeat:
            self._repeat(report, tick)

    def _report(self, tick: int) -> Report:
        plan = self._plan
        report = self._run.epoch(tick)
        for stage, source, rows in plan.batches(self._number, tick):
            scopes, names = plan.names(source, rows.slots, rows.generations)
            some = np.full(len(names), plan.scenario.elements)
            none = np.zeros(len(names), np.int64)
            if stage > 0:
                report.add_columns(segment(stage), scopes, names, None, rows.labels(stage), none, some)
            if stage < plan.scenario.segments:
                report.add_columns(segment(stage + 1), scopes, names, None, rows.labels(stage + 1), some, none)
        for scope, name in zip(*plan.names(self._number, *plan.closes(tick)), strict=True):
            report.close(scope, name)
        return report

    def _sleep_until(self, due: float) -> None:
        while True:
            if self._shared.stopped:
                raise _Stopped
            left = due - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _LONGEST_SLEEP_S))

    # ---------------------------------------------------------------- deliberate failures

    def _repeat(self, report: Report, tick: int) -> None:
        """Send a report again, like a task that runs again although its report was answered."""
        outcome = report.report(units=["unit"], commit=True).outcome
        self._process.add(REPEATED)
        if outcome is not Outcome.ALREADY_COMMITTED:
            self._shared.fault(f"{self._name}: epoch {tick} was reported again and the answer was {outcome}")

    def _take_over(self, tick: int, report: Report) -> Report:
        """Open a new run while the old one has an uncommitted report of the epoch, and return the new run's report."""
        report.report(units=["unit of an old run"])
        self._run = self._open()
        self._process.add(TAKEN_OVER)
        return self._report(tick)

    def _refuse(self, zombie: Producer, tick: int) -> None:
        """Send a report of the old run, which the tracker must refuse."""
        late = zombie.epoch(tick + 1)
        late.sent(segment(1), self._plan.scope(0), "from an old run", label=1)
        try:
            late.report(units=["unit"], commit=True)
        except TrackerError as refused:
            if refused.reason == Refusal.FENCED:
                return
            raise
        self._shared.fault(
            f"{self._name}: run {zombie.run} was superseded, and its report of epoch {tick + 1} was taken"
        )


class _Process:
    """The producers of one process, and what they share."""

    def __init__(self, directory: Path, number: int, life: int) -> None:
        order = Order.read(directory)
        self.plan = Plan(order.scenario)
        self.shared = SharedCounters(directory, self.plan)
        self.job = order.job
        self.number = number
        self.life = life
        self.start = 0.0
        self.failed = False
        self._adding = threading.Lock()
        self.client = TrackerClient(order.address, retry_for=order.scenario.patience)

    def add(self, counter: int) -> None:
        """Add one to a counter."""
        with self._adding:
            self.shared.counters[self.number, counter] += 1

    def run(self) -> int:
        """Run the producers of this process and return the exit status."""
        scenario = self.plan.scenario
        try:
            lines = [_Line(self, producer) for producer in range(self.number, scenario.producers, scenario.processes)]
        except Exception as error:
            self.shared.fault(f"process {self.number} of producers: {error}")
            return 1
        self.shared.ready[self.number] = self.life + 1
        while not self.shared.start:
            if self.shared.stopped:
                return 0
            time.sleep(0.01)
        self.start = self.shared.start
        threads = [threading.Thread(target=line.work) for line in lines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return int(self.failed)


def main() -> int:
    """Run the process and return the exit status."""
    directory, number, life = sys.argv[1:]
    exit_with_parent()
    sys.setswitchinterval(_SWITCH_S)
    return _Process(Path(directory), int(number), int(life)).run()


if __name__ == "__main__":
    sys.exit(main())
