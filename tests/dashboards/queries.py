"""The committed dashboards: their panels, and what these ask Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.server.processes import ROOT

DIRECTORY = ROOT / "deploy" / "grafana" / "dashboards"
DASHBOARDS = sorted(path.stem for path in DIRECTORY.glob("*.json"))


def dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it."""
    loaded: dict[str, Any] = json.loads((DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def panels(name: str) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, without the rows that head them."""
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


class Query(NamedTuple):
    """A query of a panel, or of a variable."""

    place: str
    expression: str


def queries(name: str, variables: Mapping[str, str]) -> Iterator[Query]:
    """Yield the queries of a dashboard, with values in place of its variables."""
    for panel in panels(name):
        for target in panel["targets"]:
            yield Query(f"{name}: {panel['title']} {target['refId']}", _filled(target["expr"], variables))
    for variable in dashboard(name)["templating"]["list"]:
        if variable["type"] == "query":
            metric, _, label = variable["query"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            yield Query(f"{name}: ${variable['name']}", f"count by ({label}) ({_filled(metric, variables)})")


def _filled(expression: str, variables: Mapping[str, str]) -> str:
    for variable, value in sorted(variables.items(), reverse=True):
        expression = expression.replace(f"${variable}", value)
    assert "$" not in expression, expression
    return expression
