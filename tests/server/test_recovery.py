"""Starts after the worst: lost data, commands that end the process, clocks that are wrong; and what operators see."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tracker.journal import Record, SqliteJournal
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

from .processes import Server, Servers, StartFailedError
from .tracking import define, ends, refused, report


def last_seq(server: Server, job: str = "job") -> int:
    return server.stub.GetJob(wire.GetJobRequest(job=job)).last_seq


def test_a_journal_is_gone_on_with_by_compiled_loops_and_without(servers: Servers, tmp_path: Path) -> None:
    """An element is sent without, received with them by its id, and its substream ends without again."""
    pytest.importorskip("numba", reason="needs the extra `fast`")
    server = servers.start(tmp_path, "sqlite")
    log_id = define(server.stub).log_id
    ids = server.stub.Report(report(0, xor=[5], received=[0], want_ids=True)).substream_ids
    server.kill()
    server = servers.start(tmp_path, "sqlite", "--compiled")
    by_id: dict[str, Any] = {"scopes": [], "names": [], "scope_index": [], "end_times": []}
    server.stub.Report(report(1, xor=[5], sent=[0], substream_ids=ids, log_id=log_id, **by_id))
    server.kill()
    server = servers.start(tmp_path, "sqlite")
    server.stub.Report(ends(2))
    assert last_seq(server) == 4  # on two segments: the one of epoch 0, and that of epoch 2
    server.kill()


def test_lost_data_is_never_a_normal_start(servers: Servers, tmp_path: Path) -> None:
    """Two damaged snapshots, and nothing left of what they covered: that is said, and must be accepted."""
    server = servers.start(tmp_path, "sqlite", "--snapshot-every", "0")
    old = define(server.stub).log_id
    for epoch in range(20):
        server.stub.Report(ends(epoch))
    assert server.stop() == 0
    snapshots = list(tmp_path.glob("tracker.db-snapshot-*"))
    for snapshot in snapshots:
        data = bytearray(snapshot.read_bytes())
        data[len(data) // 2] ^= 1
        snapshot.write_bytes(data)
    with closing(sqlite3.connect(tmp_path / "tracker.db")) as log, log:
        log.execute("DELETE FROM log WHERE first < 10")
    for _ in range(2):
        with pytest.raises(StartFailedError) as failed:
            servers.start(tmp_path, "sqlite")
        assert failed.value.status == 1
        said = failed.value.log.splitlines()[-1]
        assert "acknowledged records are lost" in said
        assert "--accept-loss" in said
        assert str(snapshots[0]) in said
        assert "nothing acknowledged is lost" not in failed.value.log
        assert "Traceback" not in failed.value.log
    server = servers.start(tmp_path, "sqlite", "--accept-loss")
    assert server.stub.ListJobs(wire.ListJobsRequest()).jobs == []
    assert define(server.stub).log_id != old
    assert len(list(tmp_path.glob("*-damaged-*"))) >= 2
    server.kill()
    server = servers.start(tmp_path, "sqlite")  # once is enough
    server.kill()


def test_a_record_of_a_newer_version_is_named(servers: Servers, tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "tracker.db")
    journal.recover()
    journal.append([Record(55, 1, b"")])
    journal.close()
    with pytest.raises(StartFailedError) as failed:
        servers.start(tmp_path, "sqlite")
    assert failed.value.status == 1
    assert "a newer version wrote it" in failed.value.log
    assert "Traceback" not in failed.value.log


def leave(servers: Servers, tmp_path: Path, carried: list[int], starts: int = 1) -> tuple[str, int]:
    """Leave a journal as a process does that ended while these records were carried out, and again at its starts."""
    server = servers.start(tmp_path, "sqlite")
    log_id = define(server.stub).log_id
    for epoch in range(5):
        server.stub.Report(ends(epoch))
    server.kill()
    journal = SqliteJournal(tmp_path / "tracker.db")
    last = len(list(journal.recover().records))
    journal.carrying([last + each for each in carried])
    journal.close()
    for _ in range(starts):
        journal = SqliteJournal(tmp_path / "tracker.db")
        journal.recover()
        journal.replaying(last)
        journal.close()
    return log_id, last


def test_a_command_that_ended_the_process_unanswered_is_left_out(servers: Servers, tmp_path: Path) -> None:
    log_id, last = leave(servers, tmp_path, carried=[0])
    server = servers.start(tmp_path, "sqlite")
    (error,) = [line for line in server.log.splitlines() if "level=error" in line]
    for word in (f"record={last}", "method=REPORT", "job=job", "acknowledged=False"):
        assert word in error
    assert last_seq(server) == 8
    assert (tmp_path / f"tracker.db-set-aside-{last}").exists()
    # Nothing acknowledged is lost, so readers go on, and the one who was not answered reports again.
    assert server.stub.GetJob(wire.GetJobRequest(job="job")).log_id == log_id
    assert server.stub.Report(ends(4)).outcome == wire.ReportResponse.APPLIED
    server.kill()
    server = servers.start(tmp_path, "sqlite")
    assert server.log.count("level=error") == 1
    assert last_seq(server) == 10
    server.kill()


def test_an_answered_command_is_left_out_only_if_the_loss_is_accepted(servers: Servers, tmp_path: Path) -> None:
    log_id, last = leave(servers, tmp_path, carried=[], starts=3)
    server = servers.start(tmp_path, "sqlite")
    assert f"--set-aside {last} --accept-loss" in server.log
    assert last_seq(server) == 10
    server.kill()
    with pytest.raises(StartFailedError) as failed:
        servers.start(tmp_path, "sqlite", "--set-aside", str(last))
    assert failed.value.status == 1
    assert "--accept-loss" in failed.value.log
    server = servers.start(tmp_path, "sqlite", "--set-aside", str(last), "--accept-loss")
    assert last_seq(server) == 8
    assert server.stub.GetJob(wire.GetJobRequest(job="job")).log_id != log_id
    server.kill()
    server = servers.start(tmp_path, "sqlite")
    assert last_seq(server) == 8
    server.kill()


_OUT_OF_MEMORY = """
import os, sys
from tracker.core import reports
def report(job, command, *found):
    if command.epoch == 3:
        os.kill(os.getpid(), 9)
    return plain(job, command, *found)
