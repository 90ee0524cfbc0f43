"""Renders the Helm chart with every set of values in its folder `ci`, and checks what comes out.

kubeconform holds each resource against Kubernetes' schemas, strictly: a field that it does not know is an error.
The alerts and dashboards in the chart have to be those of deploy/prometheus and deploy/grafana. deploy/compose.yaml is
read by the Compose specification's own loader. The tools are Go modules, installed once.
Exit status: 0 everything is valid; 1 something is not; 2 a tool is missing.

    python -m scripts.chart_check                   # prints what it renders and checks
    python -m scripts.chart_check --print shards    # prints the resources of ci/shards-values.yaml
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import yaml

from .go_tools import COMPOSE, HELM, KUBECONFORM, SCHEMAS, MissingError, install

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "substream-tracker"
COMPOSE_FILE = ROOT / "deploy" / "compose.yaml"
#: The oldest and the newest Kubernetes that the chart renders for.
KUBERNETES = "1.37"


def value_sets() -> list[str]:
    """Return the names of the sets of values."""
    return sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml"))


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm."""
    return subprocess.run([str(HELM.path), *arguments], capture_output=True, text=True, check=False)


def render(*options: str) -> subprocess.CompletedProcess[str]:
    """Render the chart as it would be installed as `shop` in the namespace `streaming`."""
    return helm("template", "shop", str(CHART), "--namespace", "streaming", "--kube-version", KUBERNETES, *options)


def rendered(values: str) -> str:
    """Return the resources of a set of values.

    Raises:
        subprocess.CalledProcessError: the chart refuses the set; its standard error has the reason.
    """
    done = render("--values", str(CHART / "ci" / f"{values}-values.yaml"))
    done.check_returncode()
    return done.stdout


def conform(resources: str) -> subprocess.CompletedProcess[str]:
    """Check resources against the schemas; the standard output lists the faults."""
    location = f"{SCHEMAS}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [str(KUBECONFORM.path), "-strict", "-summary", "-schema-location", location, "-"]
    return subprocess.run(command, input=resources, capture_output=True, text=True, check=False)


def compose(path: Path = COMPOSE_FILE) -> subprocess.CompletedProcess[str]:
    """Read a compose file; the standard error lists the faults."""
    return subprocess.run([str(COMPOSE.path), str(path)], capture_output=True, text=True, check=False)


def shipped_otherwise(resources: str) -> list[str]:
    """List the chart's alerts and dashboards that differ from those of deploy/prometheus and deploy/grafana."""
    found = []
    brought = [each for each in yaml.safe_load_all(resources) if each]
    rules = [each["spec"] for each in brought if each["kind"] == "PrometheusRule"]
    if rules != [yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules.yml").read_text(encoding="utf-8"))]:
        found.append("everything: the PrometheusRule is not deploy/prometheus/rules.yml")
    boards: dict[str, str] = {}
    for each in brought:
        if each["kind"] == "ConfigMap" and "grafana_dashboard" in each["metadata"]["labels"]:
            boards |= each["data"]
    shipped = (ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")
    if {name: json.loads(text) for name, text in boards.items()} != {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in shipped
    }:
        found.append("everything: the dashboards are not those of deploy/grafana/dashboards")
    return found


def faults() -> list[str]:
    """Return the faults; print what is right."""
    found = []
    for values in value_sets():
        try:
            resources = rendered(values)
        except subprocess.CalledProcessError as refused:
            found.append(f"{values}: {refused.stderr}")
            continue
        linted = helm("lint", "--strict", str(CHART), "--values", str(CHART / "ci" / f"{values}-values.yaml"))
        conforming = conform(resources)
        if linted.returncode or conforming.returncode:
            found.append(f"{values}: {linted.stdout if linted.returncode else ''}{conforming.stdout}")
        if values == "everything":
            found += shipped_otherwise(resources)
        print(f"{values}: {conforming.stdout.strip().rpartition(chr(10))[2]}", flush=True)
    read = compose()
    if read.returncode:
        found.append(f"{COMPOSE_FILE.name}: {read.stderr}")
    else:
        print("compose.yaml: taken by the Compose specification's loader")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", metavar="SET", choices=value_sets(), help="print the resources of a set of values")
    arguments = parser.parse_args()
    try:
        install()
    except MissingError as missing:
        print(f"chart-check: {missing}", file=sys.stderr)
        return 2
    if arguments.print:
        print(rendered(arguments.print))
        return 0
    found = faults()
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
