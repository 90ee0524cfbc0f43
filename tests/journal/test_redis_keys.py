"""Keys of a journal in Redis that vanish, servers that remove them, and servers that are not the master any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.redis_server import RedisServer, needs_redis, replica_of
from tests.journal.test_redis import opened, records
from tracker.journal import Damage, Journal, JournalError, JournalGoneError, JournalLossError, open_journal
from tracker.journal.redis.log import NOTHING

pytestmark = needs_redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    server.kill()


@pytest.mark.parametrize("finds_out", ["at a write", "at a look-up", "idle"])
def test_a_vanished_log_stops_the_leader_and_needs_consent(server: RedisServer, finds_out: str) -> None:
    journal, _, _ = opened(server.address())
    gone = threading.Event()
    journal.when_gone(lambda error: gone.set())
    journal.append(records(3))
    server.client().delete("{tracker}:log")
    if finds_out == "idle":
        assert gone.wait(60)
    find_out = journal.confirm if finds_out != "at a write" else lambda: journal.append(records(1, start=3))
    with pytest.raises(JournalGoneError, match="has lost the records 1 to 3, which were acknowledged"):
        find_out()
    journal.close()
    with pytest.raises(JournalLossError, match="--accept-loss"):
        opened(server.address())
    journal, recovery, found = opened(server.address(), accept_loss=True)
    assert (found, recovery.tail_lost) == ([], True)
    journal.append(records(1))
    journal.close()
    journal, recovery, found = opened(server.address())
    assert (found, recovery.damage) == (records(1), ())
    journal.close()


def test_a_log_that_vanishes_without_a_record_lets_the_next_start(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    server.client().delete("{tracker}:log")
    with pytest.raises(JournalGoneError, match="has vanished, with no record in it; start again"):
        journal.append(records(1))
    journal.close()
    journal, recovery, found = opened(server.address())
    assert (found, recovery.damage) == ([], ())
    journal.append(records(1))
    journal.close()


@pytest.mark.parametrize("begins_with", ["what the log has", "its records"])
def test_a_log_that_vanishes_while_it_is_read_needs_consent(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, begins_with: str
) -> None:
    leader, _, _ = opened(server.address())
    leader.append(records(5))
    leader.close()
    journal = open_journal(server.address("&lease=3600"))
    if begins_with == "what the log has":

        def lose(aside: str) -> tuple[None, int, str, list[Damage]]:
            server.client().flushall()
            return None, 0, NOTHING, []

        monkeypatch.setattr(journal, "_newest_snapshot", lose)
        with pytest.raises(JournalGoneError, match="has lost the records 1 to 5, which were acknowledged"):
            journal.recover()
    else:
        recovery = journal.recover()
        server.client().flushall()
        with pytest.raises(JournalGoneError, match="has lost the records 1 to 5, which were acknowledged"):
            list(recovery.records)
    journal.close()
    with pytest.raises(JournalLossError, match=r"5 acknowledged records are lost .*--accept-loss"):
        opened(server.address())


def test_the_end_of_a_complete_log_is_found_again(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    journal.append(records(3))
    server.client().delete("{tracker}:top")
    assert journal.append(records(2, start=3)) == 5
    server.client().delete("{tracker}:top")
    journal.confirm()
    journal.close()
    for _ in range(2):  # the newest entry is a group's, and then a claim
        server.client().delete("{tracker}:top")
        journal, recovery, found = opened(server.address())
        assert (found, recovery.damage) == (records(5), ())
        journal.close()


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_log_without_its_end_and_newest_entries_needs_consent(server: RedisServer, gone: int) -> None:
    """Gone are: two records; also the claim before them; also the three records before that."""
    for batch in (records(1), records(2, start=1), records(2, start=3)):
        journal, _, _ = opened(server.address())
        journal.append(batch)
        journal.close()
    client = server.client()
    client.xdel("{tracker}:log", *(entry for entry, _ in client.xrevrange("{tracker}:log", count=gone)))
    client.delete("{tracker}:top")
    left = records(3 if gone < 3 else 1)
    with pytest.raises(JournalLossError, match=rf"^{5 - len(left)} acknowledged records are lost .*--accept-loss"):
        opened(server.address())
    journal, recovery, found = opened(server.address(), accept_loss=True)
    assert (found, recovery.tail_lost) == (left, True)
    journal.append(records(1, start=7))
    journal.close()
    journal, recovery, found = opened(server.address())
    assert (found, recovery.tail_lost) == ([*left, *records(1, start=7)], False)
    journal.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_would_remove_records_is_refused(
    tmp_path: Path, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = RedisServer(tmp_path / "redis", maxmemory="100mb", maxmemory_policy=policy)
    try:
        with pytest.raises(JournalError, match=f"maxmemory-policy={policy}.*set `maxmemory-policy noeviction`"):
            open_journal(server.address())
        server.client().config_set("maxmemory", "0")
        open_journal(server.address()).close()
        assert f"maxmemory-policy={policy}: with a maxmemory it would" in caplog.text
        server.client().config_set("maxmemory-policy", "noeviction")
    finally:
        server.kill()


@pytest.mark.thorough
def test_a_replica_does_not_confirm_who_leads(server: RedisServer, tmp_path: Path) -> None:
    journal, _, _ = opened(server.address())
    other = RedisServer(tmp_path / "other", replicaof=f"127.0.0.1 {server.port}")
    try:
        other.wait_until(lambda: other.client().info("replication")["master_link_status"] == "up")
        journal.confirm()
        other.promote()
        server.client().replicaof("127.0.0.1", other.port)
        server.wait_until(lambda: server.client().info("replication").get("master_link_status") == "up")
        with pytest.raises(JournalError, match="is a slave and not the master any more"):
            journal.confirm()
    finally:
        other.kill()
        journal.close()


def confirms(journal: Journal) -> bool:
    """Return whether a journal confirms who leads now: a replica that has no processor answers late."""
    try:
        journal.confirm()
    except JournalError:
        return False
    return True


@pytest.mark.parametrize("leaves", ["promoted", "cut off"])
def test_a_master_that_its_replicas_have_left_does_not_confirm_who_leads(
    server: RedisServer, tmp_path: Path, leaves: str
) -> None:
    replica = replica_of(server, tmp_path / "replica")
    try:
        journal, _, _ = opened(server.address("&replicas=1"))
        server.wait_until(lambda: confirms(journal))
        if leaves == "promoted":
            replica.promote()
        else:
            replica.freeze()  # its connection stays, as that of a machine behind a cut network
        with pytest.raises(JournalError, match="has 0 replicas that answer, and 1 are wanted"):
            journal.confirm()
        journal.close()
    finally:
        replica.kill()


def test_a_loss_noted_of_a_log_now_longer_needs_consent(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    journal.append(records(3))
    journal.close()
    server.client().hset("{tracker}:top", "lost", 2)
    with pytest.raises(JournalLossError, match="--accept-loss"):
        opened(server.address())
    journal, recovery, found = opened(server.address(), accept_loss=True)
    assert (found, recovery.tail_lost) == (records(3), True)
    journal.append(records(1, start=3))
    journal.close()
    journal, recovery, _ = opened(server.address())
    assert recovery.damage == ()
    journal.close()
