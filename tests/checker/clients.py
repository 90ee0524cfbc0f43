"""Clients that do a job's work and note what they see: producers, watchers and readers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any, Final

from tests.checker.answering import Answering
from tests.checker.flow import SEGMENTS, Flow, Line
from tests.checker.history import History
from tests.model.lines import event_of
from tracker.client import JobSpec, Producer, Report, TrackerClient, TrackerError, TrackerUnavailable
from tracker.contract.callers import JobStatus
from tracker.contract.values import Outcome as Reply

_PAUSE_S: Final = 0.02  # between two epochs of a producer, and two look-ups of a reader: at most twice as long
_HALF: Final = 0.5


class Client:
    """What the clients of a job have in common.

    Args:
        name: who it is, in the history.
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
        """Makes a call and notes how it came out; None: it was refused, or its outcome is unknown."""
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
        """Defines the job, if it is not there."""
        spec = JobSpec(job=self.flow.job, deployment="d1", segments=SEGMENTS, fronts=self.flow.fronts, progress=True)

        def work() -> dict[str, Any]:
            defined = self.client.define_job(spec)
            return {"log_id": defined.log_id, "created": defined.created, "last_seq": defined.last_seq}

        return self.call("define", work, fronts=self.flow.fronts) is not None

    def pause(self) -> None:
        """Waits a little."""
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
        self.committed = -1  #: the last epoch of which it knows that it is committed

    def work(self, epochs: range, is_stopped: Callable[[], bool]) -> None:
        """Commits epochs, until it is stopped."""
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
        """Starts a run, which learns what is committed."""
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
        """Tries to commit an epoch, in one step or in several."""
        assert self._run is not None
        units = line["units"]
        if len(units) == 1:
            done = self._report(self._run, line, units, commit=True)
        else:
            cut = len(line["entries"]) // 2
            parts = [
                (line | {"entries": line["entries"][:cut], "promises": []}, units[:1]),
                (line | {"entries": line["entries"][cut:]}, units[1:]),
            ]
            done = all(self._report(self._run, part, names, commit=False) for part, names in parts)
            done = done and self._confirm(self._run, line["epoch"], units)
        if done:
            self.committed = line["epoch"]
        elif self.random.random() < _HALF or self._was_refused:
            self._run = None
        return done

    _was_refused = False

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
                report.close(scope, name, end_time, front)
    return report


class Watcher(Client):
    """Watches a job's events in a thread, from the first on.

    Args:
        reopens: whether it ends its watch again and again, and goes on with another one from where it was.
        more: as for `Client`.
    """

    def __init__(self, reopens: bool, *more: Any) -> None:
        super().__init__(*more)
        self._reopens = reopens
        self._closed = threading.Event()
        self._watches = count(1)
        self._watch: Any = None
        self.seq = 0  #: the last event that it has seen
        self._log_id = ""
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def close(self) -> None:
        """Ends it."""
        self._closed.set()
        if self._watch is not None:
            self._watch.close()
        self.thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            watch = f"{self.name}/{next(self._watches)}"
            try:
                self._read(watch)
            except TrackerUnavailable:
                continue
            except TrackerError as error:
                asked = {"watch": watch, "after": self.seq}
                operation = self.history.begin(self.name, "event", self.flow.job, **asked)
                self.history.end(operation, "refused", reason=error.reason, log_id=self._log_id)
                self.seq, self._log_id = 0, ""
                self._closed.wait(_PAUSE_S)

    def _read(self, name: str) -> None:
        left = self.random.randint(1, 40) if self._reopens else None
        with self.client.watch(self.flow.job, after_seq=self.seq, log_id=self._log_id) as watch:
            self._watch = watch
            if self._closed.is_set():
                return
            for event in watch:
                self.seq, self._log_id = event.seq, watch.log_id
                body = event_of(event.kind)
                asked = {"watch": name}
                self.history.note(
                    self.name, "event", self.flow.job, asked, seq=event.seq, log_id=watch.log_id, body=body
                )
                left = None if left is None else left - 1
                if left == 0:
                    return


class Reader(Client):
    """Looks things up, until it is stopped."""

    _newest = 0  # event that it has seen

    def work(self, is_stopped: Callable[[], bool]) -> None:
        """Looks things up."""
        while not is_stopped():
            self.random.choice([self.status, self.status, self.list, self._await])()
            self.pause()

    def status(self) -> None:
        """Looks at the job."""
        answer = self.call("status", lambda: seen(self.client.job(self.flow.job)))
        if answer is not None:
            self._newest = answer["last_seq"]

    def list(self) -> None:
        """Reads some events."""
        after = self.random.randint(0, self._newest)

        def work() -> dict[str, Any]:
            page = self.client.list_events(self.flow.job, after_seq=after)
            events = [[event.seq, event_of(event.kind)] for event in page.events]
            return {"last_seq": page.last_seq, "log_id": page.log_id, "events": events}

        self.call("list", work, after=after)

    def _await(self) -> None:
        producer, epoch = self.random.randrange(self.flow.producers), self.random.randrange(self.flow.epochs)
        asked = {"segment": self.random.choice(list(SEGMENTS)), "scope": f"p{producer}", "name": str(epoch)}

        def work() -> dict[str, Any]:
            try:
                return {"body": event_of(self.client.wait_for_end(self.flow.job, **asked, timeout=0.5))}
            except TimeoutError:
                return {"body": None}

        self.call("await", work, **asked)


def seen(status: JobStatus) -> dict[str, Any]:
    """What is noted, and compared, of a job's status."""
    return {
        "last_seq": status.last_seq,
        "log_id": status.log_id,
        "open": status.open_substreams,
        "ended": status.ended_substreams,
        "in_flight": status.in_flight,
        "committed": {each.producer: each.committed_epoch for each in status.producers},
    }


@contextmanager
def in_threads(*works: Callable[[], None]) -> Iterator[list[threading.Thread]]:
    """Runs work in threads, and waits for them; an error in one of them is raised."""
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
