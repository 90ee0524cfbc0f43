"""Grafana's dashboards as code: `python -m scripts.dashboards` writes deploy/grafana/dashboards.

They are built with Grafana's own types, so a panel cannot have an option that Grafana does not have. A test asks a real
Prometheus every query.
"""
