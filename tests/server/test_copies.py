"""A copy of the state is the state after one command, whatever is carried out while it is made; when it is kept."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from tracker.journal import JournalError, MemoryJournal
from tracker.server import sequencer as sequencing
from tracker.server.lanes import Lanes
from tracker.server.limits import Limits
from tracker.server.measures import JobLabels, Measures
from tracker.server.replayable import RecoveredState, ReplayableState, Started
from tracker.server.sequencer import Clock, JournalHealth, Sequencer
from tracker.wire.codec import Method
from tracker.wire.gen import tracker_pb2 as wire

from .sequencing import submitted
from .tracking import report

JOBS = [f"job-{number}" for number in range(8)]


def test_a_copy_has_nothing_that_came_after_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks get a turn after each job that is copied, and commit an epoch of every job."""
    monkeypatch.setattr(sequencing, "_COPY_S", -1.0)

    async def run() -> list[tuple[int, ReplayableState]]:
        state = ReplayableState()
        state.start(Started("log", "", 10**12), 1)
        lanes = Lanes()
        measures = Measures(JobLabels(10, lambda _: True), lambda _: None)
        journal, health = MemoryJournal(), JournalHealth(lambda _: None, measures)
        written = sequencing.Snapshots(journal, measures, 1)
        recovered = RecoveredState(state, journal, 1)
        sequencer = Sequencer(recovered, lanes, Limits(), Clock(1), health, written, lambda *_: None)
        for job in JOBS:
            spec = wire.JobSpec(job=job, deployment="d1", segments=[wire.Segment(name="a")])
            submitted(sequencer, Method.DEFINE_JOB, wire.DefineJobRequest(spec=spec))
            submitted(sequencer, Method.OPEN_PRODUCER, wire.OpenProducerRequest(job=job, producer="p", run="r"))
        copies = []
        for epochs in itertools.count(step=100):
            copying = asyncio.create_task(sequencer.copy())
            for epoch in range(epochs, epochs + 100):
                await asyncio.sleep(0)
                if copying.done():
                    break
                for job in JOBS:
                    submitted(sequencer, Method.REPORT, report(epoch, job, commit=True))
            number, dump = await copying
            copies.append((number, ReplayableState(dump)))
            if len(copies) == 3:
                lanes.close()
                return copies
        raise AssertionError

    first = 1 + 2 * len(JOBS)
    for number, copy in asyncio.run(run()):
        epochs = [copy.tracker.view(job).status().open_substreams for job in JOBS]
        assert number == first + sum(epochs)
        assert len(set(epochs)) == 1


def test_a_snapshot_that_failed_is_tried_again_sooner_than_the_next_one() -> None:
    class Full(MemoryJournal):
        wanted, room = 0, False

        def snapshot(self, number: int, state: Any) -> int:
            self.wanted += 1
            if not self.room:
                raise JournalError("no space left on device")
            return super().snapshot(number, state)

    async def copy() -> tuple[int, Any]:
        return 1, {}

    async def run() -> None:
        journal = Full()
        kept = sequencing.Snapshots(journal, Measures(JobLabels(10, lambda _: True), lambda _: None), 400)

        async def bytes_until_the_next() -> int:
            before = journal.wanted
            for size in itertools.count(10, 10):
                kept.journaled(10, copy)
                await kept.idle()
                if journal.wanted > before:
                    return size
            raise AssertionError

        assert [await bytes_until_the_next() for _ in range(3)] == [400, 100, 100]
        journal.room = True
        assert [await bytes_until_the_next() for _ in range(2)] == [100, 400]
        kept.close()

    asyncio.run(run())
