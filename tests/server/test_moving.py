"""The leader hands over on request: no call fails, nothing is lost, and it stands by afterwards."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.client.processes import TRACKER, Server
from tests.failover.pair import Pair, wait_for_readiness
from tests.journal.object_stores import Place, bucket, directory, s3
from tests.journal.redis_server import PROGRAM, RedisServer
from tests.server.test_redis import SPEC, in_flight, send, start
from tracker.client import JobSpec, TrackerClient, TrackerError, label

__all__ = ["bucket", "directory", "s3"]  # fixtures

_CLIENTS = 4


@pytest.fixture(
    params=[
        "redis",
        pytest.param("sqlite", marks=pytest.mark.slow),
        pytest.param("directory", marks=pytest.mark.slow),
        pytest.param("bucket", marks=pytest.mark.slow),
    ]
)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    redis = None
    if request.param == "redis":
        if PROGRAM is None:
            pytest.skip("there is no redis-server here: `apt-get install redis-server` brings it")
        redis = RedisServer(tmp_path / "redis")
    if request.param in ("directory", "bucket"):
        where: Place = request.getfixturevalue(request.param)
        journal = where.address()
    else:
        journal = f"sqlite:{tmp_path / 'shared.db'}" if redis is None else redis.address()
    pair = Pair(tmp_path / "pair", journal)
    yield pair
    pair.end()
    if redis is not None:
        redis.kill()


def move(server: str) -> subprocess.CompletedProcess[str]:
    command = [*TRACKER, "leader", "move", "--server", server, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def work(server: str, number: int, stop: threading.Event) -> int:
    """Commit epochs of a job of its own and compare the tracker's counts. Return how many. No call may fail."""
    job = f"job-{number}"
    with TrackerClient(server, retry_for=300) as client:
        client.define_job(JobSpec(job=job, deployment="d1", segments=SPEC.segments))
        client.open_producer(job, "q", "r1")
        done = 0
        while not stop.is_set():
            epoch = client.producer(job, "q", "r1").epoch(done)
            epoch.sent("raw", "LGA", "day", label(str(done)))
            epoch.report(commit=True)
            done += 1
            assert client.job(job).in_flight == done
    return done


@pytest.mark.thorough
def test_two_moves_while_clients_work_and_no_call_fails(pair: Pair) -> None:
    """The second move brings the leader back: the first one stands by after it has handed over."""
    stop = threading.Event()
    with TrackerClient(pair.address, retry_for=300) as client, ThreadPoolExecutor(_CLIENTS) as threads:
        working = [threads.submit(work, pair.address, number, stop) for number in range(_CLIENTS)]
        leaders = [client.server_info().instance]
        try:
            for leads in (1, 0):
                moved = move(pair.address)
                assert moved.returncode == 0, moved.stderr
                leaders.append(json.loads(moved.stdout)["instance"])
                wait_for_readiness(pair.metrics[leads], ready=True)
                wait_for_readiness(pair.metrics[1 - leads], ready=False, word="standby")
        finally:
            stop.set()
        for number, worker in enumerate(working):
            assert worker.result() == client.job(f"job-{number}").in_flight > 0
        assert len(set(leaders)) == 3
        assert client.server_info().instance == leaders[-1]


@pytest.mark.slow
def test_a_watch_goes_on_after_a_move(pair: Pair) -> None:
    with TrackerClient(pair.address, retry_for=300) as client:
        start(client)
        with client.watch("flights") as watch, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: [next(watch).seq for _ in range(6)])
            for number in range(1, 7):
                epoch = client.producer("flights", "q", "r1").epoch(number)
                epoch.close("LGA", str(number))
                epoch.sent("raw", "LGA", str(number), label(str(number)))
                epoch.received("raw", "LGA", str(number), label(str(number)))
                epoch.report(commit=True)
                if number == 3:
                    client.move_leader()
            assert reading.result() == list(range(1, 7))


@pytest.mark.parametrize("journal", ["memory", pytest.param("sqlite", marks=pytest.mark.slow)])
def test_without_a_standby_nothing_is_changed(journal: str, tmp_path: Path) -> None:
    server = Server(tmp_path, journal)
    with TrackerClient(server.address) as client:
        start(client)
        with pytest.raises(TrackerError, match="NO_STANDBY"):
            client.move_leader()
        send(client, 1)
        assert in_flight(client) == 1
    moved = move(server.address)
    assert (moved.returncode, moved.stdout) == (1, "")
    assert "NO_STANDBY" in moved.stderr
    server.kill()


@pytest.mark.slow
def test_a_standby_that_has_died_gets_nothing(pair: Pair) -> None:
    pair.servers[1].kill()
    with TrackerClient(pair.address, retry_for=300) as client:
        start(client)
        if "redis" in pair.servers[0].journal:  # there it counts as the standby until its lease has run out
            wait_until_it_is_forgotten(pair)
        with pytest.raises(TrackerError, match="NO_STANDBY"):
            client.move_leader()
        send(client, 1)
        assert in_flight(client) == 1


def wait_until_it_is_forgotten(pair: Pair) -> None:
    from tracker.journal.redis import RedisAddress
    from tracker.journal.redis.address import connect
    from tracker.journal.redis.scripts import Keys

    address = RedisAddress.parse(pair.servers[0].journal)
    client = connect(address)
    while client.exists(Keys(address).standby):
        time.sleep(0.02)
    client.close()


@pytest.mark.slow
def test_a_leader_without_standby_in_its_command_ends_with_0(tmp_path: Path) -> None:
    journal = f"sqlite:{tmp_path / 'shared.db'}"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    leader = Server(tmp_path / "a", journal)
    standby = Server(tmp_path / "b", journal, "--standby", waits=True)
    address = f"{leader.address}+{standby.address}"
    with TrackerClient(address, retry_for=300) as client:
        start(client)
        while (moved := move(address)).returncode:
            assert "NO_STANDBY" in moved.stderr  # it has not come so far yet
        assert leader.ended() == 0
        send(client, 1)
        assert in_flight(client) == 1
    standby.kill()
