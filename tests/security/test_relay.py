"""A relay between clients and a tracker with TLS and tokens: whose rights count, on which side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from tests.client.conftest import spec
from tests.relay.processes import Relay
from tests.security.secured import Secured
from tracker.client import Credentials, TrackerClient, TrackerError, TrackerUnavailable
from tracker.client.credentials import TOKEN_VARIABLE, VARIABLES
from tracker.wire.gen import tracker_pb2

SERVICE = tracker_pb2.DESCRIPTOR.services_by_name["Tracker"]


@pytest.fixture
def near() -> Iterator[Path]:
    """Yield a directory whose path leaves room for a socket's name."""
    with TemporaryDirectory(prefix="relay-", dir="/tmp") as directory:
        yield Path(directory)


def relay_of(
    secured: Secured, near: Path, *options: str, token: Path | None = None, listen: str | None = None
) -> Relay:
    """Return a relay whose own token has the scope report."""
    token = token or secured.add_known("relay", ["report"])
    own = ["--tls-ca", str(secured.authority.ca), "--token-file", str(token)]
    return Relay(near, secured.address, *own, *options, listen=listen)


def report(client: TrackerClient, job: str, unit: str) -> str:
    """Report in a form that a relay can combine. Return the outcome."""
    report = client.producer(job, "p", "1").epoch(0)
    report.sent("raw", "s", "a", 1)
    return report.report(units=[unit]).outcome.name


@pytest.fixture
def opened(own: Secured, job: str) -> Secured:
    """Return a tracker with a job and a run."""
    client = own.client(own.all)
    client.define_job(spec(job))
    client.open_producer(job, "p", "1")
    return own


def test_reports_go_with_the_relays_token(
    opened: Secured, near: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own token has no scope to report: only over the relay can the report have come in."""
    relay = relay_of(opened, near)
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    assert report(opened.client(opened.add_known("watcher", ["watch"])), job, "u") == "APPLIED"
    relay.stop()
    with pytest.raises(TrackerError, match="needs the scope report, and has watch"):
        report(opened.client(opened.directory / "watcher.token"), job, "v")


def test_a_relay_that_may_not_report_loses_nothing(
    opened: Secured, near: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = relay_of(opened, near, token=opened.add_known("narrow", ["report"], ("other-*",)))
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    assert report(opened.client(opened.all), job, "u") == "APPLIED"
    relay.stop()


def test_other_calls_go_with_the_callers_token_and_never_with_the_relays(opened: Secured, near: Path, job: str) -> None:
    relay = relay_of(opened, near, token=opened.all)
    anybody = TrackerClient(relay.address, retry_for=0, credentials=Credentials())
    with pytest.raises(TrackerError, match="the call carries no token"):
        anybody.delete_job(job, force=True)
    reader = opened.add_known("reader", ["watch"])
    known = TrackerClient(relay.address, retry_for=0, credentials=Credentials(token_file=str(reader)))
    assert known.job(job).spec.job == job
    with pytest.raises(TrackerError, match="needs the scope admin"):
        known.delete_job(job, force=True)
    relay.stop()


def test_a_relays_certificate_is_for_reports_only(own: Secured, near: Path, job: str) -> None:
    cert, key = own.authority.sign("node")
    relay = relay_of(own, near, "--tls-cert", str(cert), "--tls-key", str(key))
    refused = {}
    with grpc.insecure_channel(relay.address) as channel:
        for method in SERVICE.methods:
            call = channel.stream_stream(f"/{SERVICE.full_name}/{method.name}")(iter([b""]))  # type: ignore[arg-type, var-annotated]
            with pytest.raises(grpc.RpcError):
                list(call)
            refused[method.name] = call.details()
    about_jobs = refused.pop("Report")
    assert "job" in about_jobs
    for name, details in refused.items():
        assert f"a relay passes {name} on only with a token of the caller" in details
    relay.stop()


def test_a_relay_on_a_port_has_tls_and_callers_of_its_own(opened: Secured, near: Path, job: str) -> None:
    callers = opened.add_known("caller", ["report"], (f"{job}*",))
    tls = ["--listen-tls-cert", str(opened.cert), "--listen-tls-key", str(opened.key)]
    relay = relay_of(opened, near, *tls, "--listen-tokens", str(opened.tokens), listen="127.0.0.1:0")
    address = relay.address.replace("127.0.0.1", "localhost")
    assert report(TrackerClient(address, retry_for=0, credentials=opened.credentials(callers)), job, "u") == "APPLIED"
    with pytest.raises(TrackerError, match="the call carries no token"):
        report(TrackerClient(address, retry_for=0, credentials=opened.credentials(None)), job, "v")
    with pytest.raises(TrackerError, match="has no access to job 'other'"):
        report(TrackerClient(address, retry_for=0, credentials=opened.credentials(callers)), "other", "v")
    with pytest.raises(TrackerUnavailable):
        TrackerClient(relay.address, retry_for=0, credentials=Credentials()).server_info()
    relay.stop()


def test_a_relay_without_protection_does_not_listen_beyond_its_machine(own: Secured, near: Path) -> None:
    with pytest.raises(AssertionError, match=r"needs TLS \(--listen-tls-cert FILE.*--listen-tokens FILE"):
        relay_of(own, near, listen="0.0.0.0:0")


def test_a_relay_without_its_token_does_not_start(own: Secured, near: Path) -> None:
    with pytest.raises(AssertionError, match=r"token file .*missing cannot be read"):
        relay_of(own, near, token=near / "missing")


@pytest.mark.thorough
def test_a_relay_takes_its_credentials_from_the_environment(
    opened: Secured, near: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES["ca"], str(opened.authority.ca))
    monkeypatch.setenv(TOKEN_VARIABLE, opened.all.read_text().strip())
    relay = Relay(near, opened.address)
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    assert report(TrackerClient(opened.address), job, "u") == "APPLIED"
    assert opened.all.read_text().strip() not in relay.log
    relay.stop()
