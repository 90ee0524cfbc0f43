"""The Airflow provider in a real Airflow, with a real tracker that is killed meanwhile.

`make integrations` installs Airflow and runs these.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tests.integrations.airflows import PROGRAM, Airflow, eventually
from tests.integrations.conftest import INTEGRATIONS
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

PARTITIONS = """
    from airflow.sdk import (
        DAG, Asset, AssetWatcher, IdentityMapper, MinimumCount, PartitionedAssetTimetable, ProductMapper, RollupMapper,
        StartOfDayMapper, task
    )
    from substream_tracker_airflow.partitions import Scopes, WindowOfKey, partition_key
    from substream_tracker_airflow.watching import SubstreamEnds

    watch = SubstreamEnds("parts", "parted", segments=["raw"], reasons=["COMPLETE", "THRESHOLD"], every=1)
    ends = Asset("ends", watchers=[AssetWatcher("ends", trigger=watch)])
    hours = Asset("hours")
    airports = {"upstream_mapper": WindowOfKey(), "window": Scopes(["EWR", "JFK", "LGA"])}

    with DAG("publish_ends", schedule=[ends]):
        @task
        def ended(triggering_asset_events):
            return [end for event in triggering_asset_events[ends] for end in event.extra["payload"]["ends"]]

        @task(outlets=[hours])
        def publish(end, outlet_events):
            outlet_events[hours].add_partitions(partition_key(end))
            outlet_events[hours].extra = end

        publish.expand(end=ended())

    def consume(name, mapper):
        with DAG(name, schedule=PartitionedAssetTimetable(assets=hours, default_partition_mapper=mapper)):
            @task
            def sums(partition_key, triggering_asset_events):
                ends = {event.partition_key: event.extra["account"] for event in triggering_asset_events[hours]}
                return {"partition": partition_key, "ends": ends}

            sums()

    consume("all", RollupMapper(**airports))
    consume("most", RollupMapper(**airports, wait_policy=MinimumCount(-1)))
    consume("daily", ProductMapper(IdentityMapper(), StartOfDayMapper()))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tracker"))
    with TrackerClient(server.address) as client:
        client.define_job(spec("flights", fronts=["gate"], progress=True))
        client.define_job(spec("watched"))
        enough = {"threshold": 0.8, "threshold_after": timedelta(milliseconds=100)}
        client.define_job(spec("parted", fronts=["gate"], **enough))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def airflow(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    address = f"substream-tracker://{server.address}"
    airflow = Airflow(tmp_path_factory.mktemp("airflow"), substream_tracker_default=address)
    (airflow.dags / "sensors.py").write_text(textwrap.dedent(SENSORS))
    (airflow.dags / "watcher.py").write_text(textwrap.dedent(WATCHER))
    (airflow.dags / "partitions.py").write_text(textwrap.dedent(PARTITIONS))
    example = (INTEGRATIONS / "airflow" / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    (airflow.dags / "example.py").write_text(example.replace('"clean"', '"raw"'))
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
        """Return the names of the ends that started the runs that have succeeded."""
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


def test_rollups_wait_for_a_window_in_all_scopes_or_most(
    airflow: Airflow, server: Server, client: TrackerClient
) -> None:
    gate = client.open_producer("parted", "gate", run="r1")

    def end(hour: int, **sent: int) -> None:
        """Send so many of twenty elements, by scope."""
        report = gate.epoch()
        for scope, elements in sent.items():
            name = f"2013-01-01T{hour:02d}:00:00Z/2013-01-01T{hour + 1:02d}:00:00Z"
            report.expect("gate", "raw", scope, name, 20)
            for label in range(1, elements + 1):
                report.sent("raw", scope, name, label)
                report.received("raw", scope, name, label)
        report.report(commit=True)

    def sums(dag: str) -> dict[str, dict[str, str]]:
        """Return the accounts that successful runs were given, by partition and key. No partition has two runs."""
        runs = [run["dag_run_id"] for run in airflow.runs(dag) if run["state"] == "success"]
        found = [airflow.result(dag, run, "sums") for run in runs]
        assert len({each["partition"] for each in found}) == len(found)
        return {each["partition"]: each["ends"] for each in found}

    eventually(lambda: airflow.call("dags/bill_all"))  # the README's example
    for dag in ("publish_ends", "all", "most", "daily"):
        airflow.unpause(dag)
    whole, most = "COMPLETE, 20 of 20 elements", "THRESHOLD, 16 of 20 elements"
    five, six = "2013-01-01T05:00:00", "2013-01-01T06:00:00"
    end(5, JFK=20)
    end(6, JFK=16, LGA=20)
    at_six = {f"JFK|{six}": most, f"LGA|{six}": whole}
    eventually(lambda: sums("most") == {six: at_six})
    assert sums("all") == {}
    airflow.kill_part("triggerer")
    end(5, LGA=20, EWR=16)
    server.restart()
    airflow.start_part("triggerer")
    eventually(lambda: sums("all") == {five: {f"EWR|{five}": most, f"JFK|{five}": whole, f"LGA|{five}": whole}})
    eventually(lambda: sums("most").keys() == {five, six})
    assert len(sums("most")[five]) >= 2
    days = {run["partition_key"] for run in airflow.runs("daily")}
    assert days == {"EWR|2013-01-01", "JFK|2013-01-01", "LGA|2013-01-01"}
