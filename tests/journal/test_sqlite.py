"""The embedded journal: the records that it keeps, and its errors when it cannot."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tracker.journal import (
    JournalError,
    JournalFullError,
    JournalLockedError,
    JournalLossError,
    LeftOut,
    Record,
    Recovery,
    SqliteJournal,
    open_journal,
    sqlite,
)
from tracker.journal.sqlite import APPLICATION


def records(count: int, size: int = 100, start: int = 0) -> list[Record]:
    return [Record(i % 11, 1_000 + i, bytes([i % 256]) * size) for i in range(start, start + count)]


def opened(path: Path) -> tuple[SqliteJournal, Recovery, list[Record]]:
    journal = SqliteJournal(path)
    try:
        recovery = journal.recover(accept_loss=True)
        return journal, recovery, list(recovery.records)
    except JournalError:
        journal.close()
        raise


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tracker.db"


def test_what_was_appended_comes_back_in_order(path: Path) -> None:
    journal, recovery, found = opened(path)
    assert (recovery.state, recovery.number, found, recovery.damage) == (None, 0, [], ())
    told = records(20)
    assert journal.append(told[:1]) == 1
    assert journal.append(told[1:]) == 20
    journal.close()
    journal, recovery, found = opened(path)
    assert found == told
    assert recovery.damage == ()
    assert journal.append(records(1, start=20)) == 21
    journal.close()


def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    """The writer prints each number after its append has returned, and is killed in the middle of its work."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert writer.stdout is not None
    acknowledged = 0
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged > 200:
            break
    writer.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
    writer.wait()
    journal, recovery, found = opened(path)  # at once: the lock has gone with its process
    assert recovery.damage == ()
    assert len(found) >= acknowledged
    assert found == records(len(found), size=3000)
    journal.close()


_WRITER = """
import sys
from tests.journal.test_sqlite import opened, records
journal, _, _ = opened(sys.argv[1])
told = 0
while True:
    told = journal.append(records(3, size=3000, start=told))
    print(told, flush=True)
"""


def test_a_second_process_is_refused_and_told_who_owns_the_journal(path: Path) -> None:
    journal, _, _ = opened(path)
    with pytest.raises(JournalLockedError, match=f"in use by process {os.getpid()}"):
        SqliteJournal(path)
    journal.append(records(1))
    journal.close()
    journal, _, found = opened(path)
    assert found == records(1)
    journal.close()


def test_a_second_process_is_refused_even_if_the_lock_file_was_removed(path: Path) -> None:
    journal, _, _ = opened(path)
    journal.append(records(1))
    path.with_name("tracker.db-lock").unlink()
    other = SqliteJournal(path)
    with pytest.raises(JournalError, match="locked"):
        other.recover()
    other.close()
    journal.close()


class TestSnapshots:
    def test_the_newest_and_the_records_after_it_come_back(self, path: Path) -> None:
        state = {"names": ["a"] * 9000, "xor": np.arange(10, dtype=np.uint64), "nested": {1: [None, True, b"x", -1]}}
        journal, _, _ = opened(path)
        told = records(30)
        journal.append(told[:10])
        journal.snapshot(10, {"after": 10})
        journal.append(told[10:20])
        assert journal.snapshot(20, state) > 10_000
        journal.append(told[20:])
        journal.close()
        journal, recovery, found = opened(path)
        assert recovery.number == 20
        assert found == told[20:]
        np.testing.assert_equal(recovery.state, state)
        recovery.state["xor"][0] = 7  # it is the reader's own
        journal.close()

    def test_disk_stays_bounded(self, path: Path) -> None:
        """Old records go, their room is used again, two snapshots are kept."""
        journal, _, _ = opened(path)
        for _ in range(60):
            for _ in range(20):
                number = journal.append(records(1, size=100_000))
            journal.snapshot(number, {"number": number})
        # 120 MB were written; 4 MB of them, and the write-ahead log up to its checkpoint, are still there.
        assert path.stat().st_size < 8_000_000
        assert path.with_name("tracker.db-wal").stat().st_size < 70_000_000
        assert len(list(path.parent.glob("*-snapshot-*"))) == 2
        journal.close()
        journal, recovery, found = opened(path)
        assert (recovery.number, found) == (1200, [])
        assert path.stat().st_size < 8_000_000
        journal.close()

    def test_should_the_newest_be_damaged_the_one_before_gives_the_same(self, path: Path) -> None:
        journal, _, _ = opened(path)
        told = records(30)
        for start in (0, 10, 20):
            journal.append(told[start : start + 10])
            journal.snapshot(start + 10, {"after": start + 10})
        journal.close()
        damage(path.with_name("tracker.db-snapshot-30"), 30)
        journal, recovery, found = opened(path)
        assert (recovery.state, recovery.number, found) == ({"after": 20}, 20, told[20:])
        assert [(d.record, d.lost) for d in recovery.damage] == [(30, 0)]
        assert not recovery.tail_lost
        assert Path(recovery.damage[0].set_aside).exists()
        journal.close()


