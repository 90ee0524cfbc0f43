"""A real Prometheus, of Debian's package, which scrapes what a test gives it."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.services.processes import free_port
from tests.server.processes import ROOT
from tests.web.fetching import get, until

from .quick import FACTOR, quick

SHIPPED = ROOT / "deploy" / "prometheus"

Labels = dict[str, str]


class Prometheus:
    """A Prometheus that runs: what it knows of targets, series and alerts."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    def _get(self, path: str, **query: str) -> Any:
        page = get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}")
        answer = json.loads(page.text)
        assert answer["status"] == "success", f"{query}: {answer}\n{self._log.read_text()}"
        return answer["data"]

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """Return the samples that an expression has now."""
        data = self._get("query", query=expression)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def alerts(self, name: str) -> list[dict[str, Any]]:
        """Return the pending and firing alerts of a rule."""
        return [each for each in self._get("alerts")["alerts"] if each["labels"]["alertname"] == name]

    def fires(self, name: str, **labels: str) -> dict[str, Any]:
        """Wait until an alert with these labels, and perhaps more, fires. Return it."""
        found: list[dict[str, Any]] = []

        def firing() -> bool:
            found[:] = [
                each
                for each in self.alerts(name)
                if each["state"] == "firing" and labels.items() <= each["labels"].items()
            ]
            return bool(found)

        until(firing)
        return found[0]

    def clears(self, name: str) -> None:
        """Wait until no alert of a rule fires, and none is about to."""
        until(lambda: not self.alerts(name))


def _configuration(targets: dict[str, Sequence[str]]) -> str:
    """Return the shipped configuration, quicker by the factor of the rules, for other targets."""
    shipped = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    for setting in ("scrape_interval", "evaluation_interval"):
        seconds = int(shipped["global"][setting].removesuffix("s"))
        shipped["global"][setting] = f"{seconds * 1000 // FACTOR}ms"
    jobs = {job["job_name"]: job for job in shipped["scrape_configs"]}
    assert targets.keys() <= jobs.keys(), f"prometheus.yml has no {targets.keys() - jobs.keys()}"
    for name, addresses in targets.items():
        jobs[name]["static_configs"] = [{"targets": list(addresses)}]
    shipped["scrape_configs"] = [jobs[name] for name in targets]
    return yaml.safe_dump(shipped)


@contextmanager
def prometheus(directory: Path, targets: dict[str, Sequence[str]]) -> Iterator[Prometheus]:
    """Yield a Prometheus with the shipped configuration and rules, both quicker by `FACTOR`.

    Args:
        directory: for its files.
        targets: addresses, by the name that the shipped configuration has for their kind.
    """
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    (directory / "rules.yml").write_text(quick((SHIPPED / "rules.yml").read_text(encoding="utf-8")))
    (directory / "prometheus.yml").write_text(_configuration(targets))
    listen = f"127.0.0.1:{free_port()}"
    command = [program, f"--config.file={directory / 'prometheus.yml'}", f"--web.listen-address={listen}"]
    command += [f"--storage.tsdb.path={directory / 'data'}", "--log.level=warn"]
    log = directory / "prometheus.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:

            def ready() -> bool:
                assert process.poll() is None, log.read_text()
                try:
                    return get(f"http://{listen}/-/ready").status == 200
                except urllib.error.URLError:
                    return False

            until(ready)
            yield Prometheus(f"http://{listen}", log)
        finally:
            process.terminate()
