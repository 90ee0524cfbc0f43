"""Confirmed commands stay, whatever happens to the process, the disk or the files."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import grpc
import pytest

from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

from .processes import Server, Servers, StartFailedError
from .tracking import define, ends, refused, report


def last_seq(server: Server, job: str = "job") -> int:
    return server.stub.GetJob(wire.GetJobRequest(job=job)).last_seq


def events(server: Server, job: str = "job") -> list[wire.Event]:
    return list(server.stub.ListEvents(wire.ListEventsRequest(job=job, limit=10_000)).events)


@pytest.mark.thorough
def test_concurrent_reports_share_syncs(servers: Servers, tmp_path: Path) -> None:
    """The file has a row for each sync."""
    server = servers.start(tmp_path, "sqlite")
    for job in range(16):
        define(server.stub, f"job-{job}")

    def tell(job: int) -> None:
        list(server.stub.ReportStream(ends(epoch, f"job-{job}") for epoch in range(50)))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(tell, range(16)))
    server.kill()
    with closing(sqlite3.connect(tmp_path / "tracker.db")) as log:
        syncs, records = log.execute("SELECT count(*), sum(count) FROM log").fetchone()
    assert records >= 16 * 52
    assert syncs < records / 2
    server = servers.start(tmp_path, "sqlite")
    assert {last_seq(server, f"job-{job}") for job in range(16)} == {100}
    assert "level=error" not in server.log
    server.kill()


def test_what_was_answered_survives_kill_9_in_the_middle_of_many_calls(servers: Servers, tmp_path: Path) -> None:
    """Each answered report is there after each restart, no event is missing, doubled or changed."""
    seen: list[wire.Event] = []
    confirmed = 0
    for _ in range(4):
        server = servers.start(tmp_path, "sqlite", "--snapshot-every", "0")
        if not confirmed:
            define(server.stub)
        assert events(server)[: len(seen)] == seen
        told = iter(range(confirmed, confirmed + 10_000))
        killer = threading.Timer(0.4, server.kill)
        killer.start()
        with suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed
            for answer in server.stub.ReportStream(ends(epoch) for epoch in told):
                assert answer.outcome in (wire.ReportResponse.APPLIED, wire.ReportResponse.ALREADY_COMMITTED)
                confirmed += 1
        killer.join()
        again = servers.start(tmp_path, "sqlite")
        seen = events(again)
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        ended = {event.ended.name for event in seen}
        assert ended >= {f"w{epoch}" for epoch in range(confirmed)}
        confirmed = len(ended)
        again.kill()
        assert "level=error" not in again.log


def test_sigterm_finishes_what_is_under_way_and_leaves_a_snapshot(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "sqlite")
    define(server.stub)
    watch = server.stub.Watch(wire.WatchRequest(job="job"))
    waiting = server.stub.Await.future(wire.AwaitRequest(job="job", segment="a", scope="tenant", name="never"))
    stream = server.stub.ReportStream(endless())
    for _ in range(20):
        assert next(stream).outcome == wire.ReportResponse.APPLIED
    answered = 20
    os.kill(server.pid, signal.SIGTERM)

    def read_on() -> None:
        nonlocal answered
        for answer in stream:
            answered += answer.outcome == wire.ReportResponse.APPLIED

    with pytest.raises(grpc.RpcError) as error:
        read_on()
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert refused(lambda: list(watch))[:2] == ("UNAVAILABLE", "STOPPING")
    assert refused(waiting.result)[:2] == ("UNAVAILABLE", "STOPPING")
    assert servers.wait(server.pid) == 0
    assert list(tmp_path.glob("tracker.db-snapshot-*"))
    server = servers.start(tmp_path, "sqlite")
    assert "replayed=0" in server.log
    assert last_seq(server) >= 2 * answered
    server.kill()


def endless() -> Iterator[wire.ReportRequest]:
    epoch = 0
    while True:
        yield ends(epoch)
        epoch += 1


def test_a_second_server_on_the_same_journal_is_refused(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "sqlite")
    define(server.stub)
    with pytest.raises(StartFailedError) as failed:
        servers.start(tmp_path, "sqlite")
    assert failed.value.status == 1
    assert f"in use by process {server.pid}" in failed.value.log
    assert server.stub.Report(ends(0)).outcome == wire.ReportResponse.APPLIED
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["--journal", "files:x"], 2, "'memory', 'sqlite:PATH', 'redis:"),
        (["--journal", "sqlite:/no/such/place/tracker.db"], 1, "no directory"),
        (["--listen", "nowhere"], 2, "HOST:PORT"),
        (["--insecure", "--listen", "192.0.2.1:1"], 1, "cannot listen"),
        (["--limit", "max_fun=3"], 2, "max_jobs"),
        (["--limit", "max_jobs=none"], 2, "NAME=NUMBER"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    servers: Servers, tmp_path: Path, arguments: list[str], status: int, word: str
) -> None:
    with pytest.raises(StartFailedError) as failed:
        servers.start(tmp_path, "memory", *arguments)
    assert failed.value.status == status
    assert word in failed.value.log
    assert "Traceback" not in failed.value.log


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
@pytest.mark.parametrize(
    "taken",
    [
        "nowhere",
        "TAKEN",
        *(pytest.param(each, marks=pytest.mark.thorough) for each in ("192.0.2.1:1", "no.such.host.invalid:1")),
    ],
)
def test_a_server_that_cannot_listen_leaves_no_file(tmp_path: Path, option: str, taken: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = taken.replace("TAKEN", f"127.0.0.1:{other.getsockname()[1]}")
        options = ["--insecure", "--audit", "audit", "--listen", "127.0.0.1:0", option, address]
        ran = subprocess.run(
            [sys.executable, "-m", "tracker.cli.main", "serve", *options],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert ran.returncode == (2 if taken == "nowhere" else 1), ran.stderr
    assert address in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_torn_journal_is_named_and_a_new_log_begins(servers: Servers, tmp_path: Path) -> None:
    """Everything before the damage is there; readers of the old log are refused, ids of it are not taken for others."""
    server = servers.start(tmp_path, "sqlite")
    old = define(server.stub).log_id
    for epoch in range(20):
        server.stub.Report(ends(epoch))
    server.kill()
    wal = tmp_path / "tracker.db-wal"
    os.truncate(wal, wal.stat().st_size - 40_000)
    server = servers.start(tmp_path, "sqlite", "--accept-loss")
    (error,) = [line for line in server.log.splitlines() if "level=error" in line]
    assert str(tmp_path / "tracker.db") in error
    assert "set aside" in error
    lost = int(error.split(" lost=")[1].split()[0])
    (record,) = [word for word in error.split() if word.startswith("record=")]
    assert lost >= 1
    # 1 is the start, 2 and 3 define the job and open the producer, 4 is the first report.
    assert record == f"record={24 - lost}"
    kept = 20 - lost
    assert last_seq(server) == 2 * kept
    assert list(tmp_path.glob("tracker.db-damaged-*"))
    new = server.stub.GetJob(wire.GetJobRequest(job="job")).log_id
    assert new != old
    assert refused(lambda: list(server.stub.Watch(wire.WatchRequest(job="job", log_id=old))))[1] == "LOG_CHANGED"
    # The run learnt that what is lost had taken effect, so it may not go on; the next one repeats what is missing.
    assert refused(lambda: server.stub.Report(ends(20)))[1] == "FENCED"
    opened = server.stub.OpenProducer(wire.OpenProducerRequest(job="job", producer="p", run="r2"))
    assert opened.committed_epoch == kept - 1
    outcomes = [server.stub.Report(ends(epoch, run="r2")).outcome for epoch in range(kept - 1, 20)]
    assert outcomes == [wire.ReportResponse.ALREADY_COMMITTED] + [wire.ReportResponse.APPLIED] * lost
    server.kill()
    server = servers.start(tmp_path, "sqlite")
    assert server.stub.GetJob(wire.GetJobRequest(job="job")).log_id == new
    assert last_seq(server) == 40
    assert server.log.count("level=error") == 1
    server.kill()


def large(epoch: int) -> wire.ReportRequest:
    """Return a report of 100 KB that ends one substream: two events."""
    names = [f"w{epoch}", *(f"{'x' * 500}-{epoch}-{i}" for i in range(200))]
    return ends(epoch, names=names, scope_index=[0] * 201, end_times=[epoch] * 201)


def fill(stub: TrackerStub) -> tuple[int, tuple[str, str, str]]:
    """Report until a report is refused. Return its epoch, and the refusal of the same report repeated."""
    for epoch in range(1000):
        try:
            stub.Report(large(epoch))
        except grpc.RpcError:
            return epoch, refused(stub.Report, large(epoch))
    raise AssertionError("the disk is never full")


def goes_through_a_full_disk(
    servers: Servers, server: Server, directory: Path, reason: str, make_room: Callable[[], object]
) -> None:
    define(server.stub)
    watch = server.stub.Watch(wire.WatchRequest(job="job"))
    epoch, (code, said, message) = fill(server.stub)
    assert (code, said) == ("UNAVAILABLE", reason)
    assert str(directory / "tracker.db") in message
    assert "nothing was changed" in message
    # Reading goes on, and what was confirmed is there.
    before = last_seq(server)
    assert before == 2 * epoch > 0
    assert next(watch).seq == 1
    make_room()
    assert server.stub.Report(large(epoch)).outcome == wire.ReportResponse.APPLIED
    assert last_seq(server) == before + 2
    kept = events(server)
    server.kill()
    server = servers.start(directory, "sqlite")
    assert events(server) == kept
    assert "set_aside" not in server.log
    server.kill()


def test_a_full_disk(servers: Servers, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here; the next test bounds the file's size instead")
    try:
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * 1_500_000)
        server = servers.start(disk, "sqlite")
        goes_through_a_full_disk(servers, server, disk, "JOURNAL_FULL", ballast.unlink)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_file_that_may_not_grow(servers: Servers, tmp_path: Path) -> None:
    """A quota, by the process's limit on the size of its files."""
    server = servers.start(tmp_path, "sqlite")
    bound = (2_000_000, resource.RLIM_INFINITY)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, bound)

    def lift() -> None:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    goes_through_a_full_disk(servers, server, tmp_path, "JOURNAL_FAILED", lift)


