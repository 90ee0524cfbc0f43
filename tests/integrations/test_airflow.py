"""The Airflow provider in a real Airflow, with a real tracker that is killed meanwhile.

`make integrations` installs Airflow and runs these.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tests.integrations.airflows import PROGRAM, Airflow, eventually
from tracker.client import TrackerClient

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not PROGRAM.exists(), reason=f"there is no {PROGRAM}: `make integrations` installs Airflow"),
]

SENSORS = """
    from airflow.sdk import DAG
    from substream_tracker_airflow.sensors import ProgressSensor, SubstreamSensor

    with DAG("days", schedule=None):
        flights = {"job": "flights", "segment": "raw"}
        SubstreamSensor(task_id="day", **flights, scope="{{ dag_run.conf['scope'] }}", name="{{ dag_run.conf['day'] }}")
        ProgressSensor(task_id="all", **flights, up_to="{{ dag_run.conf['up_to'] }}")

    with DAG("refused", schedule=None):
        SubstreamSensor(task_id="abandoned", **flights, scope="s", name="lost")
        SubstreamSensor(task_id="accepted", **flights, scope="s", name="lost", reasons=["ABANDONED"])
        SubstreamSensor(task_id="nowhere", job="flights", segment="nowhere", scope="s", name="n")
        SubstreamSensor(task_id="late", **flights, scope="s", name="never", timeout=5)
"""

WATCHER = """
    from airflow.sdk import DAG, Asset, AssetWatcher, task
    from substream_tracker_airflow.watching import SubstreamEnds

    days = Asset("days", watchers=[AssetWatcher("days", trigger=SubstreamEnds("days", "watched", segments=["raw"]))])

    with DAG("bill", schedule=[days]):
        @task
        def ends(triggering_asset_events):
            return [end for event in triggering_asset_events[days] for end in event.extra["payload"]["ends"]]

        ends()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tracker"))
    with TrackerClient(server.address) as client:
        client.define_job(spec("flights", fronts=["gate"], progress=True))
        client.define_job(spec("watched"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def airflow(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    address = f"substream-tracker://{server.address}"
    airflow = Airflow(tmp_path_factory.mktemp("airflow"), substream_tracker_default=address)
    (airflow.dags / "sensors.py").write_text(textwrap.dedent(SENSORS))
    (airflow.dags / "watcher.py").write_text(textwrap.dedent(WATCHER))
    try:
        airflow.start()
        yield airflow
    finally:
        airflow.stop()


@pytest.fixture
def client(server: Server) -> Iterator[TrackerClient]:
    with TrackerClient(server.address) as client:
        yield client


def test_tasks_wait_while_the_tracker_and_the_triggerer_are_killed(
    airflow: Airflow, server: Server, client: TrackerClient
) -> None:
    run = airflow.run("days", scope="JFK", day="2013-01-01", up_to="2013-01-02")
    eventually(lambda: airflow.states("days", run) == {"day": "deferred", "all": "deferred"})
    server.restart()
    till = client.open_producer("flights", "till", run="r1")
    report = till.epoch()
    report.close("JFK", "2013-01-01", front="gate")
    report.frontier("gate", 1)
    report.report(commit=True)
    eventually(lambda: airflow.states("days", run)["day"] == "success")
    assert airflow.result("days", run, "day")["reason"] == "COMPLETE"
    assert airflow.states("days", run)["all"] == "deferred"
    airflow.kill_part("triggerer")
    report = till.epoch()
    report.frontier("gate", 1_357_084_800_000_000)
    report.report(commit=True)
    airflow.start_part("triggerer")
    eventually(lambda: airflow.states("days", run)["all"] == "success")
    assert airflow.result("days", run, "all") == 1_357_084_800_000_000


def test_a_task_fails_with_the_reason(airflow: Airflow, client: TrackerClient) -> None:
    report = client.open_producer("flights", "till", run="r2").epoch()
    report.sent("raw", "s", "lost", 4711)
    report.report(commit=True)
    client.abandon("flights", "s", "lost")
    run = airflow.run("refused")
    states = {"abandoned": "failed", "accepted": "success", "nowhere": "failed", "late": "failed"}
    eventually(lambda: airflow.states("refused", run) == states)
    assert "ended on 'raw' as ABANDONED with 1 elements in flight" in airflow.task_log("refused", run, "abandoned")
    assert "UNKNOWN_SEGMENT" in airflow.task_log("refused", run, "nowhere")
    assert "AirflowSensorTimeout" in airflow.task_log("refused", run, "late")


def test_each_end_starts_a_dag_once_while_processes_are_killed(
    airflow: Airflow, server: Server, client: TrackerClient
) -> None:
    till = client.open_producer("watched", "till", run="r1")

    def end(*names: str) -> None:
        report = till.epoch()
        for name in names:
            report.close("JFK", name)
        report.report(commit=True)

    def started() -> list[str]:
        """What the runs that have succeeded were started by."""
        runs = [run["dag_run_id"] for run in airflow.runs("bill") if run["state"] == "success"]
        return sorted(payload["name"] for run in runs for payload in airflow.result("bill", run, "ends"))

    def is_acknowledged() -> bool:
        return [each.acknowledged for each in client.subscriptions("watched")] == [client.job("watched").last_seq]

    airflow.unpause("bill")
    end("1")
    eventually(lambda: started() == ["1"])
    eventually(is_acknowledged)
    server.restart()
    end("2")
    eventually(lambda: started() == ["1", "2"])
    eventually(is_acknowledged)
    airflow.kill_part("triggerer")
    report = till.epoch()
    report.sent("raw", "JFK", "lost", 4711)
    report.report(commit=True)
    client.abandon("watched", "JFK", "lost")
    end("3", "4", "5")
    server.restart()
    airflow.start_part("triggerer")
    eventually(lambda: started() == ["1", "2", "3", "4", "5"])
    eventually(is_acknowledged)
