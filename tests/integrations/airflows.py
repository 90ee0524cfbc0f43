"""A real Airflow with a database of its own: API server, scheduler, DAG processor and triggerer, each a process."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from examples.services.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".cache" / "airflow"
PROGRAM = HOME / "bin" / "airflow"
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")


def eventually(look: Callable[[], Any], seconds: float = 300.0) -> Any:
    """Look until something is there, and return it."""
    until = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < until, f"{look} has not come true"
        time.sleep(0.5)


class Airflow:
    """An Airflow that runs until it is stopped.

    Args:
        directory: an empty one.
        connections: addresses of connections, by name.
    """

    def __init__(self, directory: Path, **connections: str) -> None:
        self._directory = directory
        self.dags = directory / "dags"
        self.dags.mkdir()
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        settings = {
            "api__host": "127.0.0.1",
            "api__port": str(port),
            "api__secret_key": "secret",
            "api__workers": "1",
            "api_auth__jwt_secret": "a secret that is long enough for a signature with sixty-four bytes",
            "core__dags_folder": str(self.dags),
            "core__execution_api_server_url": f"{self._url}/execution/",
            "core__executor": "LocalExecutor",
            "core__fernet_key": urlsafe_b64encode(b"0" * 32).decode(),
            "core__load_examples": "False",
            "core__parallelism": "2",
            "core__simple_auth_manager_all_admins": "True",
            "dag_processor__refresh_interval": "5",
            "logging__trigger_log_server_port": str(free_port()),
            "logging__worker_log_server_port": str(free_port()),
            "triggerer__job_heartbeat_sec": "1",
            "triggerer__triggerer_health_check_threshold": "5",
            **{f"conn_{name}": address for name, address in connections.items()},
        }
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")},
            **{
                (f"AIRFLOW_{name}" if name.startswith("conn_") else f"AIRFLOW__{name}").upper(): value
                for name, value in settings.items()
            },
            "AIRFLOW_HOME": str(directory),
            "NO_PROXY": "127.0.0.1",
        }
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self._token = ""

    def start(self) -> None:
        """Start Airflow, and wait until it answers."""
        subprocess.run(
            [PROGRAM, "db", "migrate"], env=self._environment, check=True, capture_output=True, cwd=self._directory
        )
        for part in PARTS:
            self.start_part(part)
        eventually(self._find_token)

    def start_part(self, part: str) -> None:
        """Start one of Airflow's processes."""
        with (self._directory / f"{part}.log").open("ab") as log:
            self._parts[part] = subprocess.Popen(
                [PROGRAM, part],
                env=self._environment,
                cwd=self._directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_part(self, part: str) -> None:
        """Kill a part, with the processes that it has started, by SIGKILL."""
        process = self._parts.pop(part)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()

    def stop(self) -> None:
        """End all of Airflow's processes."""
        for part in list(self._parts):
            self.kill_part(part)

    def log(self, part: str) -> str:
        """Return the log of one of Airflow's processes."""
        return (self._directory / f"{part}.log").read_text()

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Call Airflow's API: GET, or POST of a body. None: there is no such thing yet."""
        request = urllib.request.Request(
            f"{self._url}/api/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {self._token}", "content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            if refused.code == 404:
                return None
            raise AssertionError(f"{path}: {refused.code} {refused.read().decode()}") from None

    def unpause(self, dag: str) -> None:
        """Wait until a DAG is there, and let it run."""
        eventually(lambda: self.call(f"dags/{dag}"))
        request = urllib.request.Request(
            f"{self._url}/api/v2/dags/{dag}",
            data=b'{"is_paused": false}',
            method="PATCH",
            headers={"authorization": f"Bearer {self._token}", "content-type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=60).close()

    def run(self, dag: str, **conf: Any) -> str:
        """Run a DAG, and return the run's name."""
        self.unpause(dag)
        return str(self.call(f"dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})["dag_run_id"])

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Return a DAG's runs, in the order in which they began."""
        found = self.call(f"dags/{dag}/dagRuns")
        return [] if found is None else sorted(found["dag_runs"], key=lambda run: str(run["run_after"]))

    def states(self, dag: str, run: str) -> dict[str, str]:
        """Return the states of a run's tasks, by name."""
        found = self.call(f"dags/{dag}/dagRuns/{run}/taskInstances")
        return {each["task_id"]: each["state"] for each in found["task_instances"]}

    def result(self, dag: str, run: str, task: str) -> Any:
        """Return the result of a task."""
        return self.call(f"dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value?deserialize=true")[
            "value"
        ]

    def task_log(self, dag: str, run: str, task: str) -> str:
        """Return the log of a task's first try."""
        return json.dumps(self.call(f"dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/1"))

    def _find_token(self) -> bool:
        with suppress(OSError, urllib.error.URLError):
            with urllib.request.urlopen(f"{self._url}/auth/token", timeout=10) as answer:
                self._token = json.load(answer)["access_token"]
            return True
        return False
