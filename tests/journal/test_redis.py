"""The journal in Redis under death of the tracker, of the server, and of the connection between them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from examples.services.processes import free_port
from tests.client.processes import Line
from tests.journal.redis_server import RedisServer, Sentinel, needs_redis, replica_of
from tracker.journal import (
    Journal,
    JournalError,
    JournalFullError,
    JournalGoneError,
    JournalLockedError,
    JournalLossError,
    LeftOut,
    LostTrackError,
    Record,
    Recovery,
    follow_journal,
    open_journal,
)
from tracker.journal.redis.journal import RedisSnapshots

pytestmark = needs_redis

_OPENED: list[Journal] = []  #: by the test


def records(count: int, size: int = 100, start: int = 0) -> list[Record]:
    return [Record(i % 11, 1_000 + i, bytes([i % 256]) * size) for i in range(start, start + count)]


def opened(address: str, accept_loss: bool = False) -> tuple[Journal, Recovery, list[Record]]:
    journal = open_journal(address)
    _OPENED.append(journal)
    try:
        recovery = journal.recover(accept_loss)
        return journal, recovery, list(recovery.records)
    except BaseException:
        journal.close()
        raise


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    yield server
    while _OPENED:  # else it would find another test's server at this port, and note that its records are lost
        _OPENED.pop().close()
    server.kill()


def end_lease(server: RedisServer) -> None:
    """End the lease, as if its holder had slept for longer."""
    server.client().delete("{tracker}:lease")
    if server.client().exists("{tracker}:top"):  # so that a newcomer may have it at once
        server.client().hset("{tracker}:top", "free", "1")


def died_long_ago(server: RedisServer, journal: Journal) -> None:
    """Leave a journal whose owner ended without giving its lease back, which has run out since."""
    before = server.client().hgetall("{tracker}:top")
    journal.close()
    server.client().delete("{tracker}:top")
    server.client().hset("{tracker}:top", mapping=before)


# ---------------------------------------------------------------- keeping


def test_what_was_appended_comes_back_in_order(server: RedisServer) -> None:
    journal, recovery, found = opened(server.address())
    assert (recovery.state, recovery.number, found, recovery.damage) == (None, 0, [], ())
    told = records(20)
    assert journal.append(told[:1]) == 1
    assert journal.append(told[1:]) == 20
    journal.close()
    journal, recovery, found = opened(server.address())
    assert found == told
    assert recovery.damage == ()
    assert journal.append(records(1, start=20)) == 21
    journal.close()


@pytest.mark.parametrize("seed", range(6))
def test_any_life_of_appends_snapshots_and_restarts_keeps_every_record(server: RedisServer, seed: int) -> None:
    random = Random(seed)
    journal, _, _ = opened(server.address())
    told: list[Record] = []
    covered = 0
    for _ in range(60):
        action = random.choice(["append"] * 6 + ["snapshot", "restart"])
        if action == "append":
            group = records(random.randint(1, 9), random.choice([0, 10, 5000]), len(told))
            told += group
            assert journal.append(group) == len(told)
        elif action == "snapshot":
            covered = len(told)
            journal.snapshot(covered, {"covered": covered, "labels": np.arange(random.randint(0, 3_000_000))})
        else:
            journal.close()
            journal, recovery, found = opened(server.address())
            assert recovery.number == covered
            assert (recovery.state or {"covered": 0})["covered"] == covered
            assert found == told[covered:]
            assert recovery.damage == ()
    journal.close()


def test_the_log_is_trimmed_to_what_the_older_of_two_snapshots_needs(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    for number in range(1, 11):
        journal.append(records(1, start=number))
        if number in (3, 6, 8):
            journal.snapshot(number, {"number": number})
    client = server.client()
    assert sorted(client.hkeys("{tracker}:snapshots")) == ["1-6", "1-8"]
    assert [entry for entry, _ in client.xrange("{tracker}:log")] == ["1-6", "1-7", "1-8", "1-9", "1-10"]
    assert len(client.keys("{tracker}:snapshot:*")) == 2
    journal.close()


def test_a_damaged_snapshot_is_set_aside_for_the_one_before(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    for number in (1, 2, 3):
        journal.append(records(1, start=number))
        if number < 3:
            journal.snapshot(number, {"number": number})
    journal.close()
    server.client().set("{tracker}:snapshot:1-2:0", "something else")
    journal, recovery, found = opened(server.address())
    assert (recovery.number, recovery.state, found) == (1, {"number": 1}, records(2, start=2))
    [damage] = recovery.damage
    assert (damage.record, damage.lost) == (2, 0)
    assert server.client().get(f"{damage.set_aside}:0") == "something else"
    journal.close()


@pytest.mark.parametrize("description", ["", "{", "[]", '"x"', "{}", '{"pieces": "many", "checksum": 1}', b"\xff"])
def test_a_snapshot_whose_description_is_none_is_set_aside(server: RedisServer, description: bytes | str) -> None:
    journal, _, _ = opened(server.address())
    for number in (1, 2):
        journal.append(records(1, start=number))
        journal.snapshot(number, {"number": number})
    journal.close()
    server.client().hset("{tracker}:snapshots", "1-2", description)
    journal, recovery, found = opened(server.address())
    assert (recovery.number, recovery.state, found) == (1, {"number": 1}, records(1, start=2))
    [damage] = recovery.damage
    assert damage.problem == "the snapshot cannot be used: its description is not one"
    assert server.client().exists(damage.set_aside, f"{damage.set_aside}:0") == 2
    assert not server.client().exists("{tracker}:snapshot:1-2:0")
    journal.close()


def test_a_record_set_aside_whose_description_is_none_is_named(server: RedisServer) -> None:
    opened(server.address())[0].close()
    server.client().hset("{tracker}:set-aside", "7", "{}")
    with pytest.raises(JournalError, match=r"record 7, which was set aside, cannot be read; repair it, or remove it"):
        opened(server.address())


def test_pieces_of_a_snapshot_that_was_never_finished_are_removed(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    journal.append(records(1))
    with pytest.raises(TypeError):
        journal.snapshot(1, {"first": bytes(10_000_000), "then it ends": object()})
    assert server.client().keys("{tracker}:snapshot:1-1:*")
    journal.close()
    journal, recovery, _ = opened(server.address())
    assert recovery.state is None
    assert not server.client().keys("{tracker}:snapshot:*")
    journal.close()


# ---------------------------------------------------------------- one writer


def test_a_journal_in_use_is_refused_by_name_until_it_is_closed(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    with pytest.raises(JournalLockedError, match=r"in use by another tracker \(process \d+ on .*\); stop it"):
        open_journal(server.address())
    journal.append(records(1))
    journal.close()
    journal, _, found = opened(server.address())
    assert found == records(1)
    journal.close()


def test_trackers_with_other_prefixes_share_a_server(server: RedisServer) -> None:
    one, _, _ = opened(server.address())
    other, _, found = opened(server.address("&prefix=other"))
    assert found == []
    one.close()
    other.close()


def test_a_tracker_that_died_on_this_machine_is_followed_at_once(server: RedisServer) -> None:
    address = server.address("&prefix=dying").replace("lease=1", "lease=3600")
    program = (
        "import os, signal; from tracker.journal import *; j = open_journal({!r}); j.recover();"
        "j.append([Record(1, 2, b'x')]); j.carrying([1, 7]); os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", program.format(address)], check=False)
    assert died.returncode == -9
    journal, recovery, found = opened(address)
    assert found == [Record(1, 2, b"x")]
    assert recovery.unanswered == {1, 7}
    journal.close()


def test_a_tracker_that_died_elsewhere_is_followed_after_its_lease(server: RedisServer) -> None:
    server.client().set("{tracker}:lease", '{"host": "elsewhere", "pid": 1, "machine": "x"}', px=700)
    journal, _, _ = opened(server.address())
    journal.close()


def test_a_writer_that_slept_through_its_lease_writes_nothing_more(server: RedisServer) -> None:
    old, _, _ = opened(server.address())
    gone: list[JournalGoneError] = []
    old.when_gone(gone.append)
    old.append(records(1))
    end_lease(server)
    new, _, found = opened(server.address())
    assert found == records(1)
    with pytest.raises(JournalGoneError, match="another tracker has taken over"):
        old.append(records(5, start=100))
    with pytest.raises(JournalGoneError):
        old.snapshot(1, {"of": "old"})
    assert new.append(records(1, start=1)) == 2
    old.close()
    assert len(gone) == 1
    assert server.client().exists("{tracker}:lease"), "the old one has given back what is not its own"
    new.close()
    journal, recovery, found = opened(server.address())
    assert (recovery.state, found) == (None, records(2))
    journal.close()


def test_a_newcomer_leaves_a_lease_that_ran_out_to_a_standby(server: RedisServer) -> None:
    """They know what an older log lacks, and it does not."""
    journal, _, _ = opened(server.address())
    journal.append(records(1))
    died_long_ago(server, journal)
    newcomer = follow_journal(server.address())
    assert newcomer is not None
    _OPENED.append(newcomer)
    assert not newcomer.try_to_own()
    while not newcomer.try_to_own():
        time.sleep(0.02)
    newcomer.recover()
    newcomer.close()
    next_one = follow_journal(server.address())
    assert next_one is not None
    assert next_one.try_to_own(), "the lease was given back"
    next_one.close()


def test_a_lease_shorter_than_what_is_left_to_a_standby_refuses_nobody(server: RedisServer) -> None:
    address = server.address().replace("lease=1", "lease=0.5")
    journal, _, _ = opened(address)
    journal.append(records(1))
    died_long_ago(server, journal)
    journal, _, found = opened(address)
    assert found == records(1)
    journal.close()


def test_a_tracker_takes_over_from_one_that_still_writes(server: RedisServer) -> None:
    for _ in range(5):
        old, _, before = opened(server.address())
        told = list(before)

        def write(old: Journal = old, told: list[Record] = told) -> None:
            with suppress(JournalGoneError):
                while True:
                    record = records(1, start=len(told))
                    old.append(record)
                    told.extend(record)

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            seen = len(told)
            server.wait_until(lambda seen=seen, told=told: len(told) > seen + 20)
            while True:
                end_lease(server)  # the old one gets it again with its next renewal
                with suppress(JournalLockedError):
                    new, recovery, found = opened(server.address())
                    break
            writing.result()
        assert recovery.damage == ()
        assert found[: len(told)] == told
        assert len(found) <= len(told) + 1, "one write was under way, and its outcome was unknown to the old one"
        old.close()
        new.close()


def test_an_owner_is_confirmed_until_another_leads_or_nobody_knows(server: RedisServer) -> None:
    old, _, _ = opened(server.address())
    old.append(records(3))
    old.confirm()
    server.freeze()
    with pytest.raises(JournalError, match="cannot be reached"):
        old.confirm()
    server.thaw()
    old.confirm()
    end_lease(server)
    new, _, _ = opened(server.address())
    with pytest.raises(JournalGoneError, match="another tracker has taken over"):
        old.confirm()
    new.confirm()
    old.close()
    new.close()


def test_an_idle_writer_finds_out_that_another_one_has_taken_over(server: RedisServer) -> None:
    old, _, _ = opened(server.address())
    gone = threading.Event()
    old.when_gone(lambda error: gone.set())
    end_lease(server)
    new, _, _ = opened(server.address())
    assert gone.wait(60)
    old.close()
    new.close()


def test_of_many_that_start_at_once_one_gets_the_journal(server: RedisServer) -> None:
    def start(_: int) -> Journal | None:
        try:
            return opened(server.address())[0]
        except JournalError:
            return None

    with ThreadPoolExecutor(8) as pool:
        started = [journal for journal in pool.map(start, range(8)) if journal is not None]
    assert len(started) == 1
    started[0].append(records(1))
    started[0].close()


@pytest.mark.parametrize("ending", ["close", "hand_over"])
def test_a_released_journal_leaves_no_thread_and_no_connection(server: RedisServer, ending: str) -> None:
    look = server.client()
    threads, before = threading.active_count(), look.client_id()
    journal, _, _ = opened(server.address())
    journal.append(records(1))
    getattr(journal, ending)()
    assert threading.active_count() == threads
    server.wait_until(lambda: all(int(each["id"]) <= before for each in look.client_list()))
    journal.close()


# ---------------------------------------------------------------- standing by


def test_a_standby_reads_all_but_the_last_two_groups_and_recovers_those(server: RedisServer) -> None:
    leader, _, _ = opened(server.address())
    told = records(12)
    leader.append(told[:4])
    leader.snapshot(4, {"number": 4})
    standby = follow_journal(server.address())
    assert standby is not None
    assert not standby.try_to_own()
    state, following = standby.follow()
    assert state == {"number": 4}
    read: list[tuple[int, Record]] = []
    for start in (4, 6, 8, 10):
        leader.append(told[start : start + 2])
        read += following.records()
    assert read == list(enumerate(told[4:8], 5))
    leader.close()
    assert standby.try_to_own()
    recovery = standby.recover(followed=following.place)
    assert (recovery.state, recovery.number, list(recovery.records)) == (None, 8, told[8:])
    assert standby.append(records(1)) == 13
    standby.close()


def test_a_standby_that_is_too_slow_begins_again_with_the_newest_snapshot(server: RedisServer) -> None:
    leader, _, _ = opened(server.address())
    standby = follow_journal(server.address())
    assert standby is not None
    leader.append(records(1))
    _, following = standby.follow()
    for number in range(2, 7):
        leader.append(records(1, start=number))
        leader.snapshot(number, {"number": number})
    with pytest.raises(LostTrackError):
        list(following.records())
    state, following = standby.follow()
    assert (state, following.place.number) == ({"number": 6}, 6)
    leader.close()
    standby.close()


@pytest.mark.parametrize("reads", ["follows", "recovers"])
def test_a_reader_survives_snapshots_replaced_while_it_looks_for_one(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, reads: str
) -> None:
    leader, _, _ = opened(server.address())
    for number in (1, 2):
        leader.append(records(1, start=number))
        leader.snapshot(number, {"number": number})
    standby = follow_journal(server.address())
    assert standby is not None
    entries, newer = RedisSnapshots.entries, iter((3, 4))

    def replaced(self: RedisSnapshots) -> list[str]:
        listed = entries(self)
        for number in newer:  # the leader goes on, also one that has slept and does not know of the next one
            with suppress(JournalGoneError):
                leader.append(records(1, start=number))
                leader.snapshot(number, {"number": number})
        return listed

    monkeypatch.setattr(RedisSnapshots, "entries", replaced)
    if reads == "follows":
        _, following = standby.follow()
        with pytest.raises(LostTrackError):
            list(following.records())
        state, following = standby.follow()
        assert (state, following.place.number) == ({"number": 4}, 4)
    else:
        end_lease(server)
        assert standby.try_to_own()
        recovery = standby.recover()
        assert (recovery.state, recovery.damage) == ({"number": 2}, ())
    leader.close()
    standby.close()


def test_a_standby_notices_that_records_it_has_read_were_given_up(server: RedisServer, tmp_path: Path) -> None:
    leader, _, _ = opened(server.address())
    leader.append(records(1))
    copied(server, tmp_path / "copy")
    for number in range(1, 6):
        leader.append(records(1, start=number))
    standby = follow_journal(server.address())
    assert standby is not None
    _, following = standby.follow()
    assert len(list(following.records())) == 4
    bring_back(server, tmp_path / "copy")
    with pytest.raises(JournalGoneError):
        leader.append(records(1, start=7))
    leader.close()
    leader, _, _ = opened(server.address(), accept_loss=True)
    leader.append(records(1, start=8))
    with suppress(JournalError):  # its connection broke with the server
        list(following.records())
    with pytest.raises(LostTrackError):
        list(following.records())
    leader.close()
    standby.close()


# ---------------------------------------------------------------- the server and the connection


def test_a_write_whose_answer_is_lost_counts_once(server: RedisServer) -> None:
    line = Line(f"127.0.0.1:{server.port}")
    journal, _, _ = opened(server.address().replace(str(server.port), line.address.rpartition(":")[2]))
    told = records(40)
    journal.append(told[:1])
    for number in range(1, 40):
        line.hold_answers(after=b"\r\ndata\r\n" if number % 2 else f"1-{number + 1}\r\n".encode())
        cutter = threading.Timer(0.1, line.cut)
        cutter.start()
        assert journal.append([told[number]]) == number + 1
        cutter.join()
    journal.close()
    line.close()
    journal, recovery, found = opened(server.address())
    assert found == told
    assert recovery.damage == ()
    journal.close()


def test_a_server_killed_again_and_again_loses_nothing_acknowledged(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    told: list[Record] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            group = records(3, start=len(told))
            journal.append(group)
            told.extend(group)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        for _ in range(5):
            seen = len(told)
            server.wait_until(lambda seen=seen: len(told) > seen + 30)
            server.kill()
            server.start()
        stop.set()
        writing.result()
    journal.close()
    journal, recovery, found = opened(server.address())
    assert found == told
    assert recovery.damage == ()
    journal.close()


def test_while_the_server_is_away_a_write_waits_until_interrupted(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    server.kill()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(journal.append, records(1))
        time.sleep(0.2)
        assert not writing.done()
        journal.interrupt()
        with pytest.raises(JournalGoneError, match="whether they count is unknown"):
            writing.result()
    journal.close()
    server.start()


def copied(server: RedisServer, where: Path) -> None:
    """Copy what the server has on its disk now."""
    server.kill()
    shutil.copytree(server.directory, where)
    server.start()


def bring_back(server: RedisServer, where: Path) -> None:
    """Let the server lose what came after a copy."""
    server.kill()
    shutil.rmtree(server.directory)
    shutil.copytree(where, server.directory)
    server.start()


@pytest.mark.parametrize("idle", [True, False], ids=["idle", "writing"])
def test_a_lost_tail_stops_the_tracker_and_needs_the_operators_consent(
    server: RedisServer, tmp_path: Path, idle: bool
) -> None:
    journal, _, _ = opened(server.address())
    gone: list[JournalGoneError] = []
    found_out = threading.Event()
    journal.when_gone(lambda error: gone.append(error) or found_out.set())
    journal.append(records(3))
    copied(server, tmp_path / "copy")
    journal.append(records(2, start=3))
    bring_back(server, tmp_path / "copy")
    if not idle:
        with pytest.raises(JournalGoneError):
            journal.append(records(1, start=5))
    assert found_out.wait(60)
    assert "has lost the records 4 to 5, which were acknowledged" in str(gone[0])
    journal.close()
    with pytest.raises(JournalLossError, match=r"2 acknowledged records are lost.*--accept-loss"):
        opened(server.address())
    opened(server.address(), accept_loss=True)[0].close()  # it ended before it could tell anybody
    with pytest.raises(JournalLossError):
        opened(server.address())
    journal, recovery, found = opened(server.address(), accept_loss=True)
    journal.confirm()  # the loss is noted until the first entry, however long the recovery takes
    assert found == records(3)
    assert recovery.tail_lost
    assert recovery.damage[-1].lost == 2
    assert journal.append(records(1, start=9)) == 4
    journal.close()
    journal, recovery, _ = opened(server.address())
    assert recovery.damage == ()
    journal.close()


def test_a_loss_that_the_next_tracker_could_not_see_stops_it_too(server: RedisServer, tmp_path: Path) -> None:
    old, _, _ = opened(server.address().replace("lease=1", "lease=3600"))
    old.append(records(3))
    copied(server, tmp_path / "copy")
    old.append(records(2, start=3))
    bring_back(server, tmp_path / "copy")
    end_lease(server)
    new, recovery, _ = opened(server.address().replace("lease=1", "lease=3600"))
    assert recovery.damage == (), "the server has nothing from which it could know"
    new.append(records(1, start=3))
    with pytest.raises(JournalGoneError, match="has lost the records 4 to 5"):
        old.append(records(1, start=5))
    with pytest.raises(JournalGoneError, match="lost the records up to 5"):
        new.append(records(1, start=4))
    old.close()
    new.close()
    with pytest.raises(JournalLossError):
        opened(server.address())


def test_entries_that_someone_has_removed_are_missed(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    for number in range(5):
        journal.append(records(1, start=number))
    journal.close()
    server.client().xdel("{tracker}:log", "1-3")
    with pytest.raises(JournalLossError, match=r"records 3 to 3 are missing"):
        opened(server.address())
    journal, recovery, found = opened(server.address(), accept_loss=True)
    assert found == records(2)
    [damage] = recovery.damage
    assert damage.lost == 3
    assert sum("data" in entry for _, entry in server.client().xrange(damage.set_aside)) == 2
    journal.close()


@pytest.mark.parametrize(
    "fields", [{"somebody's": "own"}, {"count": "one"}, {"base": "here"}, {"base": b"\xff"}], ids=repr
)
def test_after_a_foreign_entry_nobody_can_tell_what_is_lost(server: RedisServer, fields: dict[str, Any]) -> None:
    journal, _, _ = opened(server.address())
    for number in range(5):
        journal.append(records(1, start=number))
    journal.close()
    [(last, _)] = server.client().xrevrange("{tracker}:log", count=1)
    server.client().xadd("{tracker}:log", fields, id=f"{last.partition('-')[0]}-6")
    with pytest.raises(JournalLossError, match=r"records 6 to 6 are missing|is no entry of a tracker"):
        opened(server.address())
    journal, recovery, found = opened(server.address(), accept_loss=True)
    assert found == records(5)
    assert [damage.lost for damage in recovery.damage] == [None]
    assert journal.append(records(1, start=5)) == 6
    journal.close()
    assert opened(server.address())[2] == records(6)


def test_a_server_without_room_refuses_until_it_has_room(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    journal.append(records(1))
    client = server.client()
    client.config_set("maxmemory", "1mb")
    with pytest.raises(JournalFullError, match="has no room"):
        journal.append(records(10, size=100_000))
    client.config_set("maxmemory", "0")
    assert journal.append(records(1, start=1)) == 2
    journal.close()
    journal, _, found = opened(server.address())
    assert found == records(2)
    journal.close()


# ---------------------------------------------------------------- durability


@pytest.mark.parametrize(
    ("options", "asked", "wrong"),
    [
        ({"appendonly": "no"}, "", "no append-only file"),
        ({"appendfsync": "no"}, "", "appendfsync=no"),
        ({"appendonly": "no"}, "&durability=memory", None),
    ],
)
def test_a_server_that_cannot_give_the_wanted_durability_is_refused(
    tmp_path: Path, options: dict[str, str], asked: str, wrong: str | None
) -> None:
    server = RedisServer(tmp_path / "redis", **options)
    try:
        if wrong is None:
            opened(server.address(asked))[0].close()
        else:
            with pytest.raises(JournalError, match=f"{wrong}.*durability=memory"):
                open_journal(server.address(asked))
    finally:
        server.kill()


def lessened(server: RedisServer) -> Any:
    """Return a client of a server that keeps nothing on its disk any more, and has closed all other connections."""
    look = server.client()
    look.config_set("appendonly", "no")
    look.client_kill_filter(_type="normal", skipme=True)
    return look


def test_a_closed_connection_is_not_replaced_by_a_weaker_server(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a failover, while nothing is written: the new server may have other settings."""
    journal, _, _ = opened(server.address())
    journal.append(records(1))
    look = lessened(server)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(journal.append, records(1, start=1))
        server.wait_until(lambda: "has no append-only file, so its records end with it" in caplog.text)
        assert not written.done()
        look.config_set("appendonly", "yes")
        assert written.result() == 2
    journal.close()
    assert opened(server.address())[2] == records(2)


