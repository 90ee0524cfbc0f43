"""A tracker whose journal is in Redis: real processes of both, killed, frozen, and replaced."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.services.processes import free_port
from tests.client.processes import TRACKER, Server
from tests.failover.pair import wait_for_readiness
from tests.journal.redis_server import RedisServer, needs_redis
from tracker.client import JobSpec, TrackerClient, TrackerUnavailable, label

pytestmark = needs_redis
SPEC = JobSpec(job="flights", deployment="d1", segments={"raw": []})


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


@pytest.fixture
def tracker(redis: RedisServer, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, redis.address())
    yield server
    server.kill()


def start(client: TrackerClient) -> None:
    client.define_job(SPEC)
    client.open_producer("flights", "q", "r1")


def send(client: TrackerClient, number: int) -> None:
    """Send one element of one substream, in an epoch of its own."""
    epoch = client.producer("flights", "q", "r1").epoch(number)
    epoch.sent("raw", "LGA", "day", label(str(number)))
    epoch.report(commit=True)


def in_flight(client: TrackerClient) -> int:
    return client.job("flights").in_flight


def test_what_was_acknowledged_survives_the_death_of_the_tracker(redis: RedisServer, tracker: Server) -> None:
    with TrackerClient(tracker.address) as client:
        start(client)
        for number in range(1, 21):
            send(client, number)
            if number % 7 == 0:
                tracker.restart()
        assert in_flight(client) == 20


@pytest.mark.thorough
def test_callers_wait_while_redis_is_away_and_nothing_is_lost_or_doubled(redis: RedisServer, tracker: Server) -> None:
    with TrackerClient(tracker.address, retry_for=300) as client:
        start(client)
        for number in range(1, 31):
            if number % 10 == 5:
                redis.kill()
                back = threading.Timer(0.5, redis.start)
                back.start()
                send(client, number)
                back.join()
            else:
                send(client, number)
        assert in_flight(client) == 30
        tracker.restart()
        assert in_flight(client) == 30


@pytest.mark.thorough
def test_a_silent_redis_makes_the_tracker_unready_until_it_answers(redis: RedisServer, tmp_path: Path) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    tracker = Server(tmp_path, redis.address(), "--metrics", metrics)
    try:
        with (
            TrackerClient(tracker.address, retry_for=300) as client,
            TrackerClient(tracker.address, retry_for=0) as looking,
        ):
            start(client)
            redis.freeze()
            sending = threading.Thread(target=send, args=[client, 1])
            sending.start()
            redis_is_missed = wait_for_readiness(metrics, ready=False)
            assert "journal" in redis_is_missed
            with pytest.raises(TrackerUnavailable, match="cannot find out whether it still leads"):
                looking.job("flights")
            impatient = TrackerClient(tracker.address, retry_for=0)
            with pytest.raises(TrackerUnavailable, match="the journal does not answer; nothing was changed"):
                impatient.define_job(SPEC)
            redis.thaw()
            wait_for_readiness(metrics, ready=True)
            sending.join()
            assert in_flight(client) == 1
    finally:
        redis.thaw()
        tracker.kill()


def test_a_second_tracker_on_the_same_journal_is_refused(redis: RedisServer, tracker: Server) -> None:
    second = subprocess.run(
        [*TRACKER, "serve", "--listen", "127.0.0.1:0", "--journal", redis.address()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert "is in use by another tracker (process" in second.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("idle", [True, False], ids=["idle", "writing"])
def test_a_tracker_whose_journal_was_taken_over_ends_with_the_reason(
    redis: RedisServer, tracker: Server, tmp_path: Path, idle: bool
) -> None:
    with TrackerClient(tracker.address) as client:
        start(client)
        send(client, 1)
    tracker.freeze()  # for longer than its lease
    (tmp_path / "second").mkdir()
    second = Server(tmp_path / "second", redis.address())
    tracker.thaw()
    try:
        if not idle:
            with TrackerClient(tracker.address, retry_for=1) as old, pytest.raises(TrackerUnavailable):
                send(old, 2)
        assert tracker.ended() == 1
        assert "another tracker has taken over" in tracker.log
        with TrackerClient(second.address) as client:
            assert in_flight(client) == 1
    finally:
        second.kill()
