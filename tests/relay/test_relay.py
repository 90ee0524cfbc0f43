"""The relay as a process: how it is found, what it passes on, and what happens where it does not help."""

from __future__ import annotations

import pickle
import socket
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.client.conftest import spec
from tests.client.processes import TRACKER, Server
from tests.client.test_client import pass_through
from tests.client.test_forks import count, fork
from tests.conformance.over_grpc import Driver
from tests.conformance.test_vectors import VECTORS, check, lines
from tests.relay.processes import Relay, messages
from tests.relay.test_failures import until
from tracker.client import Outcome, TrackerClient, TrackerError, TrackerUnavailable, label
from tracker.client.relay import sockets
from tracker.relay.app import Options
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub


def send(client: TrackerClient, job: str, unit: str, *, keep_apart: bool = False, **more: bool) -> Outcome:
    """Report one element."""
    report = client.producer(job, "q", "r1", keep_apart=keep_apart).epoch(0)
    report.sent("raw", "s", "n", label(unit))
    return report.report(units=[unit], **more).outcome


def taken(relay: Relay) -> int:
    """Stop a relay. Return how many reports it has taken."""
    assert relay.stop() == 0
    return int(relay.log.rpartition("reports=")[2].split()[0])


# ---------------------------------------------------------------- as if it were the tracker


@pytest.mark.parametrize("vector", VECTORS[::6], ids=lambda vector: vector.stem)
def test_a_relay_answers_as_the_tracker_does(shared_relay: Relay, vector: Path) -> None:
    with grpc.insecure_channel(shared_relay.address) as channel:
        driver = Driver(TrackerStub(channel), f"vector-{vector.stem}")
        for number, line in enumerate(lines(vector)):
            check(driver, number, line)


def test_a_client_may_take_a_relay_for_the_tracker(shared_relay: Relay, job: str) -> None:
    with TrackerClient(shared_relay.address) as client, ThreadPoolExecutor(1) as pool:
        client.define_job(spec(job))
        producer = client.open_producer(job, "q", "r1")
        end = pool.submit(client.wait_for_end, job, "raw", "s", "n2", timeout=60)
        with client.watch(job) as events:
            for epoch in range(3):
                pass_through(producer, epoch, f"n{epoch}")
                assert next(events).seq == epoch + 1
        assert end.result().elements == 1
        assert len(client.list_events(job).events) == 3
        assert client.drain(job, "d1", "now").state == "DRAINING"
        producer.close()
        client.delete_job(job)
        with pytest.raises(TrackerError, match="UNKNOWN_JOB"):
            client.job(job)