def damage(file: Path, at: int) -> None:
    with open(file, "r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte[0] ^ 0x10]))


@pytest.fixture(scope="module", params=["killed", "closed"])
def damageable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """Return a journal's files as a killed or stopped process leaves them: 25 groups, two snapshots (8th and 18th)."""
    random = Random(7)
    directory = tmp_path_factory.mktemp("journal")
    (directory / "live").mkdir()
    journal, _, _ = opened(directory / "live" / "tracker.db")
    told: list[Record] = []
    for group in range(25):
        new = [
            Record(1, i, random.randbytes(random.choice([0, 10, 3000, 50_000]))) for i in range(random.choice([1, 3]))
        ]
        told += new
        journal.append(new)
        if group in (8, 18):
            journal.snapshot(len(told), {"after": len(told)})
    if request.param == "killed":
        shutil.copytree(directory / "live", directory / "left")
        journal.close()
    else:
        journal.close()
        shutil.copytree(directory / "live", directory / "left")
    return directory / "left", told


@pytest.mark.parametrize("what", ["cut", "flip"])
@pytest.mark.parametrize("suffix", ["", "-wal", "-mark", "-snapshot"])
def test_damage_is_never_silent_and_never_takes_what_came_before(
    damageable: tuple[Path, list[Record]], tmp_path: Path, suffix: str, what: str
) -> None:
    """However a file is cut or a bit turns: what comes back is a beginning of what was answered, a loss is named."""
    left, told = damageable
    files = sorted(left.glob(f"tracker.db{suffix}*" if suffix else "tracker.db"))
    if not files:
        pytest.skip("a stopped process leaves no write-ahead log")
    file = files[-1].name
    size = (left / file).stat().st_size
    for at in sorted(Random(suffix + what).sample(range(size), min(12, size))):
        directory = tmp_path / str(at)
        shutil.copytree(left, directory)
        if what == "cut":
            os.truncate(directory / file, at)
        else:
            damage(directory / file, at)
        journal, recovery, found = opened(directory / "tracker.db")
        last = recovery.number + len(found)
        assert found == told[recovery.number : last]
        losses = [damage.lost for damage in recovery.damage]
        if last < len(told):
            assert len(told) - last in losses
            assert str(directory / "tracker.db") in str(recovery.damage[-1])
            assert f"at record {last + 1}: {len(told) - last} acknowledged" in str(recovery.damage[-1])
            assert Path(recovery.damage[-1].set_aside).exists()
        else:
            assert all(lost == 0 for lost in losses) or suffix == "-mark"
        # It goes on after what was saved, and the damage is over.
        assert journal.append(records(1)) == last + 1
        journal.close()
        journal, recovery, found = opened(directory / "tracker.db")
        assert recovery.damage == ()
        assert recovery.number + len(found) == last + 1
        assert found[-1:] == records(1)
        journal.close()
        shutil.rmtree(directory)


@pytest.mark.parametrize("kept", [30, 49])
def test_a_cut_write_ahead_log_loses_only_the_cut_accepted_once(path: Path, kept: int) -> None:
    journal, _, _ = opened(path)
    told = records(50, size=20_000)
    sizes = []
    wal = path.with_name("tracker.db-wal")
    for record in told:
        journal.append([record])
        sizes.append(wal.stat().st_size)
    left = path.parent / "left"
    left.mkdir()
    for file in path.parent.glob("tracker.db*"):
        shutil.copy(file, left)
    journal.close()
    os.truncate(left / "tracker.db-wal", sizes[kept - 1] + 100)
    journal, recovery, found = opened(left / "tracker.db")
    assert found == told[:kept]
    assert [damage.lost for damage in recovery.damage] == [50 - kept]
    journal.close()
    for number in (kept + 1, kept + 2):
        journal, recovery, _ = opened(left / "tracker.db")
        assert recovery.tail_lost is (number == kept + 1)  # until a record shows that the log is another one
        assert journal.append(records(1)) == number
        journal.close()
    journal = SqliteJournal(left / "tracker.db")
    assert journal.recover().damage == ()
    journal.close()


@pytest.mark.parametrize("head", [(0, bytes(100)), (100, b"\xff" * 60)], ids=["no database", "malformed"])
def test_a_refused_start_leaves_a_damaged_file_and_its_log(path: Path, head: tuple[int, bytes]) -> None:
    journal, _, _ = opened(path)
    journal.append(records(5))
    left = path.parent / "left"
    left.mkdir()
    for file in path.parent.glob("tracker.db*"):
        shutil.copy(file, left)
    journal.close()
    files = [left / "tracker.db", left / "tracker.db-wal"]
    whole = [file.read_bytes() for file in files]
    for file, (start, zeros) in zip(files, [head, (32, bytes(24))], strict=True):  # the log's first frame, and so all
        with file.open("r+b") as spoilt:
            spoilt.seek(start)
            spoilt.write(zeros)
    damaged = [file.read_bytes() for file in files]
    assert "5 acknowledged records" in refused(files[0])
    assert [file.read_bytes() for file in files] == damaged
    for file, content in zip(files, whole, strict=True):
        file.write_bytes(content)
    journal, _, found = opened(files[0])
    assert found == records(5)
    journal.close()


def test_a_rebuild_that_fails_leaves_the_cut_write_ahead_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _, _ = opened(path)
    for record in records(3):
        journal.append([record])
    left = path.parent / "left"
    left.mkdir()
    for file in path.parent.glob("tracker.db*"):
        shutil.copy(file, left)
    journal.close()
    wal = left / "tracker.db-wal"
    os.truncate(wal, wal.stat().st_size - 10)
    cut = wal.read_bytes()

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as failing:
        failing.setattr(sqlite, "_insert", fail)
        with pytest.raises(JournalError, match="cannot be written"):
            opened(left / "tracker.db")
    gc.collect()
    assert wal.read_bytes() == cut


def test_a_first_start_that_ends_before_its_first_record_needs_no_consent(path: Path) -> None:
    for _ in range(2):
        journal = SqliteJournal(path)
        assert journal.recover().damage == ()
        journal.close()


def test_a_removed_file_is_noticed(path: Path) -> None:
    journal, _, _ = opened(path)
    journal.append(records(5))
    path.unlink()
    with pytest.raises(JournalError, match="moved or removed"):
        journal.append(records(1))
    journal.close()
    path.with_name("tracker.db-wal").unlink(missing_ok=True)
    journal, recovery, found = opened(path)
    assert found == []
    assert [damage.lost for damage in recovery.damage] == [5]
    journal.close()


def test_a_crash_between_setting_aside_and_replacing_is_made_good(path: Path) -> None:
    journal, _, _ = opened(path)
    journal.append(records(5))
    journal.close()
    path.rename(path.with_name("tracker.db-rebuilt"))
    journal, recovery, found = opened(path)
    assert found == records(5)
    assert recovery.damage == ()
    journal.close()


def test_a_mark_that_is_missing_means_that_a_loss_cannot_be_excluded(path: Path) -> None:
    journal, _, _ = opened(path)
    journal.append(records(5))
    journal.close()
    path.with_name("tracker.db-mark").unlink()
    journal, recovery, found = opened(path)
    assert found == records(5)
    assert [damage.lost for damage in recovery.damage] == [None]
    assert recovery.tail_lost
    journal.close()


def test_a_snapshot_alone_means_that_a_loss_cannot_be_excluded(path: Path) -> None:
    journal, _, _ = opened(path)
    journal.append(records(2))
    journal.snapshot(2, {"number": 2})
    journal.append(records(1, start=2))
    journal.close()
    for file in path.parent.glob("tracker.db*"):
        if "-snapshot-" not in file.name:
            file.unlink()
    assert "may be lost" in refused(path)
    journal, recovery, found = opened(path)
    assert (recovery.state, found, recovery.tail_lost) == ({"number": 2}, [], True)
    journal.close()


def test_a_journal_of_another_version_is_left_alone(path: Path) -> None:
    """A newer server has left it: what this one cannot read is not damaged."""
    journal, _, _ = opened(path)
    journal.append(records(5))
    journal.close()
    with sqlite3.connect(path) as newer:
        newer.execute(f"PRAGMA application_id={APPLICATION + 1}")
    newer.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="of another version") as refused:
        opened(path)
    assert not isinstance(refused.value, JournalLossError)
    assert path.read_bytes() == before


