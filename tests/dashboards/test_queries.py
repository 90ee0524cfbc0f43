"""Every query of every dashboard gets data from a real Prometheus that scrapes real processes."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.duration_pb2 import Duration

from tests.alerts.scene import Scene
from tests.relay.processes import Relay
from tests.server.tracking import define, ends, refused
from tracker.client import JobSpec, TrackerClient, label
from tracker.wire.gen import tracker_pb2 as wire

from .queries import DASHBOARDS, queries

VARIABLES = {"instance": ".+", "job_name": "load", "query": ".+", "__rate_interval": "5s"}
_PATIENCE_S = 120  # a query that has no data by then gets none


RELAY = "substream-tracker-relay"  # in prometheus.yml


@contextmanager
def relay_under_load(server: str) -> Iterator[str]:
    """A relay over which somebody reports and watches; where its metrics are."""
    with TemporaryDirectory(prefix="relay-", dir="/tmp") as directory:
        relay = Relay(Path(directory), server, "--metrics", "127.0.0.1:0")
        with TrackerClient(relay.address) as over:
            over.define_job(JobSpec(job="relayed", deployment="d1", segments={"a": ()}, fronts=["f"]))
            producer = over.open_producer("relayed", "p", "r")
            stop = threading.Event()

            def work() -> None:
                for unit in itertools.count():
                    report = producer.epoch(0)
                    report.sent("a", "s", f"n{unit}", label(unit))
                    report.report(units=[str(unit)])
                    over.jobs()
                    if stop.wait(0.1):
                        return

            worker = threading.Thread(target=work)
            worker.start()
            try:
                yield relay.metrics.removeprefix("http://")
            finally:
                stop.set()
                worker.join()
                relay.kill()


def unanswered(scene: Scene) -> dict[str, str]:
    """The queries that get no numbers, by their place."""
    return {
        query.place: query.expression
        for name in DASHBOARDS
        for query in queries(name, VARIABLES)
        if not any(math.isfinite(value) for _, value in scene.observer.query(query.expression))
    }


def test_each_query_gets_data(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "--snapshot-every", "0")
    with relay_under_load(scene.server.address) as relay, scene.under_load({RELAY: relay}):
        define(scene.stub, stall_after=Duration(seconds=1))
        scene.stub.Report(ends(0, received=[0]))
        watch = scene.stub.Watch(wire.WatchRequest(job="job"))
        until = time.monotonic() + _PATIENCE_S
        while missing := unanswered(scene):
            refused(scene.stub.Report, ends(1, run="old"))
            assert time.monotonic() < until, missing
        watch.cancel()
