"""Every form of a command's answer, as it is committed, on the same data each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.shell import Shell
from tests.cli.snapshots import compare, masked
from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.client import TrackerClient, label


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Yield a tracker with one job: one substream has ended, one is late, one in flight with its next epoch staged."""
    server = Server(tmp_path_factory.mktemp("tracker"), "memory")
    with TrackerClient(server.address) as client:
        client.define_job(spec("flights", segments={"raw": ["clean"], "clean": []}, fronts=["schedule"]))
        producer = client.open_producer("flights", "q", "r1")
        report = producer.epoch(0)
        report.sent("raw", "JFK", "2013-01-01", label("a"), end_time=24)
        report.received("raw", "JFK", "2013-01-01", label("a"), end_time=24)
        report.sent("raw", "LGA", "2013-01-02", label("b"), end_time=48)
        report.frontier("schedule", 24)
        report.report(units=["a"], commit=True)
        late = producer.epoch(1)
        late.sent("raw", "JFK", "2013-01-01", label("c"), end_time=24)
        late.report(units=["b"], commit=True)
        staged = producer.epoch(2)
        staged.received("raw", "LGA", "2013-01-02", label("b"), end_time=48)
        staged.report(units=["c"])
        client.subscribe("flights", "mailer", segments=["raw"])
        client.define_job(spec("taxis", fronts=["meter"]))
        client.drain("taxis", "d1", "night")
    shell = Shell(server.address)
    shell.environment["TRACKER_CONFIG"] = str(tmp_path_factory.mktemp("home") / "config.toml")
    shell("context", "set", "production", "--server", "tracker:7654", "--tls-ca", "/etc/ca.pem", "--token-file", "/t")
    yield shell
    server.stop()


LOOKS = {
    "jobs": ["jobs"],
    "job": ["job", "flights"],
    "substreams": ["substreams", "flights", "--ended"],
    "explain": ["explain", "flights", "LGA", "2013-01-02"],
    "events": ["events", "flights"],
    "wait": ["wait", "flights", "raw", "JFK", "2013-01-01"],
    "subscriptions": ["subscriptions", "flights"],
    "context-list": ["context", "list"],
    "context-show": ["context", "show", "production"],
    "info": ["info"],
    "drain": ["drain", "taxis", "d1", "--id", "night"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["table", "wide", "json"])
@pytest.mark.parametrize("name", LOOKS)
def test_an_answer(asked: Shell, name: str, form: str) -> None:
    compare(f"{name}-{form}", masked(asked(*LOOKS[name], "--output", form)))


ERRORS = {
    "no-command": ([], 2),
    "unknown-command": (["jbos"], 2),
    "unknown-option": (["jobs", "--foo"], 2),
    "no-job": (["job"], 2),
    "unknown-job": (["job", "nobody"], 1),
    "unknown-substream": (["explain", "flights", "JFK", "2014"], 1),
    "not-in-time": (["wait", "flights", "raw", "LGA", "2013-01-02", "--timeout", "0.1"], 1),
    "wrong-number": (["events", "flights", "--limit", "-1"], 2),
    "wrong-kind": (["events", "flights", "--kind", "late"], 2),
    "unknown-context": (["jobs", "--context", "nowhere"], 2),
    "sharded": (["info", "--sharded", "none"], 2),
    "load-without-server": (["load", "smoke"], 2),
    "load-json-file": (["load", "smoke", "--start", "--json", "x.json"], 2),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ERRORS)
def test_an_error(asked: Shell, name: str) -> None:
    arguments, status = ERRORS[name]
    compare(f"error-{name}", masked(asked(*arguments, status=status)))
