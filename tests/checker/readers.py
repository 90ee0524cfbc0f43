"""Clients that look at a job: they watch its events, or look things up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from tests.checker.clients import Client
from tests.checker.flow import SEGMENTS
from tests.model.lines import event_of
from tracker.client import TrackerError, TrackerUnavailable
from tracker.contract.status import JobStatus

_PAUSE_S: Final = 0.02  # until a refused watch is opened again


class Watcher(Client):
    """A watcher of a job's events in a thread, from the first on.

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
        """End the watch."""
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
    """A reader that looks things up, until it is stopped."""

    _newest = 0  # event that it has seen

    def work(self, is_stopped: Callable[[], bool]) -> None:
        """Look things up."""
        while not is_stopped():
            self.random.choice([self.status, self.status, self.list, self._await])()
            self.pause()

    def status(self) -> dict[str, Any] | None:
        """Look at the job; None: there was no answer, or there is no job."""
        answer = self.call("status", lambda: seen(self.client.job(self.flow.job)))
        if answer is not None:
            self._newest = answer["last_seq"]
        return answer

    def list(self) -> None:
        """Read some events."""
        after = self.random.randint(0, self._newest)

        def work() -> dict[str, Any]:
            page = self.client.list_events(self.flow.job, after_seq=after)
            events = [[event.seq, event_of(event.kind)] for event in page.events]
            return {"last_seq": page.last_seq, "log_id": page.log_id, "events": events}

        self.call("list", work, after=after)

    def _await(self) -> None:
        producer, epoch = self.random.randrange(self.flow.producers), self.random.randrange(self.flow.epochs)
        segment = self.random.choice(list(SEGMENTS))
        asked: dict[str, Any] = {"segment": segment, "scope": f"p{producer}", "name": str(epoch)}

        def work() -> dict[str, Any]:
            try:
                return {"body": event_of(self.client.wait_for_end(self.flow.job, **asked, timeout=0.5))}
            except TimeoutError:
                return {"body": None}

        self.call("await", work, **asked)


def see_all(
    reader: Reader, watchers: Sequence[Watcher], define: Callable[[], object], is_stopped: Callable[[], bool]
) -> None:
    """Wait until watchers have seen all events of a job to which nobody reports any more.

    Events, or the whole job, may be lost meanwhile: then there are fewer to see, or the job is defined again.
    """
    while not is_stopped():
        status = reader.status()
        if status is None:
            define()
        elif min(each.seq for each in watchers) >= status["last_seq"]:
            return
        reader.pause()


def seen(status: JobStatus) -> dict[str, Any]:
    """Return the noted and compared part of a job's status."""
    return {
        "last_seq": status.last_seq,
        "log_id": status.log_id,
        "open": status.open_substreams,
        "ended": status.ended_substreams,
        "in_flight": status.in_flight,
        "committed": {each.producer: each.committed_epoch for each in status.producers},
    }