def test_a_server_known_to_give_less_gets_no_write(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    journal.append(records(1))
    look = lessened(server)
    journal._log.client.ping()  # type: ignore[attr-defined]  # any other call may be the first over the new connection
    with pytest.raises(JournalError, match="has no append-only file"):
        journal.append(records(1, start=1))
    assert look.xlen("{tracker}:log") == 2, "the claim and the first record"
    look.config_set("appendonly", "yes")
    assert journal.append(records(1, start=1)) == 2
    journal.close()


def test_a_record_is_acknowledged_when_the_replica_has_it(server: RedisServer, tmp_path: Path) -> None:
    replica = replica_of(server, tmp_path / "replica")
    try:
        journal, _, _ = opened(server.address("&replicas=1").replace("lease=1", "lease=60"))
        for number in range(10):
            journal.append(records(1, start=number))
            assert replica.client().hget("{tracker}:top", "last") == str(number + 1)
        replica.freeze()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(journal.append, records(1, start=10))
            time.sleep(1.5)  # longer than one wait of the server's
            assert not writing.done()
            replica.thaw()
            assert writing.result() == 11
        journal.close()
    finally:
        replica.kill()


def test_a_promoted_replica_goes_on_where_the_killed_server_was(server: RedisServer, tmp_path: Path) -> None:
    replica = replica_of(server, tmp_path / "replica")
    journal, _, _ = opened(server.address("&replicas=1"))
    told = records(20)
    for record in told[:19]:
        journal.append([record])
    journal.close()
    server.kill()
    replica.client().replicaof("NO", "ONE")
    try:
        journal, recovery, found = opened(replica.address())
        assert found == told[:19]
        assert recovery.damage == ()
        assert journal.append(told[19:]) == 20
        journal.close()
    finally:
        replica.kill()


@pytest.mark.thorough
def test_behind_sentinels_a_promoted_replica_is_found_and_the_tracker_goes_on(
    server: RedisServer, tmp_path: Path
) -> None:
    replica = replica_of(server, tmp_path / "replica")
    sentinel = Sentinel(tmp_path / "sentinel", server)
    try:
        sentinel.wait_until(lambda: sentinel.client().sentinel_slaves("main"))
        address = f"redis+sentinel://127.0.0.1:{sentinel.port}/main?replicas=%d&lease=60"
        journal, _, _ = opened(address % 1)
        told = records(20)
        for record in told[:10]:
            journal.append([record])
        journal.close()
        journal, _, _ = opened(address % 0)
        journal.append(told[10:11])
        replica.wait_until(lambda: replica.client().hget("{tracker}:top", "last") == "11")
        server.kill()
        for record in told[11:]:
            journal.append([record])
        assert replica.client().info("replication")["role"] == "master"
        journal.close()
        # On a busy machine a sentinel may miss a server's answers for a while, and has no master then.
        sentinel.wait_until(lambda: "s_down" not in sentinel.client().sentinel_master("main")["flags"])
        journal, recovery, found = opened(address % 0)
        assert found == told
        assert recovery.damage == ()
        journal.close()
    finally:
        sentinel.kill()
        replica.kill()


# ---------------------------------------------------------------- commands that end the process


def test_a_replay_that_ends_the_process_is_counted(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    journal.append(records(3))
    journal.close()
    for starts in (0, 1, 2):
        journal, recovery, _ = opened(server.address())
        assert (recovery.suspect, recovery.starts) == ((2, starts) if starts else (0, 0))
        journal.replaying(1)
        journal.replaying(2)
        journal.close()
    journal, recovery, found = opened(server.address())
    journal.set_aside(2, found[1], "it ends the process", answered=False)
    journal.replaying(0)
    journal.close()
    journal, recovery, _ = opened(server.address())
    assert (recovery.suspect, recovery.set_aside) == (0, frozenset({LeftOut.of(2, found[1])}))
    journal.close()


def test_commands_are_carried_out_although_they_cannot_be_noted(server: RedisServer) -> None:
    journal, _, _ = opened(server.address())
    number = journal.append(records(1))
    server.kill()
    for _ in range(10):  # the system takes what it cannot deliver for a while
        journal.carrying([number])
    server.start()
    for _ in range(3):
        number = journal.append(records(1, start=number))
        journal.carrying([number])
    journal.close()
    assert len(opened(server.address())[2]) == 4


# ---------------------------------------------------------------- who may enter


def test_the_password_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = RedisServer(tmp_path / "redis", requirepass="secret")
    (tmp_path / "password").write_text("secret\n")
    try:
        with pytest.raises(JournalError, match="does not let this tracker in"):
            open_journal(server.address())
        opened(server.address(f"&password-file={tmp_path / 'password'}"))[0].close()
        monkeypatch.setenv("TRACKER_JOURNAL_PASSWORD", "secret")
        opened(server.address())[0].close()
        monkeypatch.setenv("TRACKER_JOURNAL_PASSWORD", "wrong")
        with pytest.raises(JournalError, match="does not let this tracker in") as refused:
            open_journal(server.address())
        assert "wrong" not in str(refused.value).replace("WRONGPASS", "")
    finally:
        server.kill()


def test_a_user_with_the_documented_rights_can_keep_a_journal(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "howto" / "journals.md").read_text()
    listed = guide.partition("and the commands")[2].partition(".\n")[0]
    rights = [f"+{name.lower()}" for name in re.findall(r"`([A-Z|]+)`", listed)]
    if not server.client().execute_command("COMMAND INFO", "WAITAOF")[0]:
        rights.remove("+waitaof")
    server.client().execute_command("ACL", "SETUSER", "tracker", "on", ">secret", "~{tracker}:*", *rights)
    monkeypatch.setenv("TRACKER_JOURNAL_PASSWORD", "secret")
    address = server.address("&user=tracker")
    journal, _, _ = opened(address)
    for number in (1, 2, 3):
        journal.append(records(1, start=number))
        journal.carrying([number])
        journal.snapshot(number, {"number": number})
    journal.append(records(1, start=4))
    journal.close()
    server.client().set("{tracker}:snapshot:1-3:0", "damaged")
    journal, recovery, found = opened(address)
    assert (recovery.number, len(found), len(recovery.damage)) == (2, 2, 1)
    journal.set_aside(4, found[0], "a test", answered=False)
    journal.close()
    server.client().xdel("{tracker}:log", "1-3")
    opened(address, accept_loss=True)[0].close()
    denied = server.client().acl_log()
    assert [(entry["reason"], entry["object"]) for entry in denied] == []


def test_a_connection_is_encrypted_and_both_ends_are_checked(tmp_path: Path) -> None:
    def certificate(name: str) -> tuple[Path, Path]:
        key, cert = tmp_path / f"{name}.key", tmp_path / f"{name}.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
        return cert, key

    cert, key = certificate("server")
    mine, my_key = certificate("client")
    secure = free_port()
    server = RedisServer(
        tmp_path / "redis",
        tls_port=str(secure),
        tls_cert_file=str(cert),
        tls_key_file=str(key),
        tls_ca_cert_file=str(mine),
    )
    try:
        address = f"rediss://127.0.0.1:{secure}?lease=1&ca="
        with pytest.raises(JournalError, match="cannot be reached"):
            open_journal(f"{address}{mine}&cert={mine}&key={my_key}")
        with pytest.raises(JournalError, match="cannot be reached"):
            open_journal(f"{address}{cert}")
        journal, _, _ = opened(f"{address}{cert}&cert={mine}&key={my_key}")
        journal.append(records(1))
        journal.carrying([1])
        journal.close()
        journal, recovery, found = opened(f"{address}{cert}&cert={mine}&key={my_key}")
        assert (found, recovery.unanswered) == (records(1), frozenset({1}))
        journal.close()
    finally:
        server.kill()


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(JournalError, match=r"redis://127.0.0.1:1/0.* cannot be reached"):
        open_journal("redis://127.0.0.1:1")


def test_keys_of_something_else_are_left_alone(server: RedisServer) -> None:
    server.client().set("{tracker}:top", "mine")
    with pytest.raises(JournalError, match=r"belong to something else; give another \?prefix"):
        opened(server.address())
    assert server.client().get("{tracker}:top") == "mine"


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("redis://:secret@localhost", "visible in the list of processes"),
        ("redis://localhost?durable=1", "'durable' is not an option"),
        ("redis://localhost?durability=some", "use fsync or memory"),
        ("redis://localhost?replicas=x", "not a number"),
        ("redis://localhost?replicas=-1", "use 0 to 100"),
        ("redis://localhost?lease=0", "use 0.5 to 3600"),
        ("redis://localhost?prefix={a}", "names of keys"),
        ("redis://localhost/x", "use redis://HOST"),
        ("redis://a,b", "need sentinels"),
        ("redis+sentinel://a,b", "SERVICE"),
        ("redis://:99999", "is not HOST:PORT"),
        ("redis:", "is not the address"),
        ("redisx://a", "is not the address"),
    ],
)
def test_a_wrong_address_is_refused_with_what_to_write(address: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice.replace("?", r"\?")) as refused:
        open_journal(address)
    assert "secret" not in str(refused.value)


def test_any_part_of_the_log_is_printed_without_secrets(server: RedisServer, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRACKER_JOURNAL_PASSWORD", "s3cr3t")
    from tracker.journal.redis import RedisAddress

    address = RedisAddress.parse(server.address())
    assert "s3cr3t" not in f"{address} {address!r}"
