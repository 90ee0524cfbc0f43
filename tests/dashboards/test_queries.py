"""Every query of every dashboard gets data from a real Prometheus that scrapes real processes."""

from __future__ import annotations

import math
import time
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from tests.alerts.scene import Scene
from tests.server.tracking import define, ends, refused
from tracker.wire.gen import tracker_pb2 as wire

from .queries import DASHBOARDS, queries

VARIABLES = {"instance": ".+", "job_name": "load", "query": ".+", "__rate_interval": "5s"}
_PATIENCE_S = 120  # a query that has no data by then gets none


def unanswered(scene: Scene) -> dict[str, str]:
    """The queries that get no numbers, by their place."""
    return {
        query.place: query.expression
        for name in DASHBOARDS
        for query in queries(name, VARIABLES)
        if not any(math.isfinite(value) for _, value in scene.observer.query(query.expression))
    }


def test_each_query_gets_data(tmp_path: Path) -> None:
    with Scene(tmp_path, "--snapshot-every", "0").under_load() as scene:
        define(scene.stub, stall_after=Duration(seconds=1))
        scene.stub.Report(ends(0, received=[0]))
        watch = scene.stub.Watch(wire.WatchRequest(job="job"))
        until = time.monotonic() + _PATIENCE_S
        while missing := unanswered(scene):
            refused(scene.stub.Report, ends(1, run="old"))
            assert time.monotonic() < until, missing
        watch.cancel()
