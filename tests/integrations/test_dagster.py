"""The Dagster sensor in a real Dagster with its daemon, and a real tracker; both are killed meanwhile.

`make integrations` installs Dagster and runs this.
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.client.conftest import server, spec
from tests.client.processes import Server
from tests.integrations.airflows import eventually
from tracker.client import TrackerClient

__all__ = ["server"]

HOME = Path(__file__).resolve().parents[2] / ".cache" / "dagster"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (HOME / "bin" / "dagster-daemon").exists(),
        reason=f"there is no Dagster in {HOME}: `make integrations` installs it",
    ),
]

DEFINITIONS = """
    from pathlib import Path

    from dagster import Definitions, DefaultSensorStatus, job, op
    from substream_tracker_dagster.sensor import substream_sensor

    @op(config_schema={"name": str, "elements": int})
    def bill(context):
        with Path("%(directory)s", "billed").open("a") as file:
            file.write(context.op_config["name"] + chr(10))

    @job
    def billing():
        bill()

    ended = substream_sensor(
        "flights",
        ["raw"],
        name="days",
        address="%(address)s",
        target=billing,
        run_config=lambda end: {"ops": {"bill": {"config": {key: end[key] for key in ("name", "elements")}}}},
        minimum_interval_seconds=1,
        default_status=DefaultSensorStatus.RUNNING,
    )

    definitions = Definitions(jobs=[billing], sensors=[ended])
"""
RUNS = """
import json
from dagster import DagsterInstance

runs = DagsterInstance.get().get_runs()
print(json.dumps([[run.tags["substream-tracker/name"], run.tags["dagster/run_key"], run.status.name] for run in runs]))
"""


class Dagster:
    """Dagster's daemon with an instance of its own."""

    def __init__(self, directory: Path, address: str) -> None:
        self.directory = directory
        (directory / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        values = {"directory": directory, "address": address}
        (directory / "definitions.py").write_text(textwrap.dedent(DEFINITIONS) % values)
        self._environment = os.environ | {"DAGSTER_HOME": str(directory)}
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the daemon."""
        with (self.directory / "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [HOME / "bin" / "dagster-daemon", "run", "--python-file", "definitions.py"],
                env=self._environment,
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """kill -9, with the processes that it has started."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, 9)
            daemon.wait()

    def runs(self) -> dict[str, str]:
        """The states of all runs, by the name of the substream. No substream has two."""
        out = subprocess.run(
            [HOME / "bin" / "python", "-c", RUNS], env=self._environment, check=True, capture_output=True, text=True
        )
        runs = json.loads(out.stdout.splitlines()[-1])
        states = {name: state for name, _, state in runs}
        assert len(states) == len(runs), runs
        return states

    def billed(self) -> list[str]:
        """What the runs have been given."""
        file = self.directory / "billed"
        return sorted(file.read_text().splitlines()) if file.exists() else []

    @property
    def log(self) -> str:
        return (self.directory / "daemon.log").read_text()


@pytest.fixture
def dagster(server: Server, tmp_path: Path) -> Iterator[Dagster]:
    home = tmp_path / "dagster"
    home.mkdir()
    dagster = Dagster(home, server.address)
    yield dagster
    dagster.kill()


def test_each_end_starts_one_run_while_processes_are_killed(server: Server, dagster: Dagster) -> None:
    with TrackerClient(server.address) as client:
        client.define_job(spec("flights"))
        till = client.open_producer("flights", "till", "r1")

        def end(*names: str) -> None:
            report = till.epoch()
            for name in names:
                report.close("JFK", name)
            report.report(commit=True)

        def have_run(*names: str) -> bool:
            return dagster.billed() == sorted(names) and dagster.runs() == dict.fromkeys(names, "SUCCESS")

        dagster.start()
        end("1")
        eventually(lambda: have_run("1"))
        server.kill()
        eventually(lambda: "TrackerUnavailable" in dagster.log)
        server.start()
        end("2", "3")
        eventually(lambda: have_run("1", "2", "3"))
        dagster.kill()
        end("4")
        dagster.start()
        eventually(lambda: have_run("1", "2", "3", "4"))
