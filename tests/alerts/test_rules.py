"""The rules are what Prometheus takes, and each alert leads to its section of the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.server.processes import ROOT

from .quick import FACTOR, each_time, quick

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("check", [["rules", "rules.yml"], ["config", "prometheus.yml"], ["config", "compose.yml"]])
def test_prometheus_takes_them(check: list[str]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run([promtool, "check", *check], cwd=RULES.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rule_in_the_docs_fires_for_a_backup_that_is_old(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    text = (ROOT / "docs" / "howto" / "backups.md").read_text(encoding="utf-8")
    (rules,) = (block for block in re.findall("```yaml\n(.*?)```", text, re.S) if "TrackerBackupOld" in block)
    (tmp_path / "rules.yml").write_text(rules)
    made = {"series": "tracker_backup_timestamp_seconds", "values": "3600x3000"}
    summary = {"exp_annotations": {"summary": "The newest backup is older than 36 hours."}}
    looks = [
        {"alertname": "TrackerBackupOld", "eval_time": "36h", "exp_alerts": []},
        {"alertname": "TrackerBackupOld", "eval_time": "38h", "exp_alerts": [summary]},
    ]
    cases = {
        "rule_files": ["rules.yml"],
        "tests": [{"interval": "1m", "input_series": [made], "alert_rule_test": looks}],
    }
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(cases))
    done = subprocess.run([promtool, "test", "rules", "cases.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_about_a_job_goes_on_when_another_tracker_leads(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    shutil.copy(RULES, tmp_path / "rules.yml")
    stuck = {
        "TrackerStalled": ("tracker_stalled_substreams", "", "1"),
        "TrackerEndsHeldBack": ("tracker_waiting_substreams", ',waiting_for="order"', "1"),
        "TrackerSilentFront": ("tracker_front_promise_age_seconds", ',front="eu"', "1000"),
        "TrackerWatchBehind": ("tracker_watch_behind_seconds", "", "1000"),
    }
    series = []
    for leads, values in (("a", "{0}x3 stale"), ("b", "_x3 {0}x20")):
        for metric, labels, value in [*stuck.values(), ("tracker_open_substreams", "", "1")]:
            name = f'{metric}{{instance="{leads}",job="tracker",job_name="shop"{labels}}}'
            series.append({"series": name, "values": values.format(value)})
    look = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing", job_name="shop"})',
        "eval_time": "6m",  # `for` is 5 minutes, and the leader changed after 4
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in stuck],
    }
    cases = {
        "rule_files": ["rules.yml"],
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [look]}],
    }
    (tmp_path / "cases.yml").write_text(yaml.safe_dump(cases))
    done = subprocess.run([promtool, "test", "rules", "cases.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_compose_scrapes_is_what_it_starts() -> None:
    example, composed = (
        yaml.safe_load((RULES.parent / name).read_text()) for name in ("prometheus.yml", "compose.yml")
    )
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    for one, other in zip(example["scrape_configs"], composed["scrape_configs"], strict=True):
        (target,) = (target for config in other.pop("static_configs") for target in config["targets"])
        host, _, port = target.partition(":")
        told = [*services[host].get("command", []), *services[host].get("environment", {}).values()]
        assert f"0.0.0.0:{port}" in told or host == "tracker"  # whose image serves there without being told
        del one["static_configs"]
    assert example == composed
    assert "'.[spark,metrics]'" in (ROOT / "Dockerfile").read_text(), "the job's image has to bring prometheus-client"


def test_each_alert_has_a_section_of_the_runbook_and_leads_there() -> None:
    runbook = (ROOT / "docs" / "howto" / "runbook.md").read_text(encoding="utf-8")
    of_backups = re.findall(r"- alert: (\w+)", (ROOT / "docs" / "howto" / "backups.md").read_text(encoding="utf-8"))
    assert re.findall(r"^## (\w+)$", runbook, re.M) == ALERTS + of_backups
    links = re.findall(r"runbook_url: docs/howto/runbook.md#(\w+)", RULES.read_text(encoding="utf-8"))
    assert links == [alert.lower() for alert in ALERTS]


def test_each_metric_of_a_rule_is_documented() -> None:
    documented = set(
        re.findall(
            r"^\| `(tracker_\w+)`", (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8"), re.M
        )
    )
    used = {name.removesuffix("_bucket") for name in re.findall(r"\btracker_\w+", RULES.read_text(encoding="utf-8"))}
    assert used <= documented


def test_the_quick_rules_are_the_shipped_ones_but_for_their_times() -> None:
    shipped = RULES.read_text(encoding="utf-8")
    times: list[int] = []

    def mask(seconds: int) -> str:
        times.append(seconds)
        return "TIME"

    # Thresholds are below a minute in the quick rules, so they are found by their place.
    pattern = re.escape(each_time(shipped, mask)).replace("TIME", r"(\d+)s?")
    found = re.fullmatch(pattern, quick(shipped))
    assert found is not None
    assert [FACTOR * int(seconds) for seconds in found.groups()] == times
    assert len(times) > len(ALERTS)


@pytest.mark.parametrize("what", ["fires", "clears"])
def test_each_alert_has_a_test_in_which_it_fires_and_clears(what: str) -> None:
    tests = Path(__file__).with_name("test_firing.py").read_text(encoding="utf-8")
    assert set(re.findall(rf'observer\.{what}\("(\w+)"', tests)) == set(ALERTS)
