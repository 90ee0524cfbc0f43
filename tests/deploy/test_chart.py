"""The Helm chart as it is rendered with each of its sets of values; `scripts.chart_check` installs what this needs."""

from __future__ import annotations

import pytest

from scripts import chart_check
from scripts.go_tools import installed

from .commands import of_chart
from .test_commands import check

pytestmark = pytest.mark.skipif(
    not installed(), reason="helm, kubeconform or their schemas are missing: run `python -m scripts.chart_check` once"
)


@pytest.mark.parametrize("values", chart_check.value_sets())
def test_every_resource_is_what_kubernetes_takes(values: str) -> None:
    done = chart_check.conform(chart_check.rendered(values))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", chart_check.value_sets())
def test_its_command_lines_are_taken_by_their_programs(values: str) -> None:
    commands = [*of_chart(chart_check.rendered(values), values)]
    assert ("tracker", "serve") in [command.words[:2] for command in commands]
    for command in commands:
        check(command)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    resources = chart_check.rendered("minimal")
    wrong = resources.replace("serviceName:", "serviceNam:", 1)
    assert wrong != resources
    assert chart_check.conform(wrong).returncode


def test_without_tls_and_clients_it_is_refused_unless_that_is_meant() -> None:
    refused = chart_check.render()
    assert refused.returncode
    assert "security.insecure=true" in refused.stderr
    assert chart_check.render("--set", "security.insecure=true").returncode == 0


def test_backups_without_a_place_are_refused() -> None:
    refused = chart_check.render("--set", "security.insecure=true", "--set", "backup.enabled=true")
    assert refused.returncode
    assert "backup.to" in refused.stderr


def test_servers_with_one_journal_stand_by_and_are_named_together() -> None:
    resources = chart_check.rendered("standby")
    assert "--standby" in resources
    assert "volumeClaimTemplates" not in resources
    assert "path: /readyz?standby" in resources
    pods = [f"shop-substream-tracker-{n}.shop-substream-tracker-headless.streaming.svc:7654" for n in range(2)]
    assert f"--server={'+'.join(pods)}" in resources
    assert "--standby" not in chart_check.rendered("shards")


def test_a_value_that_it_does_not_have_is_refused() -> None:
    refused = chart_check.render("--set", "security.insecure=true", "--set", "replica=3")
    assert refused.returncode
    assert "replica" in refused.stderr


def test_the_alerts_and_dashboards_are_those_that_are_shipped() -> None:
    assert not chart_check.shipped_otherwise(chart_check.rendered("everything"))


def test_the_compose_file_is_taken_by_its_loader() -> None:
    assert not chart_check.compose().stderr
