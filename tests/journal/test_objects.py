"""The journal in an object store under death of the tracker, of the store, and of the way between them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from examples.services.jars import MissingError
from examples.services.s3 import S3
from tests.client.processes import Line
from tests.journal.faulty_objects import FaultyObjects, Shelf
from tests.journal.object_stores import Place, bucket, directory, own, place, s3
from tracker.journal import (
    FollowableJournal,
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
    RestoreUnfinishedError,
    follow_journal,
    open_journal,
    set_journal_aside,
)
from tracker.journal.objects import ObjectsAddress, open_objects_journal
from tracker.journal.objects.journal import ObjectsJournal, try_conditions
from tracker.journal.objects.lease import Lease
from tracker.journal.objects.log import Log
from tracker.journal.objects.snapshots import ObjectsSnapshots
from tracker.server.owning import stand_by
from tracker.server.replayable import Followed, ReplayableState, Started, recover
from tracker.store import NoAnswerError
from tracker.wire.codec import Method

__all__ = ["bucket", "directory", "own", "place", "s3"]  # fixtures


def records(count: int, size: int = 100, start: int = 0) -> list[Record]:
    return [Record(i % 11, 1_000 + i, bytes([i % 256]) * size) for i in range(start, start + count)]


def opened(address: str, accept_loss: bool = False) -> tuple[Journal, Recovery, list[Record]]:
    journal = open_journal(address)
    try:
        recovery = journal.recover(accept_loss)
        return journal, recovery, list(recovery.records)
    except BaseException:
        journal.close()
        raise


def taken_over(address: str, accept_loss: bool = False) -> tuple[Journal, Recovery, list[Record]]:
    """Take the journal over, as if the leader had slept for longer than its lease."""
    journal = follow_journal(address)
    assert journal is not None
    journal._lease._is_free = lambda dead: True  # type: ignore[attr-defined]
    assert journal.try_to_own()
    recovery = journal.recover(accept_loss)
    return journal, recovery, list(recovery.records)


def standby(address: str) -> FollowableJournal:
    journal = follow_journal(address)
    assert journal is not None
    return journal


def read(following: Any, count: int) -> list[tuple[int, Record]]:
    """Read so many records of a log that is followed, as they come."""
    found: list[tuple[int, Record]] = []
    while len(found) < count:
        found += following.records()
    return found


# ---------------------------------------------------------------- keeping


def test_a_log_that_nobody_has_claimed_is_not_recovered(directory: Place) -> None:
    opened(directory.address())[0].close()
    standby = follow_journal(directory.address())
    assert standby is not None
    with closing(standby), pytest.raises(JournalLockedError, match="nobody has claimed it yet"):
        standby.recover(False)


def test_what_was_appended_comes_back_in_order(place: Place) -> None:
    journal, recovery, found = opened(place.address())
    assert (recovery.state, recovery.number, found, recovery.damage) == (None, 0, [], ())
    told = records(20)
    assert journal.append(told[:1]) == 1
    assert journal.append(told[1:]) == 20
    journal.close()
    journal, recovery, found = opened(place.address())
    assert found == told
    assert recovery.damage == ()
    assert journal.append(records(1, start=20)) == 21
    journal.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_any_life_of_appends_snapshots_and_restarts_keeps_every_record(directory: Place, seed: int) -> None:
    random = Random(seed)
    journal, _, _ = opened(directory.address())
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
            journal.snapshot(covered, {"covered": covered, "labels": np.arange(random.randint(0, 1_500_000))})
        else:
            journal.close()
            journal, recovery, found = opened(directory.address())
            assert recovery.number == covered
            assert (recovery.state or {"covered": 0})["covered"] == covered
            assert found == told[covered:]
            assert recovery.damage == ()
    journal.close()


def test_the_log_is_trimmed_to_what_the_older_of_two_snapshots_needs(place: Place) -> None:
    journal, _, _ = opened(place.address())
    for number in range(1, 11):
        journal.append(records(1, start=number))
        if number in (3, 6, 8):
            journal.snapshot(number, {"number": number})
    names = place.objects.names("snapshots")
    assert sorted({name.split("-")[1] for name in names}) == ["6", "8"]
    assert len(names) == 4
    assert place.positions() == [1, 7, 8, 9, 10, 11], "the claim stays, whatever is trimmed"
    journal.close()


def test_the_remains_of_an_interrupted_clean_up_are_removed_later(
    directory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _, _ = opened(directory.address())
    with monkeypatch.context() as patch:
        patch.setattr(Log, "trim", lambda *_: None)
        for number in range(1, 6):
            journal.append(records(1, start=number))
            journal.snapshot(number, {"number": number})
    directory.objects.put("snapshots/00000000000000000006-5-unfinished/000000", b"a piece")
    journal.close()
    journal, _, found = opened(directory.address())
    assert found == []
    assert directory.groups() == [5, 6]
    for number in range(6, 8):
        journal.append(records(1, start=number))
        journal.snapshot(number, {"number": number})
    assert not [name for name in directory.objects.names("snapshots") if "unfinished" in name]
    journal.close()


@pytest.mark.parametrize("damage", ["other", "missing", "undescribed"])
def test_a_damaged_snapshot_is_set_aside_for_the_one_before(directory: Place, damage: str) -> None:
    journal, _, _ = opened(directory.address())
    for number in (1, 2, 3):
        journal.append(records(1, start=number))
        if number < 3:
            journal.snapshot(number, {"number": number})
    journal.close()
    [piece] = [name for name in directory.objects.names("snapshots") if "-2-" in name and name.endswith("/000000")]
    if damage == "other":
        directory.objects.put(piece, b"something else")
    elif damage == "missing":
        directory.objects.delete([piece])
    else:
        directory.objects.put(piece.removesuffix("000000") + "description", b"[]")
    directory.objects.put("snapshots/readme", b"somebody's own")
    journal, recovery, found = opened(directory.address())
    assert (recovery.number, recovery.state, found) == (1, {"number": 1}, records(2, start=2))
    [only] = recovery.damage
    assert (only.record, only.lost) == (2, 0)
    kept = directory.objects.names(only.set_aside)
    assert len(kept) == (1 if damage == "missing" else 2)
    journal.close()
    assert opened(directory.address())[1].damage == ()


# ---------------------------------------------------------------- one writer


def test_a_journal_in_use_is_refused_by_name_until_it_is_closed(place: Place) -> None:
    journal, _, _ = opened(place.address())
    with pytest.raises(JournalLockedError, match=r"in use by another tracker \(process \d+ on .*\); stop it"):
        open_journal(place.address())
    journal.append(records(1))
    journal.close()
    journal, _, found = opened(place.address())
    assert found == records(1)
    journal.close()


def test_trackers_with_other_prefixes_share_a_bucket(bucket: Place) -> None:
    one, _, _ = opened(bucket.address())
    other, _, found = opened(bucket.address().replace("?", "/other?"))
    one.append(records(1))
    assert found == []
    one.close()
    other.close()
    opened(bucket.address().replace("?", "/other?"))[0].close()


def test_a_tracker_that_died_on_this_machine_is_followed_at_once(place: Place) -> None:
    address = place.address().replace("lease=1", "lease=3600")
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


def test_notes_of_commands_do_not_count_once_another_machine_has_led(directory: Place, tmp_path: Path) -> None:
    journal, _, _ = opened(directory.address())
    journal.append(records(1))
    journal.carrying([1])
    journal.close()
    elsewhere = directory.address().replace(f"{tmp_path}/marks", f"{tmp_path}/elsewhere")
    journal, recovery, _ = opened(elsewhere)
    assert recovery.unanswered == frozenset()
    journal.append(records(1, start=1))
    journal.close()
    journal, recovery, found = opened(directory.address())
    assert (len(found), recovery.unanswered) == (2, frozenset())
    journal.close()


def test_without_a_place_for_notes_the_journal_works(directory: Place, tmp_path: Path) -> None:
    (tmp_path / "marks").write_text("a file is in the way")
    journal, _, _ = opened(directory.address())
    journal.append(records(1))
    journal.carrying([1])
    journal.close()
    journal, recovery, found = opened(directory.address())
    assert (found, recovery.unanswered) == (records(1), frozenset())
    journal.close()


def test_without_a_named_place_notes_are_in_this_users_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    journal, _, _ = opened(f"file://{tmp_path}/journal")
    journal.append(records(1))
    journal.carrying([1])
    assert {path.name for path in tmp_path.iterdir()} == {"journal", f"substream-tracker-{os.getuid()}"}
    assert (tmp_path / f"substream-tracker-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    journal.close()
    journal, recovery, _ = opened(f"file://{tmp_path}/journal")
    assert recovery.unanswered == {1}
    journal.close()


def test_no_notes_go_into_a_directory_that_another_user_has_made(
    directory: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "marks").mkdir()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    journal, _, _ = opened(directory.address())
    journal.append(records(1))
    journal.carrying([1])
    journal.close()
    assert "belongs to another user" in caplog.text
    assert list((tmp_path / "marks").iterdir()) == []


def test_a_journal_is_not_given_back_during_a_sign_of_life(directory: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would come after the release and take it back, in the name of a tracker that is gone."""
    journal, _, _ = opened(directory.address())
    lease = journal._lease  # type: ignore[attr-defined]
    put, under_way, go_on = lease._objects.put, threading.Event(), threading.Event()

    def slow(name: str, data: bytes) -> None:
        if threading.current_thread() is lease._beating:
            under_way.set()
            go_on.wait()
        put(name, data)

    monkeypatch.setattr(lease._objects, "put", slow)
    monkeypatch.setattr("tracker.journal.objects.lease._LAST_BEAT_S", 0.01)
    assert under_way.wait(60)
    journal.close()
    [beat] = directory.objects.names("beats")
    assert b'"released": false' in (directory.objects.get(beat) or b"")
    go_on.set()
    lease._beating.join()