def test_streams_of_reports_are_passed_on_in_order(shared_relay: Relay, client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    client.open_producer(job, "q", "r1")
    reports = [
        wire.ReportRequest(job=job, producer="q", run="r1", epoch=0, units=[unit]) for unit in ("a", "b", "a", "", "c")
    ]
    with grpc.insecure_channel(shared_relay.address) as channel:
        answers = list(TrackerStub(channel).ReportStream(iter(reports)))
    said = [wire.ReportResponse.Outcome.Name(answer.outcome) for answer in answers]
    assert said == ["APPLIED", "APPLIED", "DUPLICATE", "REJECTED", "APPLIED"]


def test_it_says_that_it_is_healthy(shared_relay: Relay) -> None:
    with grpc.insecure_channel(shared_relay.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "substream.tracker.v1.Tracker"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


# ---------------------------------------------------------------- how clients use it


def test_only_what_can_be_combined_goes_over_it(
    server: Server, relay: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    client = TrackerClient(server.address)
    client.define_job(spec("job", fronts=["f"]))
    client.open_producer("job", "q", "r1", resume_epoch=0)
    for unit in ("a", "b", "c"):
        assert send(client, "job", unit) is Outcome.APPLIED
    sealing = client.open_producer("job", "sealing", "r1", seals=True)
    sealing.epoch(0).report(units=["a"])
    assert send(client, "job", "apart", keep_apart=True) is Outcome.APPLIED
    promising = client.producer("job", "q", "r1").epoch(0)
    promising.frontier("f", 3)
    promising.report(units=["promise"])
    assert send(client, "job", "commit", commit=True) is Outcome.APPLIED
    report = client.producer("job", "q", "r1").epoch(1)
    report.sent("nowhere", "s", "n", 1)
    with pytest.raises(TrackerError, match=r"UNKNOWN_SEGMENT: segment 'nowhere'") as refused:
        report.report(units=["a"])
    assert refused.value.reason == "UNKNOWN_SEGMENT"
    assert taken(relay) == 4
    server.kill()
    assert messages(tmp_path) == {"q": 6, "sealing": 1}  # what was refused left no record


def test_what_is_said_of_a_sealing_run_travels_with_its_producer(shared_server: Server, job: str) -> None:
    client = TrackerClient(shared_server.address)
    client.define_job(spec(job))
    assert pickle.loads(pickle.dumps(client.open_producer(job, "q", "r1", seals=True))).keep_apart
    assert not pickle.loads(pickle.dumps(client.open_producer(job, "p", "r1"))).keep_apart


@pytest.mark.parametrize("there", ["nothing", "empty", "dead socket", "no relay"])
def test_without_a_relay_that_helps_the_tracker_is_asked(
    there: str, client: TrackerClient, shared_server: Server, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.define_job(spec(job))
    client.open_producer(job, "q", "r1")
    path = next(sockets(shared_server.address))
    assert path.parent.parent == tmp_path / "run"
    path.parent.mkdir(parents=True)
    if there == "empty":
        monkeypatch.setenv("TRACKER_RELAY", "")
    elif there == "dead socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    elif there == "no relay":
        other = grpc.server(ThreadPoolExecutor(1))
        other.add_insecure_port(f"unix:{path}")
        other.start()
    for unit in ("a", "b"):
        assert send(client, job, unit) is Outcome.APPLIED
    assert client.producer(job, "q", "r1").commit(0, units=["a", "b"]) == 0


@pytest.mark.thorough
def test_a_relay_to_another_tracker_is_not_used(
    server: Server, relay: Relay, client: TrackerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    far = TrackerClient(server.address)
    for each in (far, client):
        each.define_job(spec("same"))
        each.open_producer("same", "q", "r1")
    assert send(client, "same", "a") is Outcome.APPLIED
    assert client.producer("same", "q", "r1").commit(0, units=["a"]) == 0
    assert client.job("same").in_flight == 1
    assert far.job("same").producers[0].staged_epochs == ()
    assert "the callers use another tracker" in relay.log


def test_a_relay_that_stands_still_is_passed_by(server: Server, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    client = TrackerClient(server.address, timeout=0.5)
    client.define_job(spec("job"))
    client.open_producer("job", "q", "r1")
    assert send(client, "job", "a") is Outcome.APPLIED
    relay.freeze()
    for unit in ("b", "c", "d"):
        assert send(client, "job", unit) in (Outcome.APPLIED, Outcome.DUPLICATE)
    relay.thaw()
    client.producer("job", "q", "r1").commit(0, units=["a", "b", "c", "d"])
    assert client.job("job").in_flight == 4


@pytest.mark.thorough
def test_a_child_uses_the_relay_that_its_parent_has_used(
    server: Server, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    client = TrackerClient(server.address)
    client.define_job(spec("job"))
    client.open_producer("job", "q", "r1")
    send(client, "job", "parent")
    assert fork(lambda: (send(client, "job", "child"), count(client, "job", "c"))[1]) == 0
    assert fork(lambda: (send(client, "job", "second child"), None)[1]) == 0
    send(client, "job", "parent again")
    client.producer("job", "q", "r1").commit(0)
    assert client.job("job").in_flight == 14
    assert taken(relay) == 4


# ---------------------------------------------------------------- its bounds


def test_what_it_may_not_hold_it_refuses_until_there_is_room(server: Server, tmp_path: Path) -> None:
    relay = Relay(tmp_path, server.address, "--max-pending", "0.1")
    client = TrackerClient(server.address)
    client.define_job(spec("job"))
    client.open_producer("job", "q", "r1")
    client.server_info()
    near = TrackerClient(relay.address, retry_for=120)
    names = [str(name) for name in range(1_500)]  # about 60,000 bytes a report

    def report(number: int) -> Outcome:
        report = near.producer("job", "q", "r1").epoch(0)
        report.add_columns("raw", ["s"] * len(names), names, None, range(1_500), [1] * 1_500, [0] * 1_500)
        return report.report(units=[str(number)]).outcome

    def refused() -> bool:
        large = wire.ReportRequest(job="job", producer="q", run="r1", epoch=0, units=["large", "x" * 60_000])
        with grpc.insecure_channel(relay.address) as channel:
            try:
                TrackerStub(channel).Report(large, timeout=0.5)
            except grpc.RpcError as error:
                full = " of the relay exceeded" in (error.details() or "")
                return full and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        return False

    server.freeze()
    with ThreadPoolExecutor(6) as pool:
        reports = [pool.submit(report, number) for number in range(6)]
        until(refused)
        server.thaw()
        assert {each.result() for each in reports} <= {Outcome.APPLIED, Outcome.DUPLICATE}
    client.producer("job", "q", "r1").commit(0, units=[str(number) for number in range(6)])
    assert client.job("job").in_flight == 6 * 1_500
    assert relay.stop() == 0


def test_a_graceful_stop_ends_what_would_not_end_and_names_it(server: Server, relay: Relay) -> None:
    TrackerClient(server.address).define_job(spec("job"))
    with grpc.insecure_channel(relay.address) as channel:
        watch = TrackerStub(channel).Watch(wire.WatchRequest(job="job"))
        watch.initial_metadata()
        assert relay.stop() == 0
        assert (watch.code(), watch.details()) == (
            grpc.StatusCode.UNAVAILABLE,
            "STOPPING: the relay is stopping; retry",
        )


def test_a_graceful_stop_answers_what_was_taken(server: Server, relay: Relay) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec("job"))
    client.open_producer("job", "q", "r1")
    near = TrackerClient(relay.address, retry_for=0)
    with near.watch("job") as events, ThreadPoolExecutor(2) as pool:
        watching = pool.submit(next, events)
        send(near, "job", "first")
        server.freeze()
        reported = pool.submit(send, near, "job", "second")
        stopping = ThreadPoolExecutor(1).submit(relay.stop)
        until(lambda: "msg=stopping" in relay.log)
        server.thaw()
        assert stopping.result() == 0
        outcome = reported.exception() or reported.result()
        # Taken before the stop, it was answered; else its caller knows that it was not.
        assert outcome is Outcome.APPLIED or isinstance(outcome, TrackerUnavailable)
        assert isinstance(watching.exception(), TrackerUnavailable)


@pytest.mark.parametrize(("option", "least", "below"), [("max_delay", 0.0, -0.001), ("max_pending_bytes", 1, 0)])
def test_an_option_beyond_its_least_value_is_refused(option: str, least: float, below: float) -> None:
    Options("127.0.0.1:1", "127.0.0.1:2", **{option: least})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be negative"):
        Options("127.0.0.1:1", "127.0.0.1:2", **{option: below})  # type: ignore[arg-type]


# ---------------------------------------------------------------- where it listens


def relay_command(server: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*TRACKER, "relay", "--server", server, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.thorough
def test_the_socket_is_its_owners_and_its_groups(server: Server, tmp_path: Path) -> None:
    relay = Relay(tmp_path, server.address)
    path = tmp_path / "relay.sock"
    assert stat.filemode(path.stat().st_mode) == "srw-rw----"
    assert relay.stop() == 0
    assert not path.exists()
    relay = Relay(tmp_path, server.address, "--socket-mode", "600")
    assert stat.filemode(path.stat().st_mode) == "srw-------"
    relay.kill()


@pytest.mark.thorough
def test_one_relay_at_a_socket_and_a_successor_after_its_death(server: Server, relay: Relay, tmp_path: Path) -> None:
    second = relay_command(server.address, "--listen", relay.address)
    assert second.returncode == 1
    assert "another relay listens on" in second.stderr
    TrackerClient(relay.address, retry_for=0).server_info()
    relay.kill()
    assert (tmp_path / "relay.sock").exists()
    relay.start()
    TrackerClient(relay.address).server_info()


@pytest.mark.parametrize(
    ("listen", "status", "said"),
    [
        ("unix:relative.sock", 2, "absolute"),
        (f"unix:/{'x' * 120}", 2, "has 121 bytes, and at most 107 are allowed: /x"),
        (f"unix:/{'ä' * 60}", 2, "Use a shorter one: --listen unix:PATH, and TRACKER_RELAY=unix:PATH for its clients"),
        ("7655", 2, "unix:PATH or HOST:PORT"),
        ("unix:/proc/nowhere/relay.sock", 1, "cannot listen on /proc/nowhere/relay.sock"),
        ("unix:{tmp}/file", 1, "a file that is not a socket exists there"),
        ("192.0.2.1:0", 1, "cannot listen on 192.0.2.1:0"),
    ],
    ids=["relative", "long", "long in bytes", "port alone", "no directory", "a file", "not this node's"],
)
def test_where_it_cannot_listen_it_says_why(listen: str, status: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = relay_command("127.0.0.1:1", "--insecure", "--listen", listen.replace("{tmp}", str(tmp_path)))
    assert ran.returncode == status
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_it_listens_on_a_port_and_may_start_before_the_tracker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    relay = Relay(tmp_path, nobody, listen="127.0.0.1:0")
    assert not relay.address.endswith(":0")
    with pytest.raises(ConnectionError, match="UNAVAILABLE"):
        TrackerClient(relay.address, retry_for=0).server_info()
    assert relay.stop() == 0
    assert not next(sockets(nobody)).exists()