def test_an_overwritten_journal_is_damaged_and_set_aside_once_accepted(
    path: Path,
) -> None:
    journal, _, _ = opened(path)
    journal.append(records(5))
    journal.snapshot(5, {"after": 5})
    journal.append(records(2, start=5))
    journal.close()
    path.write_text("Dear diary,\n" * 1000)
    assert "2 acknowledged records" in refused(path)
    journal, recovery, found = opened(path)
    assert (recovery.state, found, recovery.damage[-1].lost) == ({"after": 5}, [], 2)
    assert Path(recovery.damage[-1].set_aside).read_text().startswith("Dear diary")
    journal.close()


def test_a_file_of_something_else_is_left_alone(path: Path) -> None:
    path.write_text("Dear diary,\n" * 100)
    with pytest.raises(JournalError, match="is not a journal"):
        opened(path)
    assert path.read_text().startswith("Dear diary")
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE poems (line TEXT)")
    other.close()
    with pytest.raises(JournalError, match="something else"):
        opened(path)


def test_a_journal_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no directory"):
        SqliteJournal(tmp_path / "nowhere" / "tracker.db")
    for where in ("sqlite:", "sqlite", "memory:x", "etcd://a", ""):
        with pytest.raises(ValueError, match="'memory', 'sqlite:PATH'"):
            open_journal(where)


