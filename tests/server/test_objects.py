"""A tracker whose journal is in an object store: real processes of both, killed, frozen, and replaced."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.services.s3 import S3
from tests.client.processes import TRACKER, Server
from tests.failover.pair import Pair, wait_for_readiness
from tests.journal.object_stores import Place, bucket, directory, s3
from tests.server.test_redis import in_flight, send, start
from tracker.client import TrackerClient

__all__ = ["bucket", "directory", "s3"]  # fixtures


@pytest.fixture
def tracker(bucket: Place, tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, bucket.address())
    yield server
    server.kill()


@pytest.fixture(params=["bucket", pytest.param("directory", marks=pytest.mark.slow)])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    where: Place = request.getfixturevalue(request.param)
    pair = Pair(tmp_path / "pair", where.address())
    yield pair
    pair.end()


@pytest.mark.thorough
def test_what_was_acknowledged_survives_the_death_of_tracker_and_store(tracker: Server, s3: S3) -> None:
    with TrackerClient(tracker.address, retry_for=300) as client:
        start(client)
        for number in range(1, 16):
            if number == 5:
                tracker.restart()
            if number == 10:
                s3.kill()
                back = threading.Timer(0.5, s3.start)
                back.start()
                send(client, number)
                back.join()
            else:
                send(client, number)
        assert in_flight(client) == 15
        tracker.restart()
        assert in_flight(client) == 15


@pytest.mark.slow
def test_a_second_tracker_on_the_same_journal_is_refused(tracker: Server, bucket: Place) -> None:
    second = subprocess.run(
        [*TRACKER, "serve", "--listen", "127.0.0.1:0", "--journal", bucket.address()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1
    assert "is in use by another tracker (process" in second.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
def test_the_standby_takes_over_and_nothing_is_lost_or_doubled(pair: Pair, end: str) -> None:
    leader, other = pair.servers
    with TrackerClient(pair.address, retry_for=300) as client:
        start(client)
        for number in range(1, 16):
            send(client, number)
            if number == 5:
                getattr(leader, end)()
            if number == 10:
                leader.start(waits=True)
                getattr(other, end)()
        assert in_flight(client) == 15
    wait_for_readiness(pair.metrics[0], ready=True)


@pytest.mark.thorough
def test_a_leader_that_sleeps_is_replaced_and_ends_when_it_wakes_up(pair: Pair) -> None:
    leader, _ = pair.servers
    with TrackerClient(pair.address, retry_for=300) as client:
        start(client)
        send(client, 1)
        leader.freeze()
        for number in range(2, 6):
            send(client, number)
        leader.thaw()
        assert leader.ended() == 1
        assert "another tracker has taken over" in leader.log
        send(client, 6)
        assert in_flight(client) == 6
