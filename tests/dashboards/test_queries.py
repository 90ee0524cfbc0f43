"""Every query of every dashboard gets data from a real Prometheus that scrapes real processes."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from google.protobuf.duration_pb2 import Duration

from examples.services.processes import free_port
from tests.alerts.scene import Scene
from tests.relay.processes import Relay
from tests.server.processes import ROOT
from tests.server.tracking import define, ends, refused
from tracker.client import JobSpec, TrackerClient, label
from tracker.wire.gen import tracker_pb2 as wire

from .queries import DASHBOARDS, queries

VARIABLES = {"instance": ".+", "job_name": "load", "query": ".+", "__rate_interval": "5s"}
RELAY, SPARK = "substream-tracker-relay", "substream-tracker-spark"  # in prometheus.yml
_PATIENCE_S = 120  # a query that has no data by then gets none


@contextmanager
def relay_under_load(server: str) -> Iterator[str]:
    """Yield a relay over which somebody reports and lists jobs; where its metrics are."""
    with TemporaryDirectory(prefix="relay-", dir="/tmp") as directory:
        relay = Relay(Path(directory), server, "--metrics", "127.0.0.1:0")
        stop = threading.Event()

        def work() -> None:
            for unit in itertools.count():
                report = producer.epoch(0)
                report.sent("a", "s", f"n{unit}", label(unit))
                report.report(units=[str(unit)])
                over.jobs()
                if stop.wait(0.1):
                    return

        try:
            with TrackerClient(relay.address) as over, ThreadPoolExecutor(1) as worker:
                over.define_job(JobSpec(job="relayed", deployment="d1", segments={"a": ()}, fronts=["f"]))
                producer = over.open_producer("relayed", "p", "r")
                worker.submit(work)
                try:
                    yield relay.metrics.removeprefix("http://")
                finally:
                    stop.set()
        finally:
            relay.kill()


@contextmanager
def driver(directory: Path, server: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Yield the Spark job of deploy/compose.yaml, and where its metrics are."""
    metrics = f"127.0.0.1:{free_port()}"
    environment = {
        "TRACKER_SERVER": server,
        "METRICS": metrics,
        "CHECKPOINT": str(directory / "checkpoint"),
        "PYSPARK_PYTHON": sys.executable,
    }
    with (
        (directory / "driver.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, str(ROOT / "deploy" / "spark" / "job.py")],
            stdout=log,
            stderr=log,
            cwd=directory,
            env={**os.environ, **environment},
        ) as job,
    ):
        try:
            yield job, metrics
        finally:
            job.terminate()


def unanswered(scene: Scene, names: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the queries that get no numbers, by their place."""
    return {
        query.place: query.expression
        for name in names
        for query in queries(name, variables)
        if not any(math.isfinite(value) for _, value in scene.observer.query(query.expression))
    }


@pytest.mark.thorough
def test_each_query_gets_data(tmp_path: Path) -> None:
    with (
        Scene(tmp_path, "--snapshot-every", "0") as scene,
        relay_under_load(scene.server.address) as relay,
        scene.under_load({RELAY: relay}),
    ):
        define(scene.stub, stall_after=Duration(seconds=1))
        scene.stub.Report(ends(0, received=[0]))
        watch = scene.stub.Watch(wire.WatchRequest(job="job"))
        until = time.monotonic() + _PATIENCE_S
        while missing := unanswered(scene, [name for name in DASHBOARDS if name != "spark"], VARIABLES):
            refused(scene.stub.Report, ends(1, run="old"))
            assert time.monotonic() < until, missing
        watch.cancel()


@pytest.mark.slow
@pytest.mark.spark
def test_each_query_about_spark_gets_data(tmp_path: Path) -> None:
    with (
        Scene(tmp_path) as scene,
        driver(tmp_path, scene.server.address) as (job, metrics),
        scene.under_load({SPARK: metrics}),
    ):
        until = time.monotonic() + 2 * _PATIENCE_S
        while missing := unanswered(scene, ["spark"], {**VARIABLES, "job_name": ".+", "__rate_interval": "30s"}):
            fine = job.poll() is None and time.monotonic() < until
            assert fine, f"{missing}\n{(tmp_path / 'driver.log').read_text()}"
            time.sleep(0.5)
