"""Counts of a client, against the calls that it made."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from prometheus_client import CollectorRegistry

from tests.client.conftest import spec
from tests.client.processes import Server
from tests.relay.processes import Relay
from tracker.client import TrackerClient, TrackerError, TrackerUnavailable, label


@pytest.fixture
def directory() -> Iterator[Path]:
    """Yield a directory whose path leaves room for a socket's name."""
    with TemporaryDirectory(prefix="relay-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def server(directory: Path) -> Iterator[Server]:
    server = Server(directory, "memory")
    yield server
    server.kill()


def calls(registry: CollectorRegistry, method: str, code: str) -> float:
    labels = {"method": method, "code": code}
    return registry.get_sample_value("tracker_client_call_seconds_count", labels) or 0


def reports(registry: CollectorRegistry, outcome: str, over: str) -> float:
    return registry.get_sample_value("tracker_client_reports_total", {"outcome": outcome, "over": over}) or 0


def send(client: TrackerClient) -> None:
    report = client.producer("job", "q", "r1").epoch(0)
    report.sent("raw", "s", "n", label(1))
    report.report(units=["a"])


def test_calls_and_reports_are_counted(server: Server) -> None:
    registry = CollectorRegistry()
    with (
        TrackerClient(server.address, metrics=registry) as client,
        TrackerClient(server.address, metrics=registry) as another,
    ):
        client.define_job(spec("job"))
        client.open_producer("job", "q", "r1")
        send(client)
        send(another)
        with pytest.raises(TrackerError):
            client.job("unknown")
    assert calls(registry, "DefineJob", "OK") == 1
    assert calls(registry, "GetJob", "NOT_FOUND") == 1
    assert calls(registry, "Report", "OK") == 2
    assert (reports(registry, "applied", "tracker"), reports(registry, "duplicate", "tracker")) == (1, 1)


def test_each_attempt_is_counted(server: Server) -> None:
    registry = CollectorRegistry()
    server.kill()
    with TrackerClient(server.address, retry_for=0.2, metrics=registry) as client, pytest.raises(TrackerUnavailable):
        client.job("job")
    assert calls(registry, "GetJob", "UNAVAILABLE") > 1


def test_a_report_over_a_relay_is_told_apart(server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    relay = Relay(directory, server.address)
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    with TrackerClient(server.address, metrics=registry) as client:
        client.define_job(spec("job"))
        client.open_producer("job", "q", "r1")
        send(client)
    relay.kill()
    assert reports(registry, "applied", "relay") == 1


def test_a_pickled_client_leaves_its_registry_behind(server: Server) -> None:
    with TrackerClient(server.address, metrics=CollectorRegistry()) as client:
        copied = pickle.loads(pickle.dumps(client))
        assert copied.metrics is None
        assert copied.jobs() == []


def test_without_the_library_clients_work_and_metrics_name_the_extra() -> None:
    program = """
import sys
sys.modules["prometheus_client"] = None
from tracker.client import TrackerClient
TrackerClient("127.0.0.1:1")
try:
    TrackerClient("127.0.0.1:1", metrics=type("Registry", (), {})())
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'substream-tracker[metrics]'" in done.stdout, done.stderr
