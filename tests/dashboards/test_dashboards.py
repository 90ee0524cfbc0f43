"""The dashboards are what the code gives, fit Grafana's types, and explain themselves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.server.processes import ROOT

from .queries import DASHBOARDS, DIRECTORY, dashboard, panels, queries

pytest.importorskip("grafana_foundation_sdk", reason="grafana-foundation-sdk needs Python 3.11")

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from scripts.dashboards.written import written

ANY = dict.fromkeys(("datasource", "instance", "job_name", "query", "__rate_interval"), "x")


def test_the_files_are_what_the_code_gives() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in DIRECTORY.iterdir()} == written()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_has_every_field(name: str) -> None:
    """Grafana's types drop what they do not have, and refuse values that an enumeration lacks."""
    register_default_plugins()
    given = dashboard(name)
    read = Dashboard.from_json(given)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == given


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_panel_has_a_title_a_description_a_unit_and_its_source(name: str) -> None:
    assert dashboard(name)["templating"]["list"][0]["name"] == "datasource"
    for panel in panels(name):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in sources} == {"${datasource}"}


def test_no_two_dashboards_or_panels_of_one_are_called_alike() -> None:
    boards = [dashboard(name) for name in DASHBOARDS]
    for what in ("uid", "title"):
        assert len({each[what] for each in boards}) == len(boards)
    for name in DASHBOARDS:
        titles = [panel["title"] for panel in panels(name)]
        assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard(name)["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_each_metric_that_is_asked_for_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(tracker_\w+)`", text, re.M))
    for name in DASHBOARDS:
        for query in queries(name, ANY):
            used = {
                re.sub(r"_(bucket|count|sum)$", "", each) for each in re.findall(r"\btracker_\w+", query.expression)
            }
            assert used <= documented, query.place


def test_what_is_provisioned_is_there() -> None:
    provisioning = DIRECTORY.parent / "provisioning"
    (source,) = loaded(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    assert source["type"] == "prometheus"
    scrape = loaded(ROOT / "deploy" / "prometheus" / "prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape
    (provider,) = loaded(provisioning / "dashboards" / "tracker.yaml")["providers"]
    services = loaded(ROOT / "deploy" / "compose.yaml")["services"]
    mounts = [volume.split(":") for volume in services["grafana"]["volumes"] if volume.startswith(".")]
    places = {inside: (ROOT / "deploy" / outside).resolve() for outside, inside, *_ in mounts}
    assert places[provider["options"]["path"]] == DIRECTORY.resolve()
    assert places["/etc/grafana/provisioning"] == provisioning.resolve()
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services


def loaded(path: Any) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))
