"""A tracker's state goes through a backup into a journal of any kind, and nobody takes the old one for the new one."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import redis

from tests.client.processes import TRACKER, Server
from tests.journal.redis_server import PROGRAM, RedisServer, needs_redis
from tests.server.test_redis import SPEC, in_flight, send, start
from tracker.backup import BackupError, Checked
from tracker.cli.main import main
from tracker.client import JobSpec, TrackerClient, TrackerError, label
from tracker.journal import open_journal
from tracker.journal.snapshots import decode
from tracker.server import backups
from tracker.server.replayable import ReplayableState, recover


def run(*arguments: str, status: int = 0) -> str:
    """Return the output of a command."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        assert main(arguments) == status, printed.getvalue()
    return printed.getvalue()


def refusal_to_serve(journal: str) -> str:
    """Return the refusal of a tracker to start on a journal."""
    command = [*TRACKER, "serve", "--listen", "127.0.0.1:0", "--journal", journal]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    return ran.stderr


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.slow)])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield an empty journal."""
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'elsewhere.db'}"
        return
    if PROGRAM is None:
        pytest.skip("there is no redis-server here: `apt-get install redis-server` brings it")
    redis = RedisServer(tmp_path / "redis")
    yield redis.address()
    redis.kill()


def test_a_restored_tracker_has_all_and_tells_everybody_that_it_is_older(
    tracker: Server, elsewhere: str, tmp_path: Path
) -> None:
    backup = str(tmp_path / "backup")
    with TrackerClient(tracker.address) as client:
        start(client)
        for number in range(1, 11):
            send(client, number)
        log = client.job("flights").log_id
        made = json.loads(run("backup", backup, "--server", tracker.address, "--json"))
        assert (made["record"], made["jobs"]["flights"]["log_id"], made["final"]) == (13, log, False)
        send(client, 11)
    tracker.kill()
    assert "every job's log has a new id" in run("restore", backup, "--journal", elsewhere)
    server = Server(tmp_path, elsewhere)
    with TrackerClient(server.address) as client:
        assert in_flight(client) == 10
        assert client.job("flights").log_id != log
        with client.watch("flights", log_id=log) as watch, pytest.raises(TrackerError, match="LOG_CHANGED"):
            next(watch)
        with pytest.raises(TrackerError, match=r"FENCED.*open a new run to continue"):
            send(client, 12)
        with client.open_producer("flights", "q", "r2") as producer:
            assert producer.next_epoch() == 11
    server.restart()  # and it is in the journal
    with TrackerClient(server.address) as client:
        assert in_flight(client) == 10
    server.kill()


@pytest.mark.thorough
def test_a_journal_that_ended_with_its_backup_moves_without_anybody_noticing(
    tracker: Server, elsewhere: str, tmp_path: Path
) -> None:
    backup = str(tmp_path / "backup")
    with TrackerClient(tracker.address) as client:
        start(client)
        send(client, 1)
        log = client.job("flights").log_id
        assert "leave out --journal" in run("backup", backup, "--journal", tracker.journal, status=1)
        assert "Stop that tracker first" in run("backup", backup, "--journal", tracker.journal, "--final", status=1)
        tracker.stop()
        run("backup", backup, "--journal", tracker.journal, "--final")
        run("backup", backup, "--journal", tracker.journal, "--final")  # as often as needed
        assert "Start the tracker on the journal to which it was moved" in refusal_to_serve(tracker.journal)
        run("restore", backup, "--journal", elsewhere, "--same-log")
        tracker.journal = elsewhere
        tracker.start()
        send(client, 2)
        assert (in_flight(client), client.job("flights").log_id) == (2, log)


@pytest.mark.thorough
@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
def test_a_journal_that_went_on_is_never_set_back_in_silence(
    tracker: Server, elsewhere: str, tmp_path: Path, damaged: bool
) -> None:
    backup = str(tmp_path / "backup")
    again = ("restore", backup, "--journal", elsewhere, "--replace")
    with TrackerClient(tracker.address) as client:
        start(client)
        log = client.job("flights").log_id
        tracker.stop()
        run("backup", backup, "--journal", tracker.journal, "--final")
        for where in (tracker.journal, elsewhere, elsewhere):  # to the place where it was, or twice: nothing is lost
            run("restore", backup, "--journal", where, "--replace", "--same-log")
        tracker.journal = elsewhere
        tracker.start()
        send(client, 1)
        assert "is in use by" in run(*again, "--same-log", status=1)
        tracker.kill()
        if damaged:
            lose_the_end(elsewhere)
        refused = run(*again, "--same-log", status=1)
        assert ("may have gone on" if damaged else "has gone on") in refused
        assert "Leave out --same-log" in refused
        if not damaged:
            tracker.start()
            assert (in_flight(client), client.job("flights").log_id) == (1, log)
            tracker.stop()
        run(*again)
        tracker.start()
        assert in_flight(client) == 0
        assert client.job("flights").log_id != log


def lose_the_end(journal: str) -> None:
    """Lose the newest records of a journal."""
    if journal.startswith("sqlite:"):
        with closing(sqlite3.connect(journal.partition(":")[2])) as log, log:
            log.execute("DELETE FROM log WHERE first > 2")
        return
    client = redis.Redis.from_url(journal.partition("?")[0])
    client.delete("{tracker}:log")
    client.close()


def test_a_backup_of_a_running_tracker_is_never_taken_for_its_end(tracker: Server, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    run("backup", backup, "--server", tracker.address)
    refused = run("restore", backup, "--journal", f"sqlite:{tmp_path / 'new.db'}", "--same-log", status=1)
    assert "leave out --same-log" in refused
    assert not (tmp_path / "new.db").exists()


@pytest.mark.thorough
def test_what_is_in_a_journal_is_kept_even_if_it_is_replaced(tracker: Server, elsewhere: str, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    run("backup", backup, "--server", tracker.address)
    with TrackerClient(tracker.address) as client:
        start(client)
    run("restore", backup, "--journal", elsewhere)
    assert "is not empty" in run("restore", backup, "--journal", elsewhere, status=1)
    assert "is in use by" in run("restore", backup, "--journal", tracker.journal, "--replace", status=1)
    answer = json.loads(run("restore", backup, "--journal", elsewhere, "--replace", "--json"))
    if elsewhere.startswith("sqlite:"):  # it is a journal where it is now
        assert "0 jobs" in run("backup", str(tmp_path / "again"), "--journal", f"sqlite:{answer['set_aside']}")
    else:
        assert answer["set_aside"].startswith("{tracker}:replaced:")
    server = Server(tmp_path, elsewhere)
    with TrackerClient(server.address) as client:
        assert client.jobs() == []
    server.kill()


def test_a_damaged_backup_changes_nothing(tracker: Server, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    run("backup", str(backup), "--server", tracker.address)
    data = backup.read_bytes()
    backup.write_bytes(data[:-1])
    new = tmp_path / "new.db"
    assert "is damaged: it ends after" in run("restore", str(backup), "--journal", f"sqlite:{new}", status=1)
    assert "is damaged" in run("backup", str(backup), "--verify", status=1)
    assert not new.exists()


@pytest.mark.slow
def test_a_restore_that_was_interrupted_is_no_empty_tracker(tracker: Server, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    run("backup", backup, "--server", tracker.address)
    new = tmp_path / "new.db"
    run("restore", backup, "--journal", f"sqlite:{new}")
    (tmp_path / "new.db-snapshot-1").unlink()
    refused = refusal_to_serve(f"sqlite:{new}")
    assert "Restore it again: `tracker restore FILE --journal ADDRESS --replace`" in refused
    run("restore", backup, "--journal", f"sqlite:{new}", "--replace")
    run("backup", str(tmp_path / "again"), "--journal", f"sqlite:{new}")


@pytest.mark.thorough
def test_a_backup_has_every_answered_command_and_no_half_of_one(tracker: Server) -> None:
    """One reporter takes turns between two jobs: no state may have the second job ahead of the first one."""
    done, stop = [0], threading.Event()
    with TrackerClient(tracker.address) as client:
        for job in ("a", "z"):
            client.define_job(JobSpec(job=job, deployment="d1", segments=SPEC.segments))
            client.open_producer(job, "q", "r1")

        def send_on() -> None:
            while not stop.is_set():
                for job in ("a", "z"):
                    epoch = client.producer(job, "q", "r1").epoch(done[0])
                    epoch.sent("raw", "LGA", "day", label(str(done[0])))
                    epoch.report(commit=True)
                done[0] += 1

        reporter = threading.Thread(target=send_on)
        reporter.start()
        backups: list[tuple[int, bytes, int]] = []
        while len(backups) < 5 or done[0] < 20:
            before = done[0]
            backups.append((before, b"".join(client.backup()), done[0]))
        stop.set()
        reporter.join()
    for before, data, after in backups:
        reached = committed(data)
        assert before <= reached["z"] <= reached["a"] <= reached["z"] + 1 <= after + 2


def committed(data: bytes) -> dict[str, int]:
    """Count the epochs of each job in a backup, each with its element."""
    state = ReplayableState(decode(b"".join(Checked([data], "FILE").state()))).tracker
    found = {}
    for job in state.jobs():
        status = state.view(job).status()
        last = status.producers[0].committed_epoch
        found[job] = status.in_flight
        assert found[job] == (0 if last is None else last + 1)
    return found


@needs_redis
@pytest.mark.slow
def test_a_leader_that_slept_while_its_journal_was_replaced_disturbs_nobody(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path / "redis")
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old = Server(tmp_path / "old", redis.address())
    backup = str(tmp_path / "backup")
    with TrackerClient(old.address) as client:
        start(client)
        run("backup", backup, "--server", old.address)
        for number in range(1, 21):
            send(client, number)
    old.freeze()
    run("restore", backup, "--journal", redis.address(), "--replace")
    new = Server(tmp_path / "new", redis.address())
    with TrackerClient(new.address) as client:
        client.open_producer("flights", "q", "r2")
        old.thaw()
        assert old.ended() == 1
        assert "another tracker has taken over" in old.log
        client.producer("flights", "q", "r2").epoch(1).report(["unit"], commit=True)
        new.restart()
        assert client.job("flights").producers[0].committed_epoch == 1
    new.kill()
    redis.kill()


@pytest.mark.slow
def test_a_drain_that_waits_for_runs_waits_for_them_after_a_restore(tracker: Server, tmp_path: Path) -> None:
    """Without fronts a job is drained when all runs are closed: a restore must not be taken for that."""
    backup = str(tmp_path / "backup")
    with TrackerClient(tracker.address) as client:
        start(client)
        client.drain("flights", "d1", "stop")
        run("backup", backup, "--server", tracker.address)
    tracker.stop()
    run("restore", backup, "--journal", tracker.journal, "--replace")
    tracker.start()
    with TrackerClient(tracker.address) as client:
        with pytest.raises(TrackerError, match="FENCED"):
            client.producer("flights", "q", "r1").epoch(0).report(["unit"], commit=True)
        with client.open_producer("flights", "q", "r2") as producer:
            assert client.get_drain("flights").state.name == "DRAINING"
            producer.epoch().report(["unit"], commit=True)
        assert client.get_drain("flights").state.name == "DRAINED"


def test_a_journal_that_has_lost_its_end_is_not_empty(tmp_path: Path) -> None:
    source, lost = f"sqlite:{tmp_path}/source.db", f"sqlite:{tmp_path}/lost.db"
    for where in (source, lost):
        with closing(open_journal(where)) as journal:
            recover(journal, 10**18, 10**18)
    draft = backups.of_journal(source)
    draft.seal()
    (tmp_path / "lost.db-mark").unlink()
    with pytest.raises(BackupError, match="is not empty"):
        backups.restore(lost, Checked([b"".join(draft.parts())], "backup"))
