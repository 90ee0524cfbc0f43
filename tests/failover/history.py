"""What clients did while trackers were replaced, and what must hold of it.

Each worker commits epochs, one after the other, each with one element of a substream of its own. In two epochs of three
the element is received, so the substream ends; in the third it is not, so it must never end. A watch reads all events
from the first on. Whatever happens to the trackers:

- an epoch that was confirmed is there at the end;
- each substream whose element was received ends once, with one element, and no other ends;
- the events have the numbers 1, 2, 3, … without a gap.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import suppress

from tracker.client import Ended, JobSpec, TrackerClient, label

JOB = "failover"


def is_received(epoch: int) -> bool:
    """Whether the element of an epoch is received."""
    return epoch % 3 != 0


class Worker(threading.Thread):
    """Commits epochs until it is stopped.

    Attributes:
        confirmed: the last epoch whose commit the tracker has confirmed; 0: none.
        answers: when each commit was answered, by the monotonic clock.
        error: what ended it early.
    """

    def __init__(self, client: TrackerClient, number: int) -> None:
        super().__init__(name=f"worker {number}", daemon=True)
        self._client = client
        self._is_over = threading.Event()
        self.scope = f"w{number}"
        self.confirmed = 0
        self.answers: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            producer = self._client.open_producer(JOB, self.scope, "r1")
            while not self._is_over.is_set():
                number = self.confirmed + 1
                epoch, name = producer.epoch(number), str(number)
                epoch.sent("raw", self.scope, name, label(self.scope, number))
                if is_received(number):
                    epoch.received("raw", self.scope, name, label(self.scope, number))
                epoch.close(self.scope, name)
                epoch.report(commit=True)
                self.confirmed = number
                self.answers.append(time.monotonic())
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        """Lets it end after the epoch in hand."""
        self._is_over.set()
        self.join()


class Watcher(threading.Thread):
    """Reads all events of the job.

    Attributes:
        events: those it has read, in order, with their numbers.
        error: what ended it early.
    """

    def __init__(self, client: TrackerClient) -> None:
        super().__init__(name="watcher", daemon=True)
        self._watch = client.watch(JOB)
        self.events: list[tuple[int, Ended]] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        with suppress(StopIteration):
            try:
                while True:
                    event = next(self._watch)
                    assert isinstance(event.kind, Ended), event
                    self.events.append((event.seq, event.kind))
            except StopIteration:
                raise
            except BaseException as error:
                self.error = error

    def stop(self, expected: int) -> None:
        """Waits until it has read so many events, and for a surplus for a while, and ends it."""
        while len(self.events) < expected and self.error is None:
            time.sleep(0.05)
        time.sleep(0.2)
        self._watch.close()
        self.join()


def begin(client: TrackerClient) -> None:
    """Defines the job."""
    client.define_job(JobSpec(job=JOB, deployment="d1", segments={"raw": []}))


def expected_ends(workers: list[Worker]) -> int:
    """How many substreams have to end."""
    return sum(is_received(epoch) for worker in workers for epoch in range(1, worker.confirmed + 1))


def problems(client: TrackerClient, workers: list[Worker], watcher: Watcher) -> list[str]:
    """What does not hold; empty: everything does."""
    found = [f"{each.name} ended: {each.error!r}" for each in (*workers, watcher) if each.error is not None]
    ends = Counter((ended.scope, ended.name) for _, ended in watcher.events)
    wanted = {
        (each.scope, str(epoch)) for each in workers for epoch in range(1, each.confirmed + 1) if is_received(epoch)
    }
    found += [f"the end of {each} is missing" for each in sorted(wanted - set(ends))[:5]]
    found += [f"{each} has ended, and its element was not received" for each in sorted(set(ends) - wanted)[:5]]
    found += [f"{each} has ended {count} times" for each, count in ends.items() if count > 1][:5]
    if (numbers := [seq for seq, _ in watcher.events]) != list(range(1, len(numbers) + 1)):
        found.append("the events' numbers have a gap, or are out of order")
    if any(ended.elements != 1 for _, ended in watcher.events):
        found.append("an end has a wrong number of elements")
    status = client.job(JOB)
    open_ones = sum(each.confirmed - sum(is_received(n) for n in range(1, each.confirmed + 1)) for each in workers)
    if (status.in_flight, status.open_substreams) != (open_ones, open_ones):
        found.append(f"{status.in_flight} in flight and {status.open_substreams} open, where {open_ones} were sent")
    committed = {each.producer: each.committed_epoch for each in status.producers}
    for worker in workers:
        if committed.get(worker.scope) != worker.confirmed:
            found.append(f"{worker.scope} was confirmed {worker.confirmed}, and has {committed.get(worker.scope)}")
    return found
