"""One run of a scenario, from the job's definition to the verdict: it starts the processes, and kills some of them.

`find_rate` searches for the highest rate that a tracker sustains, by runs at rates ever closer to it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from tracker.client import JobSpec, TrackerClient
from tracker.load.plan import Plan, graph
from tracker.load.results import Latency, Result, Sample, evaluate, judge
from tracker.load.scenario import Scenario, ScenarioError
from tracker.load.servers import FailedError, Remote, Target, bare_server
from tracker.load.shared import LAST_SEQ, SEEN, Order, SharedCounters, machine_seconds, processor_seconds

_LOOK_S: Final = 0.1  # seconds between two checks of the processes
_SAMPLE_S: Final = 1.0
_RECENT_S: Final = 5.0  # the last seconds, which a line of progress covers
_READY_S: Final = 60.0  # the time for processes to start
_LEAVE_S: Final = 10.0  # the time for processes to end


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    at: float  #: seconds after the start
    of: float  #: seconds that the plan lasts
    due: int  #: the number of reports that were due so far
    answered: int
    ended: int  #: the number of ends that the watcher has seen
    recent: Latency  #: of the reports of the last seconds
    memory: int | None  #: of the server, in bytes; None: this test has not started it


def run(scenario: Scenario, target: Target, tell: Callable[[Progress], None], keep: bool = False) -> Result:
    """Run a scenario against a tracker, in a job of its own.

    Args:
        target: the tracker; no other tracker gets any traffic.
        tell: called with the progress about once a second.
        keep: keep the job. A job that failed is always kept.

    Raises:
        ScenarioError: the scenario kills the tracker, and this test has not started it.
        FailedError: the processes that make the load could not be started.
        tracker.client.TrackerError: the tracker refuses the job.
        tracker.client.TrackerUnavailable: it cannot be reached.
    """
    if scenario.failures.kill_server_every and isinstance(target, Remote):
        raise ScenarioError(
            f"failures.kill_server_every kills the tracker, but this test has not started the one at {target.address}: "
            "set it to 0, or let the test start a tracker with --start --journal sqlite"
        )
    job = f"load-{uuid.uuid4().hex[:12]}"
    plan = Plan(scenario)
    with (
        tempfile.TemporaryDirectory(prefix="tracker-load-") as directory,
        TrackerClient(target.address, retry_for=scenario.patience) as client,
    ):
        retention = timedelta(seconds=scenario.retention)
        client.define_job(JobSpec(job=job, deployment="d1", segments=graph(scenario), retention=retention))
        Order(scenario, target.address, job).write(Path(directory))
        shared = SharedCounters(Path(directory), plan, create=True)
        with _probed(directory, target):
            run = _Run(plan, shared, Path(directory), target, client, job, tell)
            try:
                run.go()
            finally:
                run.leave()
        result = run.result()
        if result.verdict.right and not keep:
            client.delete_job(job, force=True)
        return result


@contextmanager
def _probed(directory: str, target: Target) -> Iterator[None]:
    """Call a server that does nothing while the context lasts, unless the tracker may run on another machine."""
    if isinstance(target, Remote):
        yield
        return
    with bare_server() as bare:
        probe = _process(directory, "probe", bare.address)
        try:
            yield
        finally:
            probe.kill()
            probe.wait()


class _Worker:
    """A process of producers, which may be killed and started again."""

    def __init__(self, directory: Path, number: int) -> None:
        self._directory = directory
        self._number = number
        self._used = 0.0
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.process = _process(self._directory, "producers", str(self._number), str(self.lives))
        self.lives += 1

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        self._used += processor_seconds(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    @property
    def used(self) -> float:
        """Returns the processor time of all its lives, in seconds."""
        return self._used + processor_seconds(self.process.pid)


class _Run:
    def __init__(
        self,
        plan: Plan,
        shared: SharedCounters,
        directory: Path,
        target: Target,
        client: TrackerClient,
        job: str,
        tell: Callable[[Progress], None],
    ) -> None:
        self._plan = plan
        self._shared = shared
        self._target = target
        self._client = client
        self._job = job
        self._tell = tell
        self._samples: list[Sample] = []
        self._servers_killed = 0
        self._watcher = _process(directory, "watcher")
        self._workers = [_Worker(directory, number) for number in range(plan.scenario.processes)]

    def go(self) -> None:
        """Run the plan, and wait until it is done or the scenario's patience is over."""
        self._wait_until_ready()
        self._shared.start = time.monotonic() + 0.2
        end = float(self._plan.due.max())
        deadline = end + self._plan.scenario.patience
        since, until = self._plan.measured
        failures = self._plan.scenario.failures
        kills = _Schedule(failures.kill_producers_every, since, until)
        server_kills = _Schedule(failures.kill_server_every, since, until)
        sampled = -_SAMPLE_S
        while not self._finished() and self._now() < deadline:
            time.sleep(_LOOK_S)
            now = self._now()
            if server_kills.due(now):
                self._target.restart()
                self._servers_killed += 1
            if kills.due(now):
                worker = self._workers[kills.number % len(self._workers)]
                if worker.process.poll() is None:
                    worker.kill()
                    worker.start()
            if now - sampled >= _SAMPLE_S:
                sampled = now
                self._sample(now)
                self._tell(self._progress(now, end))
        self._await_events()

    def _await_events(self) -> None:
        """Wait until all that was answered has been seen: with the last answers patience may be at its end."""
        for worker in self._workers:
            worker.kill()
        until = time.monotonic() + self._plan.scenario.patience
        last = self._client.job(self._job).last_seq
        while self._shared.counters[-1][LAST_SEQ] < last and self._watcher.poll() is None and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def leave(self) -> None:
        """End all processes."""
        self._shared.stop()
        processes = [*(worker.process for worker in self._workers), self._watcher]
        until = time.monotonic() + _LEAVE_S
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            process.kill()
            process.wait()

    def result(self) -> Result:
        verdict = judge(self._plan, self._shared)
        killed = sum(worker.lives - 1 for worker in self._workers)
        return evaluate(self._plan, self._shared, verdict, self._samples, killed, self._servers_killed)

    # ---------------------------------------------------------------- watching the processes

    def _now(self) -> float:
        return time.monotonic() - self._shared.start

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + _READY_S
        while not self._shared.ready.all():
            if self._failed() or time.monotonic() > until:
                why = "; ".join(self._shared.faults()) or f"they were not ready after {_READY_S:g} s"
                raise FailedError(f"the processes that make the load could not start: {why}")
            time.sleep(_LOOK_S)

    def _failed(self) -> bool:
        """Return whether a process has ended too early."""
        return self._watcher.poll() is not None or any(worker.process.poll() for worker in self._workers)

    def _finished(self) -> bool:
        """Return whether there is nothing more to wait for."""
        if self._failed():
            return True
        if any(worker.process.poll() is None for worker in self._workers):
            return False
        counters = self._shared.counters[-1]
        return bool(counters[SEEN] >= self._plan.ends and counters[LAST_SEQ] >= self._client.job(self._job).last_seq)

    def _sample(self, now: float) -> None:
        use = self._target.use()
        spent = (*(worker.used for worker in self._workers), processor_seconds(self._watcher.pid))
        self._samples.append(Sample(now, use, spent, machine_seconds()))

    def _progress(self, now: float, end: float) -> Progress:
        plan, shared = self._plan, self._shared
        use = self._samples[-1].server
        recent = []
        due = 0
        for producer in range(plan.producers):
            first, last = np.searchsorted(plan.due[producer], [now - _RECENT_S, now])
            due += int(last)
            answered = shared.answered[producer, first:last]
            answered_ones = answered != 0
            recent.append((answered - shared.start - plan.due[producer, first:last])[answered_ones])
        return Progress(
            at=now,
            of=end,
            due=due,
            answered=int(np.count_nonzero(shared.answered)),
            ended=int(shared.counters[-1, SEEN]),
            recent=Latency.of(np.concatenate(recent)),
            memory=None if use is None else use.memory,
        )


