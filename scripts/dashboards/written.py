"""The dashboards as the files that Grafana reads."""

from __future__ import annotations

import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from .job import job
from .overview import overview
from .relays import relays
from .spark import spark

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"


def _numbered(dashboard: Dashboard) -> Dashboard:
    """Return the dashboard with an id for each panel, so that links to one stay what they are."""
    for number, panel in enumerate(dashboard.panels or (), 1):
        panel.id_val = number
    return dashboard


def written() -> dict[str, str]:
    """Return the files' texts, by name."""
    dashboards = {"overview": overview(), "job": job(), "relays": relays(), "spark": spark()}
    return {
        f"{name}.json": json.dumps(_numbered(dashboard.build()), cls=JSONEncoder, indent=2) + "\n"
        for name, dashboard in dashboards.items()
    }