def test_the_journal_alone_decides_what_its_past_means(servers: Servers, tmp_path: Path) -> None:
    """Another default of retention holds for jobs that are defined from then on."""
    server = servers.start(tmp_path, "sqlite", "--retention", "2")
    define(server.stub, "early")
    server.kill()
    server = servers.start(tmp_path, "sqlite", "--retention", "3")
    define(server.stub, "late")
    server.kill()
    server = servers.start(tmp_path, "sqlite", "--retention", "4")
    jobs = [server.stub.GetJob(wire.GetJobRequest(job=job)).spec.retention.seconds for job in ("early", "late")]
    assert jobs == [2 * 3600, 3 * 3600]
    server.kill()


def test_ids_hold_across_restarts(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "sqlite")
    define(server.stub)
    answer = server.stub.Report(report(0, names=["x", "y"], scope_index=[0, 0], end_times=[], want_ids=True))
    assert list(answer.substream_ids) == [0, 1]
    server.kill()
    server = servers.start(tmp_path, "sqlite")
    by_id = report(
        1, names=[], scopes=[], scope_index=[], end_times=[], substream_ids=[1], log_id=answer.log_id, received=[0]
    )
    assert server.stub.Report(by_id).outcome == wire.ReportResponse.APPLIED
    status = {s.name: s for s in server.stub.ListSubstreams(wire.ListSubstreamsRequest(job="job")).substreams}
    assert status["y"].segments[0].sent == 1
    server.kill()
