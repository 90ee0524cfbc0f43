"""A Redis comes back older or empty while the leader is dead: the standby has read what is lost, and writes it down."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.processes import Server
from tests.journal.redis_server import RedisServer, needs_redis, replica_of
from tests.journal.test_redis import bring_back, copied
from tests.server.test_redis import in_flight, send, start
from tracker.client import TrackerClient

pytestmark = needs_redis


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


def has_been_read(redis: RedisServer) -> None:
    """Wait until the standby has looked at the log again, twice."""
    before = redis.client().info("commandstats")["cmdstat_xrange"]["calls"]
    redis.wait_until(lambda: redis.client().info("commandstats")["cmdstat_xrange"]["calls"] >= before + 3)


def has_file(replica: RedisServer) -> bool:
    """Return whether all that the replica has is in its append-only file."""
    info = replica.client().info("persistence")
    return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]


@pytest.mark.thorough
@pytest.mark.parametrize("comes_back", ["a lagging replica", "an older file", "a file of an earlier term", "empty"])
def test_a_loss_only_the_standby_knows_is_noted_and_needs_consent(
    redis: RedisServer, tmp_path: Path, comes_back: str
) -> None:
    (tmp_path / "other").mkdir()
    leader = Server(tmp_path, redis.address())
    standby = Server(tmp_path / "other", redis.address(), waits=None)
    replica = None
    try:
        with TrackerClient(leader.address, retry_for=60) as client:
            start(client)
            for number in range(1, 11):
                send(client, number)
            if comes_back == "a lagging replica":
                replica = replica_of(redis, tmp_path / "replica", appendonly="yes")
                replica.wait_until(lambda: has_file(replica))
                replica.promote()
                replica.kill()
            else:
                copied(redis, tmp_path / "copy")
            if comes_back == "a file of an earlier term":
                leader.restart()
            standby.start(waits=True, more=["--standby"])
            redis.wait_until(lambda: redis.client().exists("{tracker}:standby"))
            for number in range(11, 31):
                send(client, number)
            log_id = client.job("flights").log_id
        has_been_read(redis)
        standby.freeze()  # else it may lead before the store is another one, and tells of the loss as a leader does
        leader.kill()
        if comes_back == "empty":
            redis.client().flushall()
        else:
            bring_back(redis, tmp_path / ("replica" if replica else "copy"))
        standby.thaw()
        assert standby.ended() == 1
        assert "which this standby had read" in standby.log
        assert "--accept-loss" in standby.log
        leader.start(waits=True)
        assert leader.ended() == 1
        assert "start once with --accept-loss" in leader.log
        leader.start(more=["--accept-loss"])
        with TrackerClient(leader.address) as client:
            if comes_back == "empty":
                assert client.jobs() == []
                start(client)
            else:
                assert in_flight(client) == 10
            assert client.job("flights").log_id != log_id
        leader.restart()
    finally:
        leader.kill()
        standby.kill()
        if replica is not None:
            shutil.rmtree(replica.directory, ignore_errors=True)


@pytest.mark.thorough
def test_a_standby_started_with_consent_does_not_accept_later_losses(redis: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    leader = Server(tmp_path, redis.address())
    standby = Server(tmp_path / "other", redis.address(), waits=None)
    try:
        standby.start(waits=True, more=["--standby", "--accept-loss"])
        redis.wait_until(lambda: redis.client().exists("{tracker}:standby"))
        with TrackerClient(leader.address, retry_for=60) as client:
            start(client)
            for number in range(1, 11):
                send(client, number)
        has_been_read(redis)
        leader.kill()
        redis.client().flushall()
        assert standby.ended() == 1
        # A quick one has claimed the log already, and reads it again.
        assert "which this standby had read" in standby.log or "which were acknowledged" in standby.log
        leader.start(waits=True)
        assert leader.ended() == 1
        assert "start once with --accept-loss" in leader.log
    finally:
        leader.kill()
        standby.kill()
