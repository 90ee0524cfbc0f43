"""Clients that note what they do, and the producers among them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any, Final

from tests.checker.answering import Answering
from tests.checker.flow import SEGMENTS, Flow, Line, parts
from tests.checker.history import History
from tracker.client import JobSpec, Producer, Report, TrackerClient, TrackerError, TrackerUnavailable
from tracker.contract.values import Outcome as Reply

_PAUSE_S: Final = 0.02  # between two epochs of a producer, and two look-ups of a reader: at most twice as long
_HALF: Final = 0.5  # how often a call of unknown outcome is followed by another run


class Client:
    """The common part of the clients of a job.

    Args:
        name: in the history.
        client: the connection.
        flow: the job's work.
        history: notes what it does.
        answering: tells which process has answered.
        random: decides.
    """

    def __init__(
        self, name: str, client: TrackerClient, flow: Flow, history: History, answering: Answering, random: Random
    ) -> None:
        self.name = name
        self.client = client
        self.flow = flow
        self.history = history
        self._answering = answering
        self.random = random

    def call(self, kind: str, work: Callable[[], dict[str, Any]], **asked: Any) -> dict[str, Any] | None:
        """Make a call and note how it came out; None: it was refused, or its outcome is unknown."""
        operation = self.history.begin(self.name, kind, self.flow.job, **asked)
        with self._answering.observed() as observed:
            try:
                answer = work()
            except TrackerUnavailable as error:
                self.history.end(operation, "unknown", error=str(error)[:200])
                return None
            except TrackerError as error:
                self.history.end(operation, "refused", reason=error.reason, error=error.message[:200])
                return None
            self.history.end(operation, "ok", observed.by, **answer)
            return answer

    def define(self) -> bool:
        """Define the job, if it is not there."""
        spec = JobSpec(job=self.flow.job, deployment="d1", segments=SEGMENTS, fronts=self.flow.fronts, progress=True)

        def work() -> dict[str, Any]:
            defined = self.client.define_job(spec)
            return {"log_id": defined.log_id, "created": defined.created, "last_seq": defined.last_seq}

        return self.call("define", work, fronts=self.flow.fronts) is not None

    def pause(self) -> None:
        """Wait a little."""
        time.sleep(self.random.uniform(0, 2 * _PAUSE_S))


class Committer(Client):
    """A producer: it commits each epoch of its share, however often it has to try.

    Args:
        place: which producer of the job.
        more: as for `Client`.
    """

    def __init__(self, place: int, *more: Any) -> None:
        super().__init__(*more)
        self._producer = f"p{place}"
        self._place = place
        self._runs = count(1)
        self._run: Producer | None = None
        self._was_refused = False  # its last call
        self.committed = -1  #: the last epoch of which it knows that it is committed

    def work(self, epochs: range, is_stopped: Callable[[], bool]) -> None:
        """Commit epochs, until it is stopped."""
        for number in epochs:
            line = self.flow.epoch(self._place, number)
            self.history.note(self.name, "epoch", self.flow.job, {"line": line})
            while self.committed < number:
                if is_stopped():
                    return
                if (self._run is None and not self._open(number)) or not self._commit(line):
                    self.pause()
            self.pause()

    def _open(self, number: int) -> bool:
        """Start a run, which learns what is committed."""
        run = f"r{next(self._runs)}"

        def work() -> dict[str, Any]:
            self._run = self.client.open_producer(self.flow.job, self._producer, run, replays=True)
            committed = self._run.committed_epoch
            return {"committed": -1 if committed is None else committed}

        answer = self.call("open", work, producer=self._producer, run=run, epoch=number)
        if answer is None:
            self._run = None
            self.define()
            return False
        if answer["committed"] >= number:
            self.committed = number
        return True

    def _commit(self, line: Line) -> bool:
        """Try to commit an epoch, in one step or in several."""
        assert self._run is not None
        units = line["units"]
        if len(units) == 1:
            done = self._report(self._run, line, units, commit=True)
        else:
            steps = zip(parts(line), (units[:1], units[1:]), strict=True)
            done = all(self._report(self._run, part, names, commit=False) for part, names in steps)
            done = done and self._confirm(self._run, line["epoch"], units)
        if done:
            self.committed = line["epoch"]
        elif self.random.random() < _HALF or self._was_refused:
            self._run = None
        return done

    def _report(self, run: Producer, line: Line, units: list[str], commit: bool) -> bool:
        def work() -> dict[str, Any]:
            reported = _filled(run.epoch(line["epoch"]), line).report(units, commit=commit)
            return {"outcome": reported.outcome.name, "last_seq": reported.last_seq}

        answer = self.call("commit" if commit else "report", work, producer=self._producer, epoch=line["epoch"])
        self._was_refused = answer is None
        return answer is not None and answer["outcome"] != Reply.PARTIAL_DUPLICATE.name

    def _confirm(self, run: Producer, number: int, units: list[str]) -> bool:
        def work() -> dict[str, Any]:
            return {"outcome": "COMMITTED", "last_seq": run.commit(number, units)}

        answer = self.call("commit", work, producer=self._producer, epoch=number)
        self._was_refused = answer is None
        return answer is not None


def _filled(report: Report, line: Line) -> Report:
    for scope, name, end_time, segment, xor, sent, received in line["entries"]:
        report.add(segment, scope, name, xor, sent, received, end_time)
    for promise in line["promises"]:
        match promise:
            case ["frontier", front, _, time_]:
                report.frontier(front, time_)
            case ["finish", front]:
                report.finish(front)
            case ["close", front, scope, name, end_time]:
                report.close(scope, name, end_time, front or None)
    return report


@contextmanager
def in_threads(*works: Callable[[], None]) -> Iterator[list[threading.Thread]]:
    """Run work in threads, and wait for them; an error in one of them is raised."""
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
