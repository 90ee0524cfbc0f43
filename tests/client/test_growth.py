"""A tracker does not grow with all that it has seen: with marks, producers, runs and a reader, batch after batch."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from tests.client.processes import Server
from tracker.client import JobSpec, TrackerClient

MOMENT = timedelta(seconds=1)
TENANTS = 20
TOMBSTONE = 16  #: bytes
MIB = 1 << 20


class Life:
    """A source closes each tenant's window by name, two queries pass its rows on, and a reader acknowledges the ends.

    One tenant never ends. Every hundred batches the queries start again; every hundred, one ends for good.
    """

    def __init__(self, client: TrackerClient, job: str, remember: timedelta | None) -> None:
        self.client, self.job = client, job
        graph = {"in": ["clean"], "clean": []}
        spec = JobSpec(job=job, deployment="d1", segments=graph, fronts=["in"], retention=MOMENT, remember=remember)
        client.define_job(spec)
        self.reader = client.subscribe(job, "release", ["clean"])
        self.batches = 0
        self.ends = 0

    def live(self, batches: int) -> None:
        """Live through so many batches more."""
        for number in range(self.batches, self.batches + batches):
            if number % 100 == 0:
                names = ("source", "cleaning", "release", f"passing-{number}")
                self.producers = [self.client.open_producer(self.job, name, f"run-{number}") for name in names]
                self.producers.pop().close()
                self.client.forget_producer(self.job, f"passing-{number}")
            source, cleaning, releasing = (producer.epoch(number) for producer in self.producers)
            windows = [(f"tenant-{each}", f"window-{number}", number) for each in range(TENANTS)]
            stalled = ("stalled", f"window-{number // 1000}", number // 1000)
            for label, (scope, name, end) in enumerate([*windows, stalled], 1 + 100 * number):
                source.sent("in", scope, name, label, end)
                cleaning.received("in", scope, name, label, end)
                cleaning.sent("clean", scope, name, label, end)
                releasing.received("clean", scope, name, label, end)
            for scope, name, end in windows:
                source.close(scope, name, end, front=None)
            for report in (source, cleaning, releasing):
                report.report(commit=True)
            page = self.client.list_events(self.job, self.reader.acknowledged, segments=["clean"])
            self.ends += len(page.events)
            self.reader.ack(page.last_seq)
        self.batches += batches

    def rest(self) -> None:
        """Wait until what was to be forgotten is forgotten."""
        while True:
            status = self.client.job(self.job)
            if not status.ended_substreams and status.first_seq > status.last_seq:
                return
            time.sleep(0.1)


def journal(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("tracker.db*"))


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("remember", [None, MOMENT], ids=["for ever", "for a second"])
@pytest.mark.parametrize("batches", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_tracker_keeps_16_bytes_at_most_of_what_has_ended(
    tmp_path: Path, batches: int, remember: timedelta | None
) -> None:
    server = Server(tmp_path)
    try:
        with TrackerClient(server.address) as client:
            life = Life(client, "job", remember)
            life.live(batches // 10)
            life.rest()
            early, first, written = server.memory(), client.job("job"), journal(tmp_path)
            life.live(batches - batches // 10)
            life.rest()
            late, last = server.memory(), client.job("job")
            print(f"{batches // 10} batches: {early / MIB:.1f} MiB, {first.tombstones} tombstones, {written} bytes")
            print(f"{batches} batches: {late / MIB:.1f} MiB, {last.tombstones} tombstones, {journal(tmp_path)} bytes")
            assert life.ends == TENANTS * batches
            assert last.open_substreams == 1 + (batches - 1) // 1000
            assert len(last.producers) == 3
            assert client.subscriptions("job")[0].retained == 0
            if remember is None:
                assert last.tombstones == TENANTS * batches
            elif batches > 1000:  # old ones are swept seldom, so few batches show nothing
                assert last.tombstones < TENANTS * batches / 2
            assert late - early < 30 * MIB + 2 * TOMBSTONE * TENANTS * batches
    finally:
        server.kill()
