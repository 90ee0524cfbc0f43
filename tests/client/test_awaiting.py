"""Waiting in an event loop: what `wait_for_end` and `wait_for_progress` do, without a thread for each wait."""

from __future__ import annotations

import asyncio
import threading
from itertools import count

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.client import Ended, TrackerClient, TrackerError, TrackerUnavailable, WrongJobError

_runs = count()


def end(client: TrackerClient, job: str, *names: str, time: int | None = None) -> None:
    """End substreams of the scope ``s``; with a time, everything up to it."""
    report = client.open_producer(job, "till", run=f"run-{next(_runs)}").epoch()
    for name in names:
        report.close("s", name)
    if time is not None:
        report.frontier("gate", time)
    report.report(commit=True)


def test_many_ends_are_awaited_without_threads_and_across_a_restart(server: Server) -> None:
    names = [f"n{number}" for number in range(300)]

    async def ends() -> list[Ended]:
        with TrackerClient(server.address) as client:
            client.define_job(spec("job"))
            await asyncio.to_thread(end, client, "job", names[0])
            before = threading.active_count()
            waiting = [asyncio.create_task(client.await_end("job", "raw", "s", name)) for name in names]
            assert (await waiting[0]).name == "n0", "it has ended before"
            await asyncio.to_thread(server.restart)
            assert threading.active_count() <= before + 5
            await asyncio.to_thread(end, client, "job", *names[1:])
            return await asyncio.gather(*waiting)

    assert [each.name for each in asyncio.run(ends())] == names


@pytest.mark.thorough
def test_progress_is_awaited_across_a_restart(server: Server) -> None:
    async def come() -> int:
        with TrackerClient(server.address) as client:
            client.define_job(spec("job", fronts=["gate"], progress=True))
            waiting = asyncio.create_task(client.await_progress("job", "raw", 20))
            await asyncio.to_thread(end, client, "job", time=10)
            await asyncio.to_thread(server.restart)
            await asyncio.to_thread(end, client, "job", time=30)
            return await waiting

    assert asyncio.run(come()) == 30


def test_a_wait_of_no_time_finds_what_has_ended(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    end(client, job, "n")
    assert asyncio.run(client.await_end(job, "raw", "s", "n", timeout=0)).name == "n"
    assert client.wait_for_end(job, "raw", "s", "n", timeout=0).name == "n"


def test_a_wait_ends_when_it_can_come_to_nothing(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    with pytest.raises(TimeoutError, match="'n' of scope 's' has not ended on 'raw'"):
        asyncio.run(client.await_end(job, "raw", "s", "n", timeout=0.2))
    with pytest.raises(TrackerError, match="UNKNOWN_SEGMENT"):
        asyncio.run(client.await_end(job, "nowhere", "s", "n"))
    with pytest.raises(WrongJobError, match="progress=True"):
        asyncio.run(client.await_progress(job, "raw", 7))
    client.define_job(spec(f"{job}-2", fronts=["gate"], progress=True))
    with pytest.raises(TimeoutError, match="has announced no progress yet"):
        asyncio.run(client.await_progress(f"{job}-2", "raw", 7, timeout=0.2))


def test_a_tracker_that_stays_away_ends_a_wait(server: Server) -> None:
    server.kill()
    with TrackerClient(server.address, retry_for=0.2) as client:
        with pytest.raises(TrackerUnavailable, match="has not answered Await"):
            asyncio.run(client.await_end("job", "raw", "s", "n"))
        with pytest.raises(TimeoutError):
            asyncio.run(client.await_end("job", "raw", "s", "n", timeout=0.01))
        with pytest.raises(TrackerUnavailable, match="has not answered GetJob"):
            asyncio.run(client.await_progress("job", "raw", 7))


def test_a_wait_that_is_cancelled_leaves_no_call(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))

    async def cancelled() -> None:
        waiting = asyncio.create_task(client.await_end(job, "raw", "s", "n"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancelled())
    end(client, job, "n")
    assert client.wait_for_end(job, "raw", "s", "n", timeout=30).name == "n"