def test_what_another_tracker_has_written_is_durable_before_it_counts(
    directory: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory: the writer may have died between its write and its sync."""
    objects = directory.objects
    objects.put("trial/a", b"content")
    synced: list[Path] = []
    monkeypatch.setattr("tracker.store.directory.sync", synced.append)
    assert objects.get("trial/a") == b"content"
    own = [path for path in synced if path.is_relative_to(tmp_path)]  # the journals of earlier tests show signs of life
    assert [path.name for path in own] == ["a", "trial"]


def test_a_tracker_that_died_elsewhere_is_followed_after_its_lease(
    directory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracker.journal.objects.journal.new_holder", lambda: '{"host": "a", "pid": 1, "machine": "x"}')
    died, _, _ = opened(directory.address())
    died.append(records(1))
    died._lease._closed.set()  # type: ignore[attr-defined]
    died._lease._beating.join()  # type: ignore[attr-defined]
    started = time.monotonic()
    journal, _, found = opened(directory.address())
    assert time.monotonic() - started >= 1, "it may live for as long as its lease has not run out"
    assert found == records(1)
    journal.close()


def test_a_writer_that_slept_through_its_lease_writes_nothing_more(place: Place) -> None:
    old, _, _ = opened(place.address().replace("lease=1", "lease=3600"))
    gone: list[JournalGoneError] = []
    old.when_gone(gone.append)
    old.append(records(1))
    new, _, found = taken_over(place.address())
    assert found == records(1)
    with pytest.raises(JournalGoneError, match="another tracker has taken over"):
        old.append(records(5, start=100))
    with pytest.raises(JournalGoneError):
        old.snapshot(1, {"of": "old"})
    assert new.append(records(1, start=1)) == 2
    old.close()
    assert len(gone) == 1
    with pytest.raises(JournalLockedError):
        open_journal(place.address())
    new.close()
    journal, recovery, found = opened(place.address())
    assert (recovery.state, found) == (None, records(2))
    journal.close()


def test_a_writer_that_slept_while_the_log_was_trimmed_finds_the_claim(directory: Place) -> None:
    old, _, _ = opened(directory.address().replace("lease=1", "lease=3600"))
    old.append(records(1))
    new, _, _ = taken_over(directory.address())
    for number in range(2, 8):
        new.append(records(1, start=number))
        new.snapshot(number, {"number": number})
    assert directory.groups() == [8, 9]
    with pytest.raises(JournalGoneError, match="another tracker has taken over"):
        old.append(records(1))
    old.close()
    new.close()
    journal, recovery, found = opened(directory.address())
    assert (recovery.number, recovery.damage, found) == (7, (), [])
    journal.close()


def test_a_tracker_that_slept_before_its_claim_claims_nothing_past(directory: Place) -> None:
    leader, _, _ = opened(directory.address())
    leader.append(records(1))
    sleeper: Any = standby(directory.address())
    assert not sleeper.try_to_own()  # it has seen entry 2 as the newest
    for number in range(2, 8):
        leader.append(records(1, start=number))
        leader.snapshot(number, {"number": number})
    lease = sleeper._lease
    lease._is_free = lambda dead: True
    lease._find_end = lambda: None  # it wakes up behind that look
    lease._looked = -100
    assert not sleeper.try_to_own()
    assert directory.groups() == [7, 8]
    leader.append(records(1, start=8))
    leader.close()
    sleeper.close()
    assert opened(directory.address())[1].damage == ()


def test_a_tracker_that_slept_after_its_claim_has_lost_the_log(directory: Place) -> None:
    sleeper: Any = standby(directory.address())
    is_past = sleeper._log.is_past
    others: list[Journal] = []

    def sleep(position: int) -> bool:
        if not others:
            others.append(taken_over(directory.address())[0])
            others[0].append(records(1))
        past: bool = is_past(position)
        return past

    sleeper._log.is_past = sleep
    assert not sleeper.try_to_own()
    others[0].append(records(1, start=1))
    others[0].close()
    sleeper.close()
    journal, recovery, found = opened(directory.address())
    assert (recovery.damage, found) == ((), records(2))
    journal.close()


@pytest.mark.parametrize("waits", [True, False], ids=["waits since before", "starts"])
@pytest.mark.parametrize("lost", [(4,), (3, 4), (1, 2, 3, 4)], ids=["newest", "two", "all"])
def test_lost_entries_that_a_snapshot_covers_keep_no_tracker_from_leading(
    directory: Place, waits: bool, lost: tuple[int, ...]
) -> None:
    """A claim in their place is void: its tracker waited for itself for ever."""
    leader, _, _ = opened(directory.address())
    leader.append(records(1))
    waiting = standby(directory.address())
    assert not waiting.try_to_own()  # it has seen entry 2 as the newest
    leader.append(records(1))
    leader.append(records(1))
    leader.snapshot(3, {"number": 3})
    leader.close()
    directory.lose(*lost)
    if not waits:
        waiting.close()
        waiting = standby(directory.address())
    until = time.monotonic() + 20
    while not waiting.try_to_own() and time.monotonic() < until:
        time.sleep(0.1)
    recovery = waiting.recover()
    assert (recovery.state, recovery.damage, [*recovery.records]) == ({"number": 3}, (), [])
    waiting.append(records(1))
    waiting.close()
    journal, recovery, found = opened(directory.address())
    assert (recovery.damage, found) == ((), records(1))
    journal.close()


def test_a_void_claim_never_stands_for_an_entry_that_was_not_read(directory: Place) -> None:
    leader, _, _ = opened(directory.address())
    leader.append(records(1))
    slow: Any = standby(directory.address())
    assert not slow.try_to_own()
    leader.append(records(1))
    leader.snapshot(2, {"number": 2})
    leader.close()
    directory.lose(3)
    lease, reads = slow._lease, slow._log.read
    lease._is_free, lease._seconds = (lambda dead: True), 0.0
    assert not slow.try_to_own()  # its claim at 3 is void
    others: list[Journal] = []

    def unanswered(position: int) -> None:
        raise NoAnswerError(str(position))

    def sleep(dead: bool) -> bool:
        others.append(taken_over(directory.address())[0])
        slow._log.read = unanswered
        return True

    lease._is_free = sleep
    assert not slow.try_to_own()  # another one has claimed entry 4
    with pytest.raises(JournalError):
        slow.try_to_own()
    slow._log.read, lease._is_free = reads, (lambda dead: False)
    assert not slow.try_to_own()
    slow.close()
    others[0].append(records(1))
    others[0].close()


def test_the_owner_is_confirmed_and_another_one_is_not(place: Place) -> None:
    old, _, _ = opened(place.address().replace("lease=1", "lease=3600"))
    old.confirm()
    old.append(records(1))
    old.confirm()
    new, _, _ = taken_over(place.address())
    with pytest.raises(JournalGoneError, match="another tracker has taken over"):
        old.confirm()
    new.confirm()
    old.close()
    new.close()


def test_an_idle_writer_finds_out_that_another_one_has_taken_over(directory: Place) -> None:
    old, _, _ = opened(directory.address())
    gone = threading.Event()
    old.when_gone(lambda error: gone.set())
    new, _, _ = taken_over(directory.address())
    assert gone.wait(60)
    old.close()
    new.close()


@pytest.mark.parametrize("kind", ["bucket", pytest.param("directory", marks=pytest.mark.slow)])
def test_of_many_that_start_at_once_one_gets_the_journal(kind: str, request: pytest.FixtureRequest) -> None:
    where: Place = request.getfixturevalue(kind)

    def start(_: int) -> Journal | None:
        try:
            return opened(where.address())[0]
        except JournalError:
            return None

    with ThreadPoolExecutor(8) as pool:
        started = [journal for journal in pool.map(start, range(8)) if journal is not None]
    assert len(started) == 1
    started[0].append(records(1))
    started[0].close()


# ---------------------------------------------------------------- standing by


def test_a_standby_reads_all_but_the_last_two_groups_and_recovers_those(place: Place) -> None:
    leader, _, _ = opened(place.address())
    told = records(12)
    leader.append(told[:4])
    leader.snapshot(4, {"number": 4})
    waiting = standby(place.address())
    assert not waiting.try_to_own()
    state, following = waiting.follow()
    assert state == {"number": 4}
    for start in (4, 6, 8, 10):
        leader.append(told[start : start + 2])
    assert read(following, 4) == list(enumerate(told[4:8], 5))
    leader.close()
    while not waiting.try_to_own():
        time.sleep(0.01)
    recovery = waiting.recover(followed=following.place)
    assert (recovery.state, recovery.number, list(recovery.records)) == (None, 8, told[8:])
    assert waiting.append(records(1)) == 13
    waiting.close()


def test_a_standby_that_is_too_slow_begins_again_with_the_newest_snapshot(directory: Place) -> None:
    leader, _, _ = opened(directory.address())
    waiting = standby(directory.address())
    leader.append(records(1))
    _, following = waiting.follow()
    assert list(following.records()) == []
    for number in range(2, 7):
        leader.append(records(1, start=number))
        leader.snapshot(number, {"number": number})
    with pytest.raises(LostTrackError):
        read(following, 1)
    state, following = waiting.follow()
    assert (state, following.place.number) == ({"number": 6}, 6)
    leader.close()
    waiting.close()


def test_a_standby_of_a_leaderless_log_with_a_hole_finds_the_loss(directory: Place) -> None:
    """It would begin again with the newest snapshot for ever, and no tracker would lead."""
    leader, _, _ = opened(directory.address())
    leader.append([Record(Method.STARTED, 1, Started("log", "", 0).payload())])
    for at in range(2, 6):
        leader.append([Record(Method.TICK, at, b"nobody")])
    leader.close()
    directory.lose(directory.groups()[2])
    waiting = standby(directory.address())
    followed = stand_by(waiting, lambda: False, lambda: None)
    with pytest.raises(JournalLossError, match=r"3 acknowledged records are lost .*--accept-loss"):
        recover(waiting, 1, 6, followed=followed)
    waiting.close()


@pytest.mark.parametrize("now", ["empty", "older", "another log"])
@pytest.mark.parametrize("leads", [True, False], ids=["takes over", "waits"])
def test_a_standby_that_has_read_more_than_there_is_finds_the_loss(directory: Place, now: str, leads: bool) -> None:
    """The standby's own claim, at the end of what is left, would hide that more was there."""

    def written(life: bytes) -> None:
        leader, _, _ = opened(directory.address())
        leader.append([Record(Method.STARTED, 1, Started("log", "", 0).payload())])
        for at in range(2, 8):
            leader.append([Record(Method.TICK, at, life)])
        leader.close()

    written(b"first")
    waiting = standby(directory.address())
    _, following = waiting.follow()
    followed = ReplayableState()
    for number, record in read(following, 5):
        followed.replay(number, record)
    directory.lose(*(each for each in directory.positions() if each > 6 or now != "older"))
    if now == "another log":
        written(b"second")
    goes_on: Callable[[], object]
    if leads:
        waiting._lease._is_free = lambda dead: True  # type: ignore[attr-defined]
        assert waiting.try_to_own()
        goes_on = partial(recover, waiting, 1, 8, followed=Followed(waiting, followed, following.place))
    else:
        goes_on = partial(read, following, 1)
    with pytest.raises(JournalLossError, match=r"has lost records up to 7, .*--accept-loss"):
        goes_on()
    waiting.close()
    with pytest.raises(JournalLossError):
        opened(directory.address())


def test_a_standby_that_has_read_only_a_snapshot_finds_a_loss_too(directory: Place) -> None:
    leader, _, _ = opened(directory.address())
    leader.append(records(4))
    leader.snapshot(4, {"number": 4})
    waiting = standby(directory.address())
    _, following = waiting.follow()
    assert list(following.records()) == []
    leader.close()
    objects = directory.objects
    objects.delete([name for folder in ("log", "snapshots") for name in objects.names(folder)])
    assert waiting.try_to_own()
    with pytest.raises(JournalLossError, match="has lost records up to 4"):
        waiting.recover(followed=following.place)
    waiting.close()


def test_a_standby_that_has_read_what_was_given_up_begins_again(directory: Place) -> None:
    leader, _, _ = opened(directory.address())
    for number in range(1, 9):
        leader.append(records(1, start=number))
    waiting = standby(directory.address())
    _, following = waiting.follow()
    assert len(read(following, 6)) == 6
    directory.lose(4)
    leader.close()
    leader, recovery, found = opened(directory.address(), accept_loss=True)
    assert (len(found), recovery.damage[-1].lost) == (2, 6)
    for number in range(3):
        leader.append(records(1, start=20 + number))
    with pytest.raises(LostTrackError):
        read(following, 1)
    _, following = waiting.follow()
    assert [number for number, _ in read(following, 3)] == [1, 2, 3]
    leader.close()
    waiting.close()


# ---------------------------------------------------------------- the store and the way to it


def test_a_write_whose_answer_is_lost_counts_once(bucket: Place, s3: S3) -> None:
    line = Line(f"127.0.0.1:{s3.port}")
    journal, _, _ = opened(
        bucket.address().replace(s3.endpoint, f"http://{line.address}").replace("lease=1", "lease=60")
    )
    told = records(8)
    journal.append(told[:1])
    for number in range(1, 8):
        line.hold_answers(after=b"PUT /state/")
        cutter = threading.Timer(0.1, line.cut)
        cutter.start()
        assert journal.append([told[number]]) == number + 1
        cutter.join()
    journal.close()
    line.close()
    journal, recovery, found = opened(bucket.address())
    assert found == told
    assert recovery.damage == ()
    journal.close()


@pytest.mark.slow
def test_a_store_killed_again_and_again_loses_nothing_acknowledged(bucket: Place, s3: S3) -> None:
    journal, _, _ = opened(bucket.address())
    told: list[Record] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            group = records(3, start=len(told))
            journal.append(group)
            told.extend(group)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        for _ in range(2):
            seen = len(told)
            while len(told) <= seen + 30 and not writing.done():
                time.sleep(0.01)
            s3.kill()
            s3.start()
        stop.set()
        writing.result()
    journal.close()
    journal, recovery, found = opened(bucket.address())
    assert found == told
    assert recovery.damage == ()
    journal.close()


def test_while_the_store_is_away_a_write_waits_until_interrupted(bucket: Place, s3: S3) -> None:
    journal, _, _ = opened(bucket.address())
    s3.kill()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(journal.append, records(1))
        time.sleep(0.2)
        assert not writing.done()
        journal.interrupt()
        with pytest.raises(JournalGoneError, match="whether they count is unknown"):
            writing.result()
    journal.close()
    s3.start()


@pytest.mark.slow
def test_a_store_that_cannot_keep_up_is_asked_again(bucket: Place, s3: S3) -> None:
    """By a real proxy that answers each fourth request with 503, before its effect or after it."""
    from tests.journal.throttle import Throttle

    with Throttle(s3.port) as throttle:
        journal, _, _ = opened(bucket.address().replace(s3.endpoint, throttle.endpoint))
        told = records(20)
        for number, record in enumerate(told, 1):
            assert journal.append([record]) == number
            if number % 8 == 0:
                journal.snapshot(number, {"number": number})
        journal.close()
        assert throttle.refused > 10
    journal, recovery, found = opened(bucket.address())
    assert (recovery.number, found, recovery.damage) == (16, told[16:], ())
    journal.close()


class Unconditional(FaultyObjects):
    """A store that ignores the condition of a write, or forgets it when several write at once."""

    def create(self, name: str, data: bytes) -> bool:
        self.put(name, data)
        return True


class Silent(FaultyObjects):
    """A store that answers the first few requests not at all, and each request after them."""

    def __init__(self, silent: int) -> None:
        super().__init__(Shelf(Random(0)), Random(0), meanwhile=self._answer)
        self._silent = silent

    def _answer(self) -> None:
        self._silent -= 1
        if self._silent >= 0:
            raise NoAnswerError("no answer")


def test_a_snapshot_is_kept_once_the_store_answers_or_given_up() -> None:
    pauses: list[float] = []
    ObjectsSnapshots(Silent(7), "here", pauses.append).write(1, 1, {"number": 1}, lambda: None)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4]
    with pytest.raises(JournalError, match="here has not answered while a snapshot was written: no answer"):
        ObjectsSnapshots(Silent(8), "here", pauses.append).write(1, 1, {"number": 1}, lambda: None)


