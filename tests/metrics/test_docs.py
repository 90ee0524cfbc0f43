"""The documentation's tables of metrics are what processes expose."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.relay.processes import Relay
from tests.server.processes import ROOT, Servers
from tests.server.tracking import define, ends, refused
from tests.web.fetching import get
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

ROW = re.compile(r"^\| `(tracker_\w+)` \| (\w+) \| ([^|]*) \| (.+) \|$", re.M)


def table(section: str) -> dict[str, tuple[str, set[str], str]]:
    """Return the metrics that a section of the documentation lists."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    _, heading, rest = text.partition(f"\n## {section}\n")
    assert heading, section
    rows = ROW.findall(rest.partition("\n## ")[0])
    return {name: (kind, set(re.findall(r"`(\w+)`", labels)), what) for name, kind, labels, what in rows}


def exposed(text: str) -> dict[str, tuple[str, set[str], str]]:
    """Return the metrics of a scrape, in the same form."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("tracker_"):
            samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            labels = {label for sample in samples for label in sample.labels} - {"le"}
            name = f"{family.name}_total" if family.type == "counter" else family.name
            if samples:
                found[name] = (family.type, labels, family.documentation)
    return found


def test_every_metric_of_a_server_is_listed(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory", "--metrics", "127.0.0.1:0")
    define(server.stub)
    server.stub.Report(ends(0))
    refused(server.stub.Report, ends(1, run="old"))
    assert table("All metrics of a server") == exposed(get(f"{server.metrics}/metrics").text)
    server.kill()


def test_every_metric_of_a_relay_is_listed(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory")
    relay = Relay(tmp_path, server.address, "--metrics", "127.0.0.1:0", listen="127.0.0.1:0")
    with grpc.insecure_channel(relay.address) as channel:
        stub = TrackerStub(channel)
        define(stub)
        stub.Report(ends(0))
    assert table("All metrics of a relay") == exposed(get(f"{relay.metrics}/metrics").text)
    relay.kill()
    server.kill()