plain, reports.report = reports.report, report
from tracker.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.thorough
def test_a_server_that_a_command_kills_comes_back_without_it(servers: Servers, tmp_path: Path) -> None:
    """The same program each time, in which one report ends the process, as too little memory would."""

    def start() -> tuple[subprocess.Popen[str], str]:
        command = ["serve", "--listen", "127.0.0.1:0", "--journal", f"sqlite:{tmp_path}/tracker.db"]
        with open(tmp_path / "log", "a") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _OUT_OF_MEMORY, *command], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert process.stdout is not None
        return process, process.stdout.readline().removeprefix("listening on ").strip()

    process, address = start()
    stub = TrackerStub(grpc.insecure_channel(address))
    define(stub)
    define(stub, "other")
    for epoch in range(3):
        stub.Report(ends(epoch))
    with pytest.raises(grpc.RpcError):
        stub.Report(ends(3))
    failed = 0
    assert process.wait() == -signal.SIGKILL
    process, address = start()
    while not address:
        failed += 1
        assert process.wait() == -signal.SIGKILL
        process, address = start()
    assert failed == 1  # once, to learn that it was this record and no accident
    stub = TrackerStub(grpc.insecure_channel(address))
    assert stub.GetJob(wire.GetJobRequest(job="job")).last_seq == 6
    assert stub.Report(ends(0, "other")).outcome == wire.ReportResponse.APPLIED
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0


_TICKS_FAIL = """
import sys
from tracker.core import timers
def tick(job, retention):
    if job.spec.job == "evil":
        raise OverflowError("no more time for this one")
    plain(job, retention)
plain, timers.tick = timers.tick, tick
from tracker.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.thorough
def test_a_tick_that_fails_in_one_job_stops_time_for_no_other(tmp_path: Path) -> None:
    """Nor is it journaled again and again."""
    command = ["serve", "--listen", "127.0.0.1:0", "--journal", f"sqlite:{tmp_path}/tracker.db"]
    with open(tmp_path / "log", "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _TICKS_FAIL, *command], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        with grpc.insecure_channel(process.stdout.readline().removeprefix("listening on ").strip()) as channel:
            stub = TrackerStub(channel)
            for job in ("evil", "good"):
                define(stub, job, expire_after={"seconds": 1})
                stub.Report(ends(0, job, received=[0]))
            event = next(stub.Watch(wire.WatchRequest(job="good"), timeout=60))
            assert event.ended.reason == wire.EXPIRED
            time.sleep(4)
            assert stub.Report(ends(1, "evil")).outcome == wire.ReportResponse.APPLIED
    finally:
        process.kill()
        process.wait()
    said = [line for line in (tmp_path / "log").read_text().splitlines() if "level=error" in line]
    assert said
    assert all("job=evil" in line for line in said)
    with closing(sqlite3.connect(tmp_path / "tracker.db")) as journal:
        (records,) = journal.execute("SELECT sum(count) FROM log").fetchone()
    # In four seconds and more; the tries come after 1, 2, 4, … seconds, and the other job is ticked a few times.
    assert records <= 25
    assert len(said) <= 6


_WRONG_CLOCK = """
import os, sys, time
plain = time.time_ns
def time_ns():
    try:
        return plain() + int(open(sys.argv[1]).read() or 0)
    except FileNotFoundError:
        return plain()