class _Schedule:
    """Moments at equal intervals inside a span of time; none if the interval is 0."""

    def __init__(self, every: float, since: float, until: float) -> None:
        self._every = every
        self._next = since + every
        self._until = until
        self.number = 0  #: how many of them have passed

    def due(self, now: float) -> bool:
        """Return whether another one has come."""
        if not self._every or not self._next <= now or self._next >= self._until:
            return False
        self._next += self._every
        self.number += 1
        return True


def _process(directory: Path | str, role: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tracker.load.processes", str(directory), role, *arguments]
    return subprocess.Popen(command, env=os.environ | {"GRPC_VERBOSITY": "NONE"})


_STEP: Final = 1.5
_CLOSE: Final = 1.1  #: the search ends when the lowest rate that failed is at most so many times the highest sustained
_MOST_RUNS: Final = 20
_BUSY_RUNS: Final = 4  #: runs in a row in which even a call that does nothing took too long: lower rates would not help


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the search."""

    rate: float  #: reports a second that were asked for
    result: Result
    failed: str  #: why this rate was not sustained; empty: it was

    @property
    def sustained(self) -> bool:
        return not self.failed

    @property
    def only_slow(self) -> bool:
        """Return whether the run failed only because answers were slow: all was right, and no backlog grew."""
        return bool(self.failed) and self.result.verdict.right and not self.result.backlog_grew


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search.

    Args:
        rate: the highest rate that was sustained, in reports a second; 0: none was.
        by_generator: above this rate the generator could not keep up, so the tracker may sustain more.
        too_busy: no rate was sustained, and even a call that does nothing exceeded the bound, however low the rate.
    """

    steps: tuple[Step, ...]
    rate: float
    by_generator: bool
    too_busy: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the result in a form for JSON."""
        steps = [
            {"rate": step.rate, "sustained": step.sustained, "failed": step.failed, "result": step.result.as_dict()}
            for step in self.steps
        ]
        return {"rate": self.rate, "by_generator": self.by_generator, "too_busy": self.too_busy, "steps": steps}


def find_rate(run: Callable[[float], Result], first: float, bound_ms: float, tell: Callable[[Step], None]) -> Search:
    """Find the highest rate at which the 99th percentiles stay within a bound and no backlog grows.

    A rate at which answers were only slow is tried once more, since other programs on the machine may have been the
    cause. A run that finds a fault ends the search: a fault matters more than a rate.

    Args:
        bound_ms: the longest 99th percentile of reports and of ends, in milliseconds.
    """

    def beyond(step: Step) -> bool:
        return not step.sustained and step.result.floor.p99 > bound_ms

    steps: list[Step] = []
    low, high = 0.0, 0.0  # the highest rate that was sustained, the lowest that was not; 0: not known
    rate = first
    too_busy = False
    while len(steps) < _MOST_RUNS and not too_busy and not (low and high and high <= low * _CLOSE):
        result = run(rate)
        step = Step(rate, result, why_not(result, bound_ms))
        steps.append(step)
        tell(step)
        too_busy = not low and len(steps) >= _BUSY_RUNS and all(map(beyond, steps[-_BUSY_RUNS:]))
        if result.verdict.faults:
            break
        if step.only_slow and [one.rate for one in steps].count(rate) == 1:
            continue
        if step.sustained:
            low = rate
            rate = round((low * high) ** 0.5 if high else rate * _STEP, 1)
        else:
            high = rate
            rate = round((low * high) ** 0.5 if low else rate / _STEP, 1)
    failed = [step for step in steps if not step.sustained and step.rate == high]
    by_generator = bool(failed) and not failed[-1].result.generator.kept_up
    return Search(tuple(steps), low, by_generator, too_busy)


def why_not(result: Result, bound_ms: float) -> str:
    """Return why a run's rate is not sustained; empty if it is."""
    if result.verdict.faults:
        return result.verdict.faults[0]
    if result.verdict.unanswered:
        return f"{result.verdict.unanswered:,} reports were not answered in time"
    if result.backlog_grew:
        return f"the backlog grew from {result.backlog[0]:.0f} reports to {result.backlog[1]:.0f}"
    if result.reports.p99 > bound_ms:
        return f"99 % of the reports took up to {result.reports.p99:.1f} ms"
    if result.ends.p99 > bound_ms:
        return f"99 % of the ends took up to {result.ends.p99:.1f} ms"
    return ""