def test_a_silent_store_is_not_taken_for_one_in_use(tmp_path: Path) -> None:
    for step in range(1, 60):  # between any two looks at the clock, the time to wait may end
        clock = count(0.0, step / 1000).__next__
        with pytest.raises(JournalError, match="no answer") as refused:
            ObjectsJournal(Silent(1_000_000), "here", 0.01, str(tmp_path), clock=clock)
        assert not isinstance(refused.value, JournalLockedError)


def test_objects_that_are_not_there_are_removed_like_others(place: Place) -> None:
    objects = place.objects
    for name in ("a", "c"):
        objects.put(f"trial/{name}", b"content")
    objects.delete(["trial/a", "trial/b", "trial/c"])
    objects.delete(["trial/b"])
    assert objects.names("trial") == []


def test_a_store_that_ignores_conditions_is_refused() -> None:
    with pytest.raises(JournalError, match=r"has created one object 9 times.*use a store that does"):
        try_conditions(Unconditional(Shelf(Random(0)), Random(0)), "here")


def test_a_full_disk_refuses_until_there_is_room_again(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        address = f"file://{disk}/journal?lease=3600&marks={tmp_path}/marks"
        journal, _, _ = opened(address)
        journal.append(records(1))
        large = records(1, size=300_000)
        with pytest.raises(JournalFullError, match="has no room"):
            journal.append(large)
        with pytest.raises(JournalFullError, match="has refused a snapshot"):
            journal.snapshot(1, {"content": large[0].payload})
        assert journal.append(records(1, start=1)) == 2
        journal.close()
        journal, _, found = opened(address)
        assert found == records(2)
        journal.close()
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


# ---------------------------------------------------------------- lost objects


@pytest.mark.parametrize("idle", [True, False], ids=["idle", "writing"])
def test_a_lost_tail_stops_the_tracker_and_needs_the_operators_consent(directory: Place, idle: bool) -> None:
    lease = "lease=1" if idle else "lease=3600"
    journal, _, _ = opened(directory.address().replace("lease=1", lease))
    gone: list[JournalGoneError] = []
    found_out = threading.Event()
    journal.when_gone(lambda error: gone.append(error) or found_out.set())
    journal.append(records(3))
    journal.append(records(2, start=3))
    directory.lose(3)
    if not idle:
        with pytest.raises(JournalGoneError):
            journal._log.look()  # type: ignore[attr-defined]
    else:
        assert found_out.wait(60)
        assert "has lost records up to 5, which were acknowledged" in str(gone[0])
    journal.close()
    with pytest.raises(JournalLossError, match=r"2 acknowledged records are lost.*--accept-loss"):
        opened(directory.address())
    silent, _, _ = opened(directory.address(), accept_loss=True)
    silent._log.look()  # type: ignore[attr-defined]  # as a leader does again and again
    silent.close()  # it ended before it could tell anybody
    with pytest.raises(JournalLossError):
        opened(directory.address())
    journal, recovery, found = opened(directory.address(), accept_loss=True)
    assert found == records(3)
    assert recovery.tail_lost
    assert recovery.damage[-1].lost == 2
    assert journal.append(records(1, start=9)) == 4
    journal.close()
    journal, recovery, found = opened(directory.address())
    assert (recovery.damage, len(found)) == ((), 4)
    journal.close()


def test_a_leader_whose_lost_entries_a_snapshot_covers_goes_on(directory: Place) -> None:
    leader, _, _ = opened(directory.address().replace("lease=1", "lease=3600"))
    leader.append(records(3))
    leader.append(records(2, start=3))
    leader.snapshot(5, {"after": 5})
    directory.lose(directory.groups()[-1])
    leader._log.look()  # type: ignore[attr-defined]
    leader.append(records(1, start=5))
    leader.close()
    journal, recovery, found = opened(directory.address())
    assert (recovery.state, found, recovery.damage) == ({"after": 5}, records(1, start=5), ())
    journal.close()


def test_a_leader_that_writes_into_an_emptied_store_finds_that_out(directory: Place) -> None:
    leader, _, _ = opened(directory.address().replace("lease=1", "lease=3600"))
    leader.append(records(3))
    directory.lose(*directory.positions())
    leader.append(records(1, start=3))
    with pytest.raises(JournalGoneError, match="has lost records up to 4"):
        leader._log.look()  # type: ignore[attr-defined]
    leader.close()


@pytest.mark.parametrize("begins_with", ["what the log has", "its records"])
def test_a_store_that_is_emptied_while_it_is_read_needs_consent(
    directory: Place, monkeypatch: pytest.MonkeyPatch, begins_with: str
) -> None:
    leader, _, _ = opened(directory.address())
    leader.append(records(5))
    leader.close()
    monkeypatch.setattr("tracker.journal.objects.journal._KEPT", 0)
    journal = open_journal(directory.address().replace("lease=1", "lease=3600"))
    if begins_with == "what the log has":
        monkeypatch.setattr(journal, "_survey", emptied(directory, journal._survey))  # type: ignore[attr-defined]
        with pytest.raises(JournalGoneError, match="has lost records up to"):
            journal.recover()
    else:
        recovery = journal.recover()
        directory.lose(*directory.positions())
        with pytest.raises(JournalGoneError, match="has lost records up to 5"):
            list(recovery.records)
    journal.close()
    with pytest.raises(JournalLossError, match="--accept-loss"):
        opened(directory.address())


def emptied(directory: Place, call: Any) -> Any:
    """Return a call before which a store loses its log."""

    def after_a_loss(*arguments: Any) -> Any:
        directory.lose(*directory.positions())
        return call(*arguments)

    return after_a_loss


def test_an_accepted_loss_whose_note_could_not_be_removed_is_removed_later(
    directory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _, _ = opened(directory.address())
    journal.append(records(3))
    journal.append(records(2, start=3))
    directory.lose(3)
    with pytest.raises(JournalGoneError):
        journal._log.look()  # type: ignore[attr-defined]
    journal.close()
    journal, _, _ = opened(directory.address().replace("lease=1", "lease=3600"), accept_loss=True)
    log = journal._log  # type: ignore[attr-defined]
    with monkeypatch.context() as silent:
        silent.setattr(log._objects, "delete", Silent(1_000).delete)
        journal.append(records(1, start=3))
    assert log.noted_loss() == 5
    log.look()
    assert log.noted_loss() == 0
    journal.close()


def test_a_loss_that_the_next_tracker_could_not_see_stops_it_too(
    directory: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as asleep:  # else it could look between the loss and the claim, and note the loss
        asleep.setattr(Lease, "_keep", lambda lease: None)
        old, _, _ = opened(directory.address())
    old.append(records(3))
    old.append(records(2, start=3))
    directory.lose(3)
    new, recovery, _ = taken_over(directory.address())
    assert recovery.damage == (), "the store has nothing from which it could know"
    gone = threading.Event()
    new.when_gone(lambda error: gone.set())
    new.append(records(1, start=3))
    with pytest.raises(JournalGoneError, match="has lost records up to 5"):
        old.append(records(1, start=5))
    assert gone.wait(60)
    old.close()
    new.close()
    with pytest.raises(JournalLossError):
        opened(directory.address())


@pytest.mark.parametrize("damage", ["missing", "other", "older"])
def test_a_changed_entry_is_noticed_and_what_follows_is_given_up(directory: Place, damage: str) -> None:
    journal, _, _ = opened(directory.address())
    for number in range(5):
        journal.append(records(1, start=number))
    journal.close()
    if damage == "missing":
        directory.lose(4)
    else:
        content = directory.objects.get(f"log/{3 if damage == 'older' else 4:020}")
        assert content is not None
        directory.objects.put(f"log/{4:020}", content if damage == "older" else content[:-1] + b"?")
    with pytest.raises(JournalLossError, match="3 acknowledged records are lost"):
        opened(directory.address())
    journal, recovery, found = opened(directory.address(), accept_loss=True)
    assert found == records(2)
    [only] = recovery.damage
    assert (only.record, only.lost) == (3, 3)
    for number in range(4):
        journal.append(records(1, start=30 + number))
    journal.close()
    journal, recovery, found = opened(directory.address())
    assert (recovery.damage, found) == ((), records(2) + records(4, start=30))
    waiting = standby(directory.address())
    _, following = waiting.follow()
    assert [number for number, _ in read(following, 4)] == [1, 2, 3, 4]
    waiting.close()
    journal.close()


def test_an_entry_of_a_newer_version_is_not_taken_for_a_damage(directory: Place) -> None:
    journal, _, _ = opened(directory.address())
    journal.append(records(1))
    journal.close()
    content = directory.objects.get(f"log/{2:020}")
    assert content is not None
    directory.objects.put(f"log/{2:020}", content.replace(b"tracker-log 1", b"tracker-log 2"))
    with pytest.raises(JournalError, match=r"entry 2 of the log has format 2.*a newer one"):
        opened(directory.address(), accept_loss=True)


# ---------------------------------------------------------------- commands that end the process


def test_a_replay_that_ends_the_process_is_counted(directory: Place) -> None:
    journal, _, _ = opened(directory.address())
    journal.append(records(3))
    journal.close()
    for starts in (0, 1, 2):
        journal, recovery, _ = opened(directory.address())
        assert (recovery.suspect, recovery.starts) == ((2, starts) if starts else (0, 0))
        journal.replaying(1)
        journal.replaying(2)
        journal.close()
    journal, recovery, found = opened(directory.address())
    journal.set_aside(2, found[1], "it ends the process", answered=False)
    journal.replaying(0)
    journal.close()
    journal, recovery, _ = opened(directory.address())
    assert (recovery.suspect, recovery.set_aside) == (0, frozenset({LeftOut.of(2, found[1])}))
    journal.close()


# ---------------------------------------------------------------- who may enter


def test_credentials_come_from_the_environment_or_a_file(
    bucket: Place, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(bucket.address())[0].close()
    key, secret = s3.environment["AWS_ACCESS_KEY_ID"], s3.environment["AWS_SECRET_ACCESS_KEY"]
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=wr0ng\n")
    from_file = bucket.address(f"&credentials-file={file}")
    with pytest.raises(JournalError, match="does not let this tracker in") as refused:
        open_journal(from_file)
    assert "wr0ng" not in str(refused.value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wr0ng")
    file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")
    opened(from_file)[0].close()
    with pytest.raises(JournalError, match="does not let this tracker in"):
        open_journal(bucket.address())
    file.write_text(f"[other]\n{secret}")
    with pytest.raises(JournalError, match=r"needs a section \[default\]") as malformed:
        open_journal(from_file)
    assert secret not in str(malformed.value)
    file.unlink()
    with pytest.raises(JournalError, match="cannot be read"):
        open_journal(from_file)


@pytest.mark.slow
def test_the_connection_is_encrypted_and_the_store_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days"]
    make += ["2", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert), "-addext"]
    of_a_server = ["subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*make, *of_a_server], check=True, capture_output=True)
    try:
        store = S3(tmp_path / "store", certificate=(cert, key))
    except MissingError as missing:
        pytest.skip(str(missing))
    for variable, value in store.environment.items():
        monkeypatch.setenv(variable, value)
    with store:
        address = f"{store.journal}&lease=1&marks={tmp_path}/marks"
        with pytest.raises(JournalError, match="cannot be reached"):
            open_journal(address)
        journal, _, _ = opened(f"{address}&ca={cert}")
        journal.append(records(1))
        journal.close()
        journal, _, found = opened(f"{address}&ca={cert}")
        assert found == records(1)
        journal.close()
    with pytest.raises(JournalError, match=r"authorities' file .* cannot be read"):
        open_journal(f"{address}&ca={tmp_path}/nothing")
    with pytest.raises(JournalError, match="No certificates found"):
        open_journal(f"{address}&ca={key}")


@pytest.mark.thorough
def test_a_store_or_bucket_that_is_not_there_is_named(bucket: Place, s3: S3) -> None:
    with pytest.raises(JournalError, match=r"s3://state/.* at http://127.0.0.1:1 cannot be reached"):
        open_journal(bucket.address().replace(s3.endpoint, "http://127.0.0.1:1"))
    with pytest.raises(JournalError, match=r"s3://nothing/.* is not there: .*NoSuchBucket"):
        open_journal(bucket.address().replace("state", "nothing"))


def test_the_files_of_a_directory_are_private(directory: Place, tmp_path: Path) -> None:
    journal, _, _ = opened(directory.address())
    journal.carrying([1])
    journal.close()
    for folder in ("journal", "marks"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "tracker.store.objects", raising=False)
    with pytest.raises(JournalError, match=r"pip install 'substream-tracker\[object-store\]'"):
        open_objects_journal("s3://nowhere/a")


def test_a_journal_set_aside_makes_way_for_a_backup_and_opens(place: Place) -> None:
    sleeper, _, _ = opened(place.address().replace("lease=1", "lease=3600"))
    sleeper.append(records(2))
    sleeper.snapshot(2, {"old": True})
    lagging = standby(place.address())
    _, following = lagging.follow()
    aside = set_journal_aside(place.address())
    with pytest.raises(RestoreUnfinishedError, match="was interrupted"):
        opened(place.address())
    following._look_s = 0  # type: ignore[attr-defined]
    assert [*following.records(), *following.records()] == [], "what was moved is not lost"
    journal = open_journal(place.address(), restoring=True)
    recovery = journal.recover()
    assert (recovery.state, [*recovery.records], recovery.damage) == (None, [], ())
    assert journal.append(records(1, start=7)) == 1
    journal.snapshot(1, {"new": True})
    journal.end_restore()
    journal.close()
    with pytest.raises(JournalGoneError, match="another tracker has taken over"):
        sleeper.append(records(1))
    with pytest.raises(LostTrackError):
        read(following, 1)
    journal, recovery, found = opened(place.address())
    assert (recovery.state, found, recovery.damage) == ({"new": True}, [], ())
    journal.close()
    folder, _, where = aside.partition(" in ")
    base, _, options = place.address().partition("?")
    assert base.startswith(where.partition(" at ")[0])
    journal, recovery, found = opened(f"{base}/{folder}?{options}")
    assert (recovery.state, found) == ({"old": True}, [])
    journal.close()
    lagging.close()
    sleeper.close()


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("s3://key:secret@bucket", "visible in the list of processes"),
        ("s3://bucket?durable=1", "'durable' is not an option"),
        ("s3://bucket?lease=x", "not a number"),
        ("s3://bucket?lease=0", "use 0.5 to 3600"),
        ("s3://bucket?timeout=0", "use 0.5 to 600"),
        ("s3://bucket?account=a", "account is not an option of s3://, only of az"),
        ("gs://bucket?region=a", "region is not an option of gs://"),
        ("file:///a?endpoint=http://b", "endpoint is not an option of file://"),
        ("s3://bucket?endpoint=localhost:9000", "use https://HOST:PORT"),
        ("s3://bucket?endpoint=http://a&ca=b", "only where the connection is encrypted"),
        ("s3://bucket/a//b", "joined by single '/'"),
        ("s3://bucket/../b", "joined by single '/'"),
        ("s3:///prefix", "has no bucket"),
        ("s3:", "has no bucket"),
        ("file://host/a", "use file:///DIRECTORY"),
        ("file:///", "use file:///DIRECTORY"),
        ("file:relative", "use file:///DIRECTORY"),
        ("az://container#a", "is not the address"),
    ],
)
def test_a_wrong_address_is_refused_with_what_to_write(address: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice.replace("?", r"\?")) as refused:
        open_journal(address)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "printed"),
    [
        ("gs://bucket/a/b?credentials-file=c", "gs://bucket/a/b"),
        ("az://container?account=a&endpoint=https://b", "az://container at https://b"),
        ("file:///a/b", "file:///a/b"),
    ],
)
def test_an_address_is_printed_as_it_can_be_written(address: str, printed: str) -> None:
    assert str(ObjectsAddress.parse(address)) == printed