time.time_ns = time_ns
from tracker.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@contextmanager
def served(tmp_path: Path, offset: Path) -> Iterator[TrackerStub]:
    """Yield a server whose clock is off by what stands in a file, in ns."""
    command = ["serve", "--listen", "127.0.0.1:0", "--journal", f"sqlite:{tmp_path}/tracker.db"]
    with open(tmp_path / "log", "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _WRONG_CLOCK, str(offset), *command], stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().removeprefix("listening on ").strip()
        with grpc.insecure_channel(address) as channel:
            yield TrackerStub(channel)
    finally:
        process.kill()
        process.wait()


@pytest.mark.thorough
@pytest.mark.parametrize("days", [30, -30])
def test_timers_go_on_whatever_the_clock_does(tmp_path: Path, days: int) -> None:
    """It jumps and comes back, within a run and over restarts: what expires does, and no event is lost."""
    offset = tmp_path / "offset"

    def expire(stub: TrackerStub, epoch: int) -> wire.Event:
        before = stub.GetJob(wire.GetJobRequest(job="job")).last_seq
        stub.Report(ends(epoch, received=[0]))
        events = stub.Watch(wire.WatchRequest(job="job", after_seq=before), timeout=60)
        event = next(events)
        events.cancel()
        assert event.ended.reason == wire.EXPIRED
        return event

    times = []
    with served(tmp_path, offset) as stub:
        define(stub, expire_after={"seconds": 1})
        times.append(expire(stub, 0).at.ToNanoseconds())
        offset.write_text(str(days * 24 * 3600 * 10**9))
        times.append(expire(stub, 1).at.ToNanoseconds())
        offset.write_text("0")
        times.append(expire(stub, 2).at.ToNanoseconds())
        offset.write_text(str(days * 24 * 3600 * 10**9))
    with served(tmp_path, offset) as stub:  # a wrong clock at the start is believed if it is ahead
        times.append(expire(stub, 3).at.ToNanoseconds())
    offset.write_text("0")
    with served(tmp_path, offset) as stub:
        times.append(expire(stub, 4).at.ToNanoseconds())
    assert times == sorted(times)
    if days < 0:
        assert times[-1] - times[0] < 3600 * 10**9


def test_health_tells_when_the_journal_refuses(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "sqlite")
    define(server.stub)
    health = health_pb2_grpc.HealthStub(server.channel)

    def status(service: str) -> int:
        return health.Check(health_pb2.HealthCheckRequest(service=service)).status

    def both(wanted: int) -> None:
        for service in ("", "substream.tracker.v1.Tracker"):
            for _ in range(600):
                if status(service) == wanted:
                    break
                time.sleep(0.05)
            assert status(service) == wanted

    both(health_pb2.HealthCheckResponse.SERVING)
    (tmp_path / "tracker.db").rename(tmp_path / "away")
    assert refused(server.stub.Report, ends(0))[1] == "JOURNAL_FAILED"
    both(health_pb2.HealthCheckResponse.NOT_SERVING)
    (tmp_path / "away").rename(tmp_path / "tracker.db")
    both(health_pb2.HealthCheckResponse.SERVING)  # although nobody sends anything
    assert server.stub.Report(ends(0)).outcome == wire.ReportResponse.APPLIED
    server.kill()


def test_a_directory_as_journal_is_refused_in_a_sentence(servers: Servers, tmp_path: Path) -> None:
    with pytest.raises(StartFailedError) as failed:
        servers.start(tmp_path, f"sqlite:{tmp_path}")
    assert failed.value.status == 1
    assert "is a directory" in failed.value.log
    assert "Traceback" not in failed.value.log


def test_the_log_tells_what_happens_to_jobs(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory")
    stub = server.stub
    job: dict[str, Any] = {"job": "job"}
    define(stub, stall_after={"nanos": 1})
    stub.OpenProducer(wire.OpenProducerRequest(**job, producer="p", run="r2"))
    stub.Report(ends(0, run="r2", received=[0], names=["a\x1b[31mb\nc"]))
    stub.Drain(wire.DrainRequest(**job, deployment="d1", drain_id="d"))
    for _ in range(600):
        if "has stalled" in server.log:
            break
        time.sleep(0.05)
    stub.Abandon(wire.AbandonRequest(**job, scope="tenant", name="a\x1b[31mb\nc"))
    stub.FinishFront(wire.FinishFrontRequest(**job, front="f"))
    stub.ForgetProducer(wire.ForgetProducerRequest(**job, producer="p"))
    stub.DeleteJob(wire.DeleteJobRequest(**job))
    said = [line.split("msg=")[1] for line in server.log.splitlines() if "logger=tracker.jobs" in line]
    messages = [line.split('"')[1] for line in said]
    assert sorted(messages) == sorted(
        [
            "a job was defined",
            "a run was fenced",
            "a drain was asked for",
            "a substream has stalled",
            "a substream was abandoned",
            "a front was finished by hand",
            "a job has drained",
            "a producer was forgotten",
            "a job was deleted",
        ]
    )
    assert "run=r by=r2" in said[1]
    assert "\x1b" not in server.log
    for n in range(500):
        stub.DefineJob(wire.DefineJobRequest(spec={"job": f"j{n}", "deployment": "d", "segments": [{"name": "a"}]}))  # type: ignore[arg-type]
    assert server.log.count("a job was defined") < 500
    server.kill()
