"""A tracker that may have been replaced answers nothing from its own state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.processes import Line, Server
from tests.journal.redis_server import RedisServer, needs_redis
from tests.server.test_redis import in_flight, send, start
from tracker.client import JobSpec, TrackerClient, TrackerUnavailable
from tracker.journal import open_journal
from tracker.journal.redis.journal import RedisJournal
from tracker.server.app import Options, Started, run

pytestmark = needs_redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


@pytest.fixture
def wire(redis: RedisServer) -> Iterator[Line]:
    line = Line(f"127.0.0.1:{redis.port}")
    yield line
    line.close()


@pytest.fixture
def old(wire: Line, tmp_path: Path) -> Iterator[Server]:
    """Yield a tracker that can be cut off from Redis."""
    server = Server(tmp_path, f"redis://{wire.address}/0?lease=1")
    yield server
    server.kill()


@pytest.fixture
def new(redis: RedisServer, old: Server, tmp_path: Path) -> Iterator[Server]:
    """Yield the standby of `old`."""
    (tmp_path / "new").mkdir()
    server = Server(tmp_path / "new", redis.address(), "--standby", waits=True)
    yield server
    server.kill()


@pytest.mark.thorough
def test_nobody_gets_answers_of_a_tracker_that_was_replaced(wire: Line, old: Server, new: Server) -> None:
    with TrackerClient(f"{old.address}+{new.address}", retry_for=300) as client:
        start(client)
        wire.hold()
        send(client, 1)  # at the new one
        client.define_job(JobSpec(job="later", deployment="d1", segments={"raw": []}))
    with TrackerClient(old.address, retry_for=0, timeout=30) as client:
        with pytest.raises(TrackerUnavailable, match="cannot find out whether it still leads"):
            in_flight(client)
        with pytest.raises(TrackerUnavailable, match="cannot find out whether it still leads"):
            client.job("later")  # which does not exist here
        with pytest.raises(TrackerUnavailable):
            client.open_producer("later", "q", "r1")
    with TrackerClient(f"{old.address}+{new.address}", retry_for=300) as client:
        assert in_flight(client) == 1


@pytest.mark.thorough
def test_watchers_of_a_tracker_that_was_cut_off_go_to_the_leader(wire: Line, old: Server, new: Server) -> None:
    both = f"{new.address}+{old.address}"
    with TrackerClient(f"{old.address}+{new.address}", retry_for=300) as client:
        start(client)
        producer = client.producer("flights", "q", "r1")

        def end(number: int) -> None:
            epoch = producer.epoch(number)
            epoch.close("LGA", str(number))
            epoch.report(commit=True)

        with TrackerClient(both, retry_for=300) as reading, reading.watch("flights") as watch:
            end(1)
            assert next(watch).seq == 1
            waited = []
            waiting = threading.Thread(
                target=lambda: waited.append(reading.wait_for_end("flights", "raw", "LGA", "2")), daemon=True
            )
            waiting.start()
            wire.hold()
            end(2)
            assert next(watch).seq == 2
            waiting.join()
            assert waited[0].name == "2"


def test_a_tracker_not_replaced_answers_again_once_it_reaches_its_journal(wire: Line, old: Server) -> None:
    with TrackerClient(old.address, retry_for=300, timeout=30) as client:
        start(client)
        wire.hold()
        with pytest.raises(TrackerUnavailable), TrackerClient(old.address, retry_for=0) as impatient:
            in_flight(impatient)
        wire.release()
        assert in_flight(client) == 0


def test_a_standby_that_another_one_has_outrun_stands_by_again(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = RedisJournal.recover
    others: list[Any] = []

    def outrun(journal: RedisJournal, *more: Any) -> Any:
        """Let the lease run out between the lease and the claim, and another tracker take the journal."""
        if not others:
            redis.client().delete("{tracker}:lease")
            others.append(open_journal(redis.address()))
            recover(others[0])
            threading.Timer(1.0, others[0].close).start()
        return recover(journal, *more)

    monkeypatch.setattr(RedisJournal, "recover", outrun)
    serves: list[Started] = []

    async def serve() -> None:
        stop = asyncio.Event()

        def ready(started: Started) -> None:
            serves.append(started)
            stop.set()

        await run(Options("127.0.0.1:0", redis.address(), standby=True), stop, ready)

    asyncio.run(serve())
    assert serves
