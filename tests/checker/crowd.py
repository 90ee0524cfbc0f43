"""Groups of clients: each does the work of one job after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from tests.checker.answering import Answering
from tests.checker.clients import Committer, in_threads
from tests.checker.flow import Flow
from tests.checker.history import History
from tests.checker.readers import Reader, Watcher, see_all, seen
from tests.model.lines import event_of
from tracker.client import TrackerClient

_PATIENCE_S: Final = (1.5, 4.0, 30.0)  # for which the clients of a group repeat a call
_PATIENT_S: Final = 600.0


@dataclass(frozen=True)
class Size:
    """Number of clients.

    Args:
        groups: of clients with a job at a time.
        producers: in each group.
        epochs: that each producer commits in a job.
        patient: whether all of them repeat their calls for as long as it takes.
    """

    groups: int = 2
    producers: int = 3
    epochs: int = 15
    patient: bool = False


class Crowd:
    """All clients.

    Args:
        addresses: of the tracker, for each group: for those who report, and for those who read. They differ, so that
            not all clients of a job find out at the same time where the tracker is.
        size: how many there are.
        seed: decides what they do.
        history: notes what they do.
        answering: tells which process has answered.
    """

    def __init__(
        self, addresses: Sequence[tuple[str, str]], size: Size, seed: int, history: History, answering: Answering
    ) -> None:
        self._addresses = addresses
        self._size = size
        self._seed = seed
        self._history = history
        self._answering = answering
        self._ends = threading.Event()  # no group takes up another job
        self._gives_up = threading.Event()
        self._failed: list[BaseException] = []
        self.jobs: list[str] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=[place], name=f"group {place}", daemon=True)
            for place in range(size.groups)
        ]

    def start(self) -> None:
        """Let the clients work."""
        for thread in self._threads:
            thread.start()

    def finish(self, within: float) -> list[str]:
        """Wait until the jobs in hand are done. Return those who are not done within some seconds."""
        self._ends.set()
        until = time.monotonic() + within
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        self._gives_up.set()
        for thread in self._threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
        return stuck

    def look_at_the_end(self, address: str) -> None:
        """Note the final state of each job."""
        with TrackerClient(address, retry_for=_PATIENT_S) as client:
            there = set(client.jobs())
            for job in self.jobs:
                if job not in there:
                    self._history.note("end", "final", job, {}, log_id="", events=[], times=[], status={})
                    continue
                page = client.list_events(job)
                log_id, found = page.log_id, list(page.events)
                while page.events:
                    page = client.list_events(job, after_seq=page.last_seq, log_id=log_id)
                    found += page.events
                self._history.note(
                    "end",
                    "final",
                    job,
                    {},
                    log_id=log_id,
                    events=[[event.seq, event_of(event.kind)] for event in found],
                    times=[event.at.timestamp() for event in found],
                    status=seen(client.job(job)),
                )

    def _guarded(self, place: int) -> None:
        """Do one job after the other; the next one begins while watchers still read the last one's events."""
        random = Random(f"{self._seed} {place}")
        jobs: list[threading.Thread] = []
        while not self._ends.is_set() and not self._failed:
            is_committed = threading.Event()
            jobs.append(
                threading.Thread(target=self._caught, args=[place, len(jobs), Random(random.random()), is_committed])
            )
            jobs[-1].start()
            is_committed.wait()
        for job in jobs:
            job.join()

    def _caught(self, place: int, generation: int, random: Random, is_committed: threading.Event) -> None:
        try:
            self._do(place, generation, random, is_committed)
        except BaseException as error:
            self._failed.append(error)
        finally:
            is_committed.set()

    def _do(self, place: int, generation: int, random: Random, is_committed: threading.Event) -> None:
        """Do the work of one job."""
        size, job = self._size, f"g{place}-{generation}"
        flow = Flow(job, Random(f"{self._seed} {job}"), size.producers, size.epochs)
        to_report, to_read = self._addresses[place]
        patience = (_PATIENT_S,) if size.patient else _PATIENCE_S
        with (
            TrackerClient(to_report, timeout=5, retry_for=random.choice(patience)) as reporting,
            TrackerClient(to_read, timeout=5, retry_for=random.choice(patience)) as reading,
        ):
            more = (flow, self._history, self._answering)
            committers = [
                Committer(number, f"{job}/p{number}", reporting, *more, Random(f"{self._seed} {job} {number}"))
                for number in range(size.producers)
            ]
            self.jobs.append(job)
            while not committers[0].define():
                if self._gives_up.is_set():
                    return
                committers[0].pause()
            watchers = [
                Watcher(reopens, f"{job}/w{int(reopens)}", reading, *more, Random(f"{self._seed} {job} w"))
                for reopens in (False, True)
            ]
            for watcher in watchers:
                watcher.thread.start()
            reader = Reader(f"{job}/r", reading, *more, Random(f"{self._seed} {job} r"))
            try:
                self._work(committers, reader, watchers, is_committed)
            finally:
                for watcher in watchers:
                    watcher.close()

    def _work(
        self,
        committers: Sequence[Committer],
        reader: Reader,
        watchers: Sequence[Watcher],
        is_committed: threading.Event,
    ) -> None:
        epochs, gives_up, done = self._size.epochs, self._gives_up.is_set, threading.Event()

        def commit() -> None:
            try:
                with in_threads(*(partial(each.work, range(epochs), gives_up) for each in committers)):
                    pass
                committers[0].work(range(epochs, committers[0].flow.last(0) + 1), gives_up)
                is_committed.set()
                see_all(reader, watchers, committers[0].define, gives_up)
            finally:
                done.set()

        reading: Callable[[], None] = partial(reader.work, done.is_set)
        with in_threads(commit, reading):
            pass
