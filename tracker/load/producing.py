"""A process of producers: each sends its reports when the plan says, and goes on where a killed one was.

Run as `python -m tracker.load.producing DIRECTORY NUMBER LIFE`: of the run in the directory, the process of this
number, started for the how-manieth time.

A producer is a thread that sends one report after the other, as every client has to: epochs come in order. What falls
due while one is under way waits in line, and the wait counts: time is taken from when a report was due.
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
from tracker.load import parentwatch
from tracker.load.plan import Plan, segment
from tracker.load.shared import REPEATED, TAKEN_OVER, Order, SharedCounters

_LONGEST_SLEEP_S: Final = 0.5  # between looks at whether to leave off
_SWITCH_S: Final = 0.0005  # a thread that is due does not wait longer for one that prepares a report


class _Stopped(Exception):  # noqa: N818
    """The run is over, whether or not everything was sent."""


class _Line:
    """One producer, and where it is in its plan."""

    def __init__(self, process: _Process, producer: int) -> None:
        self._process = process
        self._plan = process.plan
        self._board = process.shared
        self._number = producer
        self._chance = random.Random(f"{self._plan.scenario.seed}/{producer}/{process.life}")
        self._runs = (f"life-{process.life}.{number}" for number in count())
        self._name = f"producer-{producer:03}"
        self._run = self._open()
        committed = self._run.committed_epoch
        self._first = 0 if committed is None else committed + 1
        #: Until when what was due is late because of what the harness did to this producer.
        self._disturbed_until = time.monotonic() if process.life else 0.0
        self._learn()

    def _open(self) -> Producer:
        return self._process.client.open_producer(self._process.job, self._name, next(self._runs))

    def _learn(self) -> None:
        """What was committed in an earlier life was answered, though the answer may not have been written down."""
        answered = self._board.answered[self._number, : self._first]
        unheard = np.flatnonzero(answered == 0)
        answered[unheard] = time.monotonic()
        self._board.disturbed[self._number, unheard] = 1

    def work(self) -> None:
        """Sends everything that is left."""
        try:
            for tick in range(self._first, self._plan.ticks):
                self._send(tick)
                self._board.free[self._number, tick] = time.monotonic()
            self._run.close()
        except _Stopped:
            pass
        except Exception as error:
            self._board.fault(f"{self._name}: {error}")
            self._process.failed = True

    def _send(self, tick: int) -> None:
        """Sends one report, when it is due."""
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
            self._board.disturbed[self._number, tick] = 1
        if self._board.sent[self._number, tick] == 0:
            self._board.sent[self._number, tick] = time.monotonic()
        report.report(units=["unit"], commit=True)
        answered = self._board.answered[self._number, tick] = time.monotonic()
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
            if self._board.stopped:
                raise _Stopped
            left = due - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _LONGEST_SLEEP_S))

    # ---------------------------------------------------------------- what goes wrong on purpose

    def _repeat(self, report: Report, tick: int) -> None:
        """A task that is run again although its report was answered."""
        outcome = report.report(units=["unit"], commit=True).outcome
        self._process.add(REPEATED)
        if outcome is not Outcome.ALREADY_COMMITTED:
            self._board.fault(f"{self._name}: epoch {tick} was reported again and the answer was {outcome}")

    def _take_over(self, tick: int, report: Report) -> Report:
        """A new run begins while the old one has reported the epoch and not committed it; the new one's report."""
        report.report(units=["unit of an old run"])
        self._run = self._open()
        self._process.add(TAKEN_OVER)
        return self._report(tick)

    def _refuse(self, zombie: Producer, tick: int) -> None:
        """What the old run says now must be refused."""
        late = zombie.epoch(tick + 1)
        late.sent(segment(1), self._plan.scope(0), "from an old run", label=1)
        try:
            late.report(units=["unit"], commit=True)
        except TrackerError as refused:
            if refused.reason == "FENCED":
                return
            raise
        self._board.fault(
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
        """Counts one more."""
        with self._adding:
            self.shared.counters[self.number, counter] += 1

    def run(self) -> int:
        """Sends what this process has to send; the exit status."""
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
    """Runs the process; the exit status."""
    directory, number, life = sys.argv[1:]
    parentwatch.exit_with_parent()
    sys.setswitchinterval(_SWITCH_S)
    return _Process(Path(directory), int(number), int(life)).run()


if __name__ == "__main__":
    sys.exit(main())
