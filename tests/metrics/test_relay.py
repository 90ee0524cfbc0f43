"""Metrics of a relay: every number against what was done to the relay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from tests.client.processes import Server
from tests.relay.processes import Relay
from tests.server.tracking import define, ends, refused, report
from tests.web.fetching import get, until
from tracker.wire import SERVER_KEY
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

from .scraping import scraped, value, values


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


@pytest.fixture
def relay(server: Server, directory: Path) -> Iterator[Relay]:
    relay = Relay(directory, server.address, "--metrics", "127.0.0.1:0", "--max-pending", "0.1")
    yield relay
    relay.kill()


@pytest.fixture
def stub(relay: Relay) -> Iterator[TrackerStub]:
    with grpc.insecure_channel(relay.address) as channel:
        yield TrackerStub(channel)


def outcomes(relay: Relay) -> dict[str, float]:
    return values(relay.metrics, "tracker_relay_reports_total", "outcome")


def test_reports_are_counted_by_outcome_and_the_messages_for_them_by_code(
    server: Server, relay: Relay, stub: TrackerStub
) -> None:
    define(stub)
    stub.Report(ends(0))
    refused(stub.Report, ends(1, run="old"))
    refused(stub.Report, ends(2), metadata=[(SERVER_KEY, "another:1")])
    assert outcomes(relay) == {"answered": 1, "refused": 1, "another_tracker": 1}
    codes = values(relay.metrics, "tracker_relay_messages_total", "code")
    assert codes == {"OK": 1, "FAILED_PRECONDITION": 1}
    numbers = scraped(relay.metrics)
    assert numbers["tracker_relay_report_seconds_count", ()] == 2
    assert numbers["tracker_relay_message_seconds_count", ()] == 2
    assert numbers["tracker_relay_report_bytes_total", ()] == ends(0).ByteSize() + ends(1, run="old").ByteSize()
    assert numbers["tracker_relay_message_bytes_total", ()] == numbers["tracker_relay_report_bytes_total", ()]
    assert numbers["tracker_relay_pending_bytes", ()] == 0
    assert numbers["tracker_relay_pending_bytes_limit", ()] == round(0.1 * (1 << 20))


@pytest.mark.thorough
def test_a_tracker_that_is_away_makes_the_relay_not_ready(server: Server, relay: Relay, stub: TrackerStub) -> None:
    until(lambda: get(f"{relay.metrics}/readyz").text == "ready\n")
    assert value(relay.metrics, "tracker_relay_ready") == 1
    server.kill()
    until(lambda: "cannot be reached" in get(f"{relay.metrics}/readyz").text)
    assert get(f"{relay.metrics}/readyz").status == 503
    assert get(f"{relay.metrics}/healthz").status == 200
    assert value(relay.metrics, "tracker_relay_ready") == 0
    refused_by_nobody(stub)
    assert outcomes(relay) == {"unavailable": 1}
    server.start()
    until(lambda: get(f"{relay.metrics}/readyz").text == "ready\n")


def refused_by_nobody(stub: TrackerStub) -> None:
    with pytest.raises(grpc.RpcError) as error:
        stub.Report(report(0), timeout=30)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_what_is_pending_and_what_finds_no_room_is_counted(server: Server, relay: Relay, stub: TrackerStub) -> None:
    define(stub)
    until(lambda: values(relay.metrics, "tracker_relay_open_calls", "method")["OpenProducer"] == 0)
    server.freeze()
    waiting = stub.Report.future(ends(0))
    until(lambda: bool(value(relay.metrics, "tracker_relay_pending_bytes")))
    large = report(1, names=["x" * 103_000])
    assert refused(stub.Report, large)[1] == "LIMIT"
    assert refused(stub.GetJob, wire.GetJobRequest(job="x" * 103_000))[1] == "LIMIT"
    server.thaw()
    waiting.result()
    assert outcomes(relay) == {"answered": 1, "full": 1}
    assert scraped(relay.metrics)["tracker_relay_report_seconds_count", ()] == 1, "what was not sent took no time"
    calls = values(relay.metrics, "tracker_relay_passed_calls_total", "method", code="RESOURCE_EXHAUSTED")
    assert calls == {"GetJob": 1}
    assert value(relay.metrics, "tracker_relay_pending_bytes") == 0


@pytest.mark.thorough
def test_a_report_whose_caller_leaves_is_counted(server: Server, relay: Relay, stub: TrackerStub) -> None:
    define(stub)
    server.freeze()
    waiting = stub.Report.future(ends(0))
    until(lambda: bool(value(relay.metrics, "tracker_relay_pending_bytes")))
    waiting.cancel()
    until(lambda: outcomes(relay) == {"left": 1})
    server.thaw()


def test_other_calls_are_counted_by_method_and_code(relay: Relay, stub: TrackerStub) -> None:
    define(stub)
    refused(stub.GetJob, wire.GetJobRequest(job="unknown"))
    watch = stub.Watch(wire.WatchRequest(job="job"))
    watch.initial_metadata()

    def open_calls() -> float:
        return values(relay.metrics, "tracker_relay_open_calls", "method")["Watch"]

    until(lambda: open_calls() == 1)
    watch.cancel()
    until(lambda: open_calls() == 0)
    calls = {code: values(relay.metrics, "tracker_relay_passed_calls_total", "method", code=code) for code in CODES}
    assert calls == {
        "OK": {"DefineJob": 1, "OpenProducer": 1},
        "NOT_FOUND": {"GetJob": 1},
        "CANCELLED": {"Watch": 1},
    }


CODES = ("OK", "NOT_FOUND", "CANCELLED")


@pytest.mark.thorough
def test_an_address_for_metrics_that_is_used_is_a_clear_error(server: Server, relay: Relay, directory: Path) -> None:
    taken = relay.metrics.removeprefix("http://")
    with pytest.raises(AssertionError, match=f"cannot listen on {taken} for metrics: Address already in use"):
        Relay(directory, server.address, "--metrics", taken, listen="127.0.0.1:0")


def test_a_relay_that_stops_leaves_its_address(server: Server, relay: Relay) -> None:
    address = relay.metrics
    assert relay.stop() == 0
    with pytest.raises(OSError, match="refused"):
        get(f"{address}/healthz")