def test_a_full_disk_changes_nothing_and_passes(path: Path) -> None:
    """By SQLite's own bound on a file's size; tests/server has a really full disk."""
    journal, _, _ = opened(path)
    journal.append(records(3))
    assert journal._connection is not None
    journal._connection.execute("PRAGMA max_page_count=20")
    with pytest.raises(JournalFullError, match="no room"):
        journal.append(records(100, size=50_000, start=3))
    assert journal.append(records(1, start=3)) == 4
    with pytest.raises(JournalFullError, match="no room"):
        journal.append(records(1, size=5_000_000, start=4))
    journal._connection.execute("PRAGMA max_page_count=1000000")
    assert journal.append(records(100, size=50_000, start=4)) == 104
    journal.close()
    journal, recovery, found = opened(path)
    assert recovery.damage == ()
    assert len(found) == 104
    journal.close()


def test_a_rebuild_that_fails_is_made_at_the_next_start(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, _, _ = opened(path)
    for record in records(3):
        journal.append([record])
    journal.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM log WHERE first = 3")
    connection.close()

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as failing:
        failing.setattr(sqlite, "_insert", fail)
        with pytest.raises(JournalError, match="cannot be written: disk I/O error"):
            opened(path)
    left = path.parent / "left"  # this process still has the file, as one that ends with the error has not
    shutil.copytree(path.parent, left)
    journal, recovery, found = opened(left / path.name)
    assert (found, [damage.lost for damage in recovery.damage]) == (records(2), [1])
    journal.close()


@pytest.mark.parametrize("failing", ["INSERT", "DELETE", "COMMIT"])
def test_a_group_that_fails_at_any_step_leaves_nothing_behind(
    path: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every error ends SQLite's transaction by itself."""
    plain = sqlite3.connect
    fails = True

    class Failing(sqlite3.Connection):
        def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
            if fails and statement.startswith(failing):
                raise sqlite3.OperationalError("interrupted")
            return super().execute(statement, *arguments)

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: plain(*given, factory=Failing, **options))
    fails = False
    journal, _, _ = opened(path)
    journal.append(records(3))
    fails = True
    with pytest.raises(JournalError, match="interrupted"):
        journal.append(records(2, start=100))
    fails = False
    assert journal.append(records(2, start=3)) == 5
    journal.close()
    journal, recovery, found = opened(path)
    assert (recovery.damage, found) == ((), records(5))
    journal.close()


def test_a_whole_but_inconsistent_file_is_rebuilt_before_it_is_written(path: Path) -> None:
    """All records can be read, and SQLite's own list of free pages is wrong: what is written next might be lost."""
    journal, _, _ = opened(path)
    journal.append(records(20))
    journal.close()
    with path.open("r+b") as file:
        file.seek(36)  # of the head: how many pages are free
        file.write((7).to_bytes(4, "big"))
    journal, recovery, found = opened(path)
    assert found == records(20)
    assert [(damage.lost, "inconsistent" in damage.problem) for damage in recovery.damage] == [(0, True)]
    journal.close()
    journal, recovery, found = opened(path)
    assert (recovery.damage, found) == ((), records(20))
    journal.close()


def files(directory: Path) -> dict[str, bytes]:
    """Return the files, but for the lock and the mark's own progress."""
    return {file.name: file.read_bytes() for file in directory.iterdir() if not file.name.endswith(("-lock", "-mark"))}


def refused(path: Path) -> str:
    """Return why a start is refused; the process goes on."""
    journal = SqliteJournal(path)
    with pytest.raises(JournalLossError) as loss:
        journal.recover()
    journal.close()
    return str(loss.value)


def test_a_crash_while_a_refused_journal_is_closed_is_made_good(path: Path) -> None:
    journal, _, _ = opened(path)
    journal.append(records(5))
    journal.close()
    path.rename(path.with_name("tracker.db-closing"))
    journal = SqliteJournal(path)
    recovery = journal.recover()
    assert (list(recovery.records), recovery.damage) == (records(5), ())
    journal.close()


@pytest.mark.parametrize("what", ["snapshots", "wal", "all but wal", "mark", "everything"])
def test_what_is_lost_must_be_accepted(
    damageable: tuple[Path, list[Record]], tmp_path: Path, what: str, request: pytest.FixtureRequest
) -> None:
    """And until it is, nothing is changed: a second try of one process finds the same."""
    left, told = damageable
    directory = tmp_path / "left"
    shutil.copytree(left, directory)
    path = directory / "tracker.db"
    # Records that the older snapshot covers are gone from the log, as after a long life.
    if what == "snapshots":
        with sqlite3.connect(path) as log:
            log.execute("DELETE FROM log WHERE first <= 5")
        log.close()
        for snapshot in directory.glob("*-snapshot-*"):
            damage(snapshot, 30)
    elif what == "wal":
        wal = directory / "tracker.db-wal"
        if not wal.exists():
            pytest.skip("a stopped process leaves no write-ahead log")
        os.truncate(wal, wal.stat().st_size // 2)
    elif what == "all but wal":
        os.truncate(path, 0)
    elif what == "mark":
        (directory / "tracker.db-mark").unlink()
    else:
        for file in directory.glob("tracker.db*"):
            if file.name != "tracker.db-mark":
                file.unlink()
    before = files(directory)
    for _ in range(2):
        said = refused(path)
        assert "acknowledged records" in said
        assert "--accept-loss" in said
        assert before.items() <= files(directory).items()
    journal, recovery, found = opened(path)
    assert recovery.tail_lost
    assert found == told[recovery.number : recovery.number + len(found)]
    assert journal.append(records(1)) > 0
    journal.close()
    journal = SqliteJournal(path)
    assert not journal.recover().tail_lost  # once
    journal.close()


def test_nobody_else_may_read_the_files(path: Path) -> None:
    mask = os.umask(0)
    try:
        journal, _, _ = opened(path)
        journal.append(records(3))
        journal.snapshot(3, {"after": 3})
        journal.set_aside(2, records(1)[0], "test", answered=False)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        journal.close()
    finally:
        os.umask(mask)
    assert set(modes.values()) == {0o600}
    assert {"tracker.db", "tracker.db-wal", "tracker.db-mark", "tracker.db-lock", "tracker.db-snapshot-3"} <= set(modes)
    for file in path.parent.iterdir():
        file.chmod(0o644)
    journal, _, _ = opened(path)  # what an older version left
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir() if "set-aside" not in file.name} == {0o600}
    journal.close()


def test_a_mark_cut_off_under_a_running_process_does_no_harm(path: Path) -> None:
    journal, _, _ = opened(path)
    journal.append(records(2))
    os.truncate(path.with_name("tracker.db-mark"), 0)
    assert journal.append(records(1, start=2)) == 3
    journal.close()
    journal, recovery, found = opened(path)
    assert found == records(3)
    assert recovery.damage == ()
    journal.close()


def test_a_directory_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="is a directory"):
        SqliteJournal(tmp_path)


def test_the_mark_tells_what_was_being_done(path: Path) -> None:
    journal, recovery, _ = opened(path)
    assert (recovery.suspect, recovery.starts, recovery.unanswered) == (0, 0, frozenset())
    journal.append(records(9))
    journal.carrying([7, 8])
    journal.close()
    for start in (1, 2):
        journal, recovery, _ = opened(path)
        assert (recovery.suspect, recovery.starts) == (7 if start > 1 else 0, start - 1)
        assert recovery.unanswered == {7, 8}
        for number in range(1, 8):
            journal.replaying(number)
        journal.close()
    journal, recovery, _ = opened(path)
    assert (recovery.suspect, recovery.starts, recovery.unanswered) == (7, 2, frozenset({7, 8}))
    journal.set_aside(7, records(7)[6], "it ended the process", answered=False)
    journal.replaying(8)
    journal.replaying(0)
    journal.close()
    journal, recovery, _ = opened(path)
    assert (recovery.suspect, recovery.unanswered) == (0, frozenset())
    assert recovery.set_aside == {LeftOut.of(7, records(7)[6])}
    assert path.with_name("tracker.db-set-aside-7").read_bytes() == records(7)[6].payload
    journal.close()
