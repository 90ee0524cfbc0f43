"""A standby takes over when the leader dies, sleeps or stops, and clients go on without a word in the job."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.failover.pair import Pair, wait_for_readiness
from tests.journal.redis_server import PROGRAM, RedisServer
from tests.server.test_redis import in_flight, send, start
from tracker.client import TrackerClient, TrackerUnavailable, connection, label


@pytest.fixture(params=[pytest.param("redis", marks=pytest.mark.thorough), "sqlite"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    if request.param == "sqlite":
        pair = Pair(tmp_path, f"sqlite:{tmp_path / 'shared.db'}")
        yield pair
        pair.end()
        return
    if PROGRAM is None:
        pytest.skip("there is no redis-server here: `apt-get install redis-server` brings it")
    redis = RedisServer(tmp_path / "redis")
    pair = Pair(tmp_path, redis.address())
    yield pair
    pair.end()
    redis.kill()


@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.thorough)])
def test_the_standby_takes_over_and_nothing_is_lost_or_doubled(pair: Pair, end: str) -> None:
    leader, standby = pair.servers
    with TrackerClient(pair.address, retry_for=300) as client:
        start(client)
        for number in range(1, 21):
            send(client, number)
            if number == 7:
                getattr(leader, end)()
            if number == 14:
                leader.start(waits=True)
                getattr(standby, end)()
        assert in_flight(client) == 20
        assert client.server_info().leader
    wait_for_readiness(pair.metrics[0], ready=True)


def test_a_watch_continues_at_the_new_leader_with_each_event_once(pair: Pair) -> None:
    with TrackerClient(pair.address, retry_for=300) as client:
        start(client)
        with client.watch("flights") as watch, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: [next(watch).seq for _ in range(10)])
            for number in range(1, 11):
                epoch = client.producer("flights", "q", "r1").epoch(number)
                epoch.sent("raw", "LGA", str(number), label(str(number)))
                epoch.received("raw", "LGA", str(number), label(str(number)))
                epoch.close("LGA", str(number))
                epoch.report(commit=True)
                if number == 5:
                    pair.servers[0].kill()
            assert reading.result() == list(range(1, 11))


def test_a_leader_that_sleeps_is_replaced_and_ends_when_it_wakes_up(pair: Pair) -> None:
    leader, _ = pair.servers
    if "redis" not in leader.journal:
        pytest.skip("a lock on a file is held for as long as the process lives, asleep or not")
    with TrackerClient(pair.address, retry_for=300) as client:
        start(client)
        send(client, 1)
        leader.freeze()
        for number in range(2, 6):
            send(client, number)
        assert in_flight(client) == 5
        leader.thaw()
        assert leader.ended() == 1
        assert "another tracker has taken over" in leader.log
        send(client, 6)
        assert in_flight(client) == 6


@pytest.mark.thorough
def test_a_watch_that_only_waits_moves_on_from_a_leader_that_sleeps(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the pings of a watch can tell that the leader is silent: those of other calls are switched off."""
    leader, _ = pair.servers
    if "redis" not in leader.journal:
        pytest.skip("a lock on a file is held for as long as the process lives, asleep or not")
    others = tuple((name, value) for name, value in connection.CHANNEL_OPTIONS if "keepalive" not in name)
    monkeypatch.setattr(connection, "CHANNEL_OPTIONS", others)
    with TrackerClient(pair.address, retry_for=300) as client, TrackerClient(pair.address, retry_for=300) as reader:
        start(client)
        with reader.watch("flights") as watch, ThreadPoolExecutor(1) as pool:
            reading = pool.submit(lambda: next(watch).seq)
            while not watch.log_id:
                time.sleep(0.02)
            leader.freeze()
            epoch = client.producer("flights", "q", "r1").epoch(1)
            epoch.close("LGA", "day")
            epoch.sent("raw", "LGA", "day", label("1"))
            epoch.received("raw", "LGA", "day", label("1"))
            epoch.report(commit=True)
            assert reading.result() == 1
    leader.thaw()


@pytest.mark.thorough
def test_a_single_attempt_goes_to_each_address_once(pair: Pair) -> None:
    with TrackerClient(pair.address, retry_for=300) as client:
        start(client)
    pair.servers[0].kill()
    wait_for_readiness(pair.metrics[1], ready=True)
    with TrackerClient(pair.address, retry_for=0) as client:
        assert in_flight(client) == 0
    pair.servers[1].kill()
    with (
        TrackerClient(pair.address, retry_for=0) as client,
        pytest.raises(TrackerUnavailable, match=f"2 attempts.*--listen {pair.servers[0].address}` starts one"),
    ):
        in_flight(client)


@pytest.mark.thorough
def test_a_standby_that_is_stopped_ends_at_once_and_disturbs_nobody(pair: Pair) -> None:
    with TrackerClient(pair.address) as client:
        start(client)
        with urllib.request.urlopen(f"http://{pair.metrics[1]}/readyz?standby") as answer:
            assert b"standby" in answer.read()  # for those who replace one server after the other
        pair.servers[1].stop()
        send(client, 1)
        assert in_flight(client) == 1


@pytest.mark.parametrize("server", ["a:1+", "+a:1", "a:1+a:1"])
def test_a_wrong_list_of_addresses_is_refused_with_what_to_write(server: str) -> None:
    with pytest.raises(ValueError, match="name each address of a tracker once"):
        TrackerClient(server)
