"""The processes that make a run's load: producers, the watcher of the job's events, and the probe of the machine.

Run as `python -m tracker.load.processes DIRECTORY ROLE …`, by `run`.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from tracker.client import (
    Ended,
    Event,
    Outcome,
    Producer,
    Reason,
    Report,
    TrackerClient,
    TrackerError,
    TrackerUnavailable,
    Watch,
)
from tracker.contract.refusal import Refusal
from tracker.load.plan import Plan, graph, segment
from tracker.load.shared import (
    LAST_SEQ,
    PROBES_A_SECOND,
    REPEATED,
    SEEN,
    TAKEN_OVER,
    Order,
    SharedCounters,
    exit_with_parent,
)

_LONGEST_SLEEP_S: Final = 0.5  # the longest time between two checks whether to stop
_SWITCH_S: Final = 0.0005  # the longest time that a thread with a due report waits for one that prepares a report
_MOST_FAULTS: Final = 100  #: the most faults that are recorded: more would not help
_CALL: Final = b"." * 4096  # about the size of a report


class _Stopped(Exception):  # noqa: N818
    """The run has been stopped, whether or not everything was sent."""


class _Line:
    """One producer, and its position in the plan.

    A producer is a thread that sends one report after the other, as every client must, since epochs come in order. A
    report that becomes due while another one is under way waits, and the wait counts: its latency begins when it was
    due.
    """

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

    def __init__(self, order: Order, plan: Plan, shared: SharedCounters, number: int, life: int) -> None:
        self.plan = plan
        self.shared = shared
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


class _Witness:
    """Recorder of the job's events."""

    def __init__(self, plan: Plan, shared: SharedCounters) -> None:
        self._plan = plan
        self._shared = shared
        self._segments = {name: number for number, name in enumerate(graph(plan.scenario))}
        self._counters = shared.counters[-1]
        self._faults = 0

    def record(self, event: Event, at: float) -> None:
        """Record an event.

        Args:
            at: when it came, in seconds of the monotonic clock.
        """
        if event.seq != self._counters[LAST_SEQ] + 1:
            self._fault(f"event {event.seq} came after event {self._counters[LAST_SEQ]}")
        self._counters[LAST_SEQ] = event.seq
        match event.kind:
            case Ended() as ended:
                found = self._plan.find(ended.scope, ended.name)
                if found is None:
                    self._fault(f"a substream ended that is not in the plan: {ended}")
                    return
                if ended.reason is not Reason.COMPLETE:
                    self._fault(f"a substream ended by force: {ended}")
                place = (*found, self._segments[ended.segment])
                if not self._shared.times[place]:
                    self._shared.ended[place] = at
                    self._shared.elements[place] = ended.elements
                self._shared.times[place] += 1
                self._counters[SEEN] += 1
            case unexpected:
                self._fault(f"an event that must not come: {unexpected}")

    def _fault(self, text: str) -> None:
        self._faults += 1
        if self._faults <= _MOST_FAULTS:
            self._shared.fault(text)


def _close_at_stop(shared: SharedCounters, events: Watch) -> None:
    while not shared.stopped:
        time.sleep(0.1)
    events.close()


def _watch(order: Order, plan: Plan, shared: SharedCounters) -> int:
    """Record the time of each end. The checks that need the plan's sums are in `results`."""
    witness = _Witness(plan, shared)
    try:
        with (
            TrackerClient(order.address, retry_for=order.scenario.patience) as client,
            client.watch(order.job) as events,
        ):
            threading.Thread(target=_close_at_stop, args=[shared, events], daemon=True).start()
            shared.ready[-1] = 1
            for event in events:
                witness.record(event, time.monotonic())
    except (TrackerError, TrackerUnavailable) as error:
        shared.fault(f"the watcher: {error}")
        return 1
    return 0


def _probe(shared: SharedCounters, address: str) -> int:
    """Call a server regularly that does nothing, to measure what a call costs on this machine meanwhile.

    As for reports, a call's latency counts from when it was due. On a machine that others use as well, only figures
    from the same seconds can be compared.
    """
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/bare/Report", request_serializer=None, response_deserializer=None
        )
        call(_CALL)  # connects
        while not shared.start and not shared.stopped:
            time.sleep(0.01)
        for number in range(len(shared.probed)):
            due = shared.start + number / PROBES_A_SECOND
            while (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if shared.stopped:
                return 0
            call(_CALL)
            shared.probed[number] = time.monotonic()
    return 0


def main(directory: Path, role: str, *arguments: str) -> int:
    """Run the process of a role, and return the exit status.

    Args:
        role: ``producers``, with the number of the process and of its life; ``watcher``; or ``probe``, with the address
            of the server that does nothing.
    """
    exit_with_parent()
    order = Order.read(directory)
    plan = Plan(order.scenario)
    shared = SharedCounters(directory, plan)
    match role:
        case "producers":
            sys.setswitchinterval(_SWITCH_S)
            number, life = map(int, arguments)
            return _Process(order, plan, shared, number, life).run()
        case "watcher":
            return _watch(order, plan, shared)
        case _:
            return _probe(shared, *arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
