"""The documentation's table of metrics is what a server exposes."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.server.processes import ROOT, Servers
from tests.server.tracking import define, ends, refused
from tests.web.fetching import get

ROW = re.compile(r"^\| `(tracker_\w+)` \| (\w+) \| ([^|]*) \| (.+) \|$", re.M)


def test_the_table_has_every_metric_with_its_type_labels_and_meaning(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory", "--metrics", "127.0.0.1:0")
    define(server.stub)
    server.stub.Report(ends(0))
    refused(server.stub.Report, ends(1, run="old"))
    exposed = {}
    for family in text_string_to_metric_families(get(f"{server.metrics}/metrics").text):
        if family.name.startswith("tracker_"):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            name = f"{family.name}_total" if family.type == "counter" else family.name
            exposed[name] = (family.type, labels, family.documentation)
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    table = {name: (kind, set(re.findall(r"`(\w+)`", labels)), what) for name, kind, labels, what in ROW.findall(text)}
    assert table == exposed
    server.kill()
