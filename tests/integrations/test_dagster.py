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
from datetime import timedelta
from pathlib import Path
from typing import Any

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

    from dagster import AssetSpec, Definitions, DefaultSensorStatus, StaticPartitionsDefinition, job, op
    from substream_tracker_dagster.completeness import completeness_check
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

    partitions = StaticPartitionsDefinition(["JFK|1", "LGA|1", "LGA|2"])
    noted = substream_sensor(
        "expected",
        ["raw"],
        name="noted",
        address="%(address)s",
        reasons=["COMPLETE", "THRESHOLD", "ABANDONED"],
        asset="days",
        partition_key=lambda end: f"{end['scope']}|{end['name']}",
        minimum_interval_seconds=1,
        default_status=DefaultSensorStatus.RUNNING,
    )

    definitions = Definitions(
        assets=[AssetSpec("days", partitions_def=partitions)],
        asset_checks=[completeness_check("days")],
        jobs=[billing],
        sensors=[ended, noted],
    )
"""
RUNS = """
import json
from dagster import DagsterInstance

runs = DagsterInstance.get().get_runs()
print(json.dumps([[run.tags["substream-tracker/name"], run.tags["dagster/run_key"], run.status.name] for run in runs]))
"""
CHECKS = """
import json
from dagster import AssetCheckEvaluation, AssetCheckKey, AssetKey, DagsterInstance

instance = DagsterInstance.get()
records = instance.event_log_storage.get_asset_check_execution_history(AssetCheckKey(AssetKey("days"), "complete"), 100)
checks = [each.evaluation for each in reversed(records) if isinstance(each.evaluation, AssetCheckEvaluation)]
numbers = [[each.metadata[name].value for name in ("elements", "expected")] for each in checks]
shown = {each.partition or "": [each.passed, each.description, *has] for each, has in zip(checks, numbers)}
print(json.dumps([shown, sorted(instance.get_materialized_partitions(AssetKey("days")))]))
"""
CHECK = """
from dagster import DagsterInstance
from definitions import definitions

job = definitions.resolve_implicit_global_asset_job_def()
result = job.execute_in_process(instance=DagsterInstance.get())
assert result.success
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
        """Start the daemon."""
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
        """Kill Dagster, with the processes that it has started, by SIGKILL."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, 9)
            daemon.wait()

    def runs(self) -> dict[str, str]:
        """Return the states of all runs, by the name of the substream. No substream has two."""
        runs = self._look(RUNS)
        states = {name: state for name, _, state in runs}
        assert len(states) == len(runs), runs
        return states

    def checks(self) -> Any:
        """Return the newest evaluation of the asset's check for each partition, and the partitions that are there."""
        return self._look(CHECKS)

    def launch_check(self) -> None:
        """Run the check itself, which the sensor has evaluated."""
        subprocess.run([HOME / "bin" / "python", "-c", CHECK], env=self._environment, check=True, cwd=self.directory)

    def billed(self) -> list[str]:
        """Return the arguments of the runs."""
        file = self.directory / "billed"
        return sorted(file.read_text().splitlines()) if file.exists() else []

    def _look(self, program: str) -> Any:
        out = subprocess.run(
            [HOME / "bin" / "python", "-c", program], env=self._environment, check=True, capture_output=True, text=True
        )
        return json.loads(out.stdout.splitlines()[-1])

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


def test_each_end_is_a_partition_whose_check_shows_how_many(server: Server, dagster: Dagster) -> None:
    with TrackerClient(server.address) as client:
        enough = {"threshold": 0.8, "threshold_after": timedelta(milliseconds=100)}
        client.define_job(spec("expected", fronts=["gate"], **enough))
        gate = client.open_producer("expected", "gate", "r1")

        def send(scope: str, name: str, elements: int) -> None:
            report = gate.epoch()
            report.expect("gate", "raw", scope, name, 20)
            for label in range(1, elements + 1):
                report.sent("raw", scope, name, label)
                report.received("raw", scope, name, label)
            report.report(commit=True)

        whole, most = "COMPLETE, 20 of 20 elements", "THRESHOLD, 16 of 20 elements"
        assert dagster.checks() == [{}, []]  # the daemon and this would make the instance's tables at the same time
        dagster.start()
        send("JFK", "1", 20)
        eventually(lambda: dagster.checks() == [{"JFK|1": [True, whole, 20, 20]}, ["JFK|1"]])
        dagster.kill()
        send("LGA", "1", 16)
        client.wait_for_end("expected", "raw", "LGA", "1")
        send("LGA", "2", 3)
        client.abandon("expected", "LGA", "2")
        dagster.start()
        given_up = "ABANDONED, 3 of 20 elements"
        found = {
            "JFK|1": [True, whole, 20, 20],
            "LGA|1": [False, most, 16, 20],
            "LGA|2": [False, given_up, 3, 20],
        }
        eventually(lambda: dagster.checks() == [found, ["JFK|1", "LGA|1", "LGA|2"]])
        assert dagster.runs() == {}
        dagster.launch_check()
        assert dagster.checks()[0] == found | {"": found["LGA|2"]}
