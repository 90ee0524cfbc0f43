"""Each alert fires on its fault and clears after the repair: a real Prometheus, a real tracker under load.

The rules are the shipped ones with their times shortened (`quick`). The load is a job of its own, so that the fault is
all that is wrong with the other one.
"""

from __future__ import annotations

import itertools
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from examples.services.processes import free_port
from tests.client.processes import TRACKER
from tests.relay.processes import Relay
from tests.server.test_durability import fill
from tests.server.tracking import define, ends, many_ends, report
from tests.web.fetching import until
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

from .scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as scene, scene.under_load():
        yield scene


@pytest.mark.thorough
def test_a_tracker_that_is_away(scene: Scene) -> None:
    scene.server.kill()
    alert = scene.observer.fires("TrackerDown", instance=scene.metrics)
    assert scene.metrics in alert["annotations"]["summary"]
    scene.observer.fires("TrackerNoLeader")
    scene.server.start()
    scene.observer.clears("TrackerDown")
    scene.observer.clears("TrackerNoLeader")


@pytest.mark.thorough
def test_a_journal_that_fails(scene: Scene) -> None:
    define(scene.stub)
    resource.prlimit(scene.server.pid, resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    fill(scene.stub)
    scene.observer.fires("TrackerJournalFailing", instance=scene.metrics)
    scene.observer.fires("TrackerNotReady", instance=scene.metrics)
    resource.prlimit(scene.server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    scene.observer.clears("TrackerNotReady")
    scene.observer.clears("TrackerJournalFailing")


@pytest.mark.thorough
def test_a_standby_that_waits_is_no_fault(tmp_path: Path) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    with Scene(tmp_path) as scene:
        command = [*TRACKER, "serve", "--standby", "--listen", "127.0.0.1:0", "--metrics", metrics]
        with subprocess.Popen(
            [*command, "--journal", f"sqlite:{tmp_path / 'tracker.db'}"], stdout=subprocess.DEVNULL
        ) as standby:
            try:
                with scene.under_load(more=[metrics]):
                    seen = f'count_over_time((tracker_standby{{instance="{metrics}"}} == 1)[10s:500ms]) >= 6'
                    until(lambda: bool(scene.observer.query(seen)))
                    assert not scene.observer.alerts("TrackerNotReady")
                    scene.server.kill()
                    until(lambda: bool(scene.observer.query(f'tracker_ready{{instance="{metrics}"}} == 1')))
            finally:
                standby.kill()


@pytest.mark.thorough
def test_a_drain_that_is_overdue(scene: Scene) -> None:
    define(scene.stub)
    scene.stub.Report(report(0))
    scene.stub.Drain(wire.DrainRequest(job="job", deployment="d1", drain_id="x", timeout=Duration(seconds=1)))
    scene.observer.fires("TrackerDrainOverdue", instance=scene.metrics, job_name="job")
    scene.stub.FinishFront(wire.FinishFrontRequest(job="job", front="f"))
    scene.stub.CloseProducer(wire.CloseProducerRequest(job="job", producer="p", run="r"))
    scene.observer.clears("TrackerDrainOverdue")


@pytest.mark.thorough
def test_substreams_that_make_no_progress(scene: Scene) -> None:
    define(scene.stub, stall_after=Duration(seconds=1))
    scene.stub.Report(ends(0, received=[0]))
    alert = scene.observer.fires("TrackerStalled", job_name="job")
    assert alert["annotations"]["summary"] == "Substreams of job job make no progress."
    scene.stub.Report(report(1, names=["w0"], end_times=[0], sent=[0]))
    scene.observer.clears("TrackerStalled")


@pytest.mark.slow
def test_ends_that_one_substream_holds_back(scene: Scene) -> None:
    define(scene.stub, ordering=wire.ORDERING_GLOBAL)
    scene.stub.Report(report(0, received=[0]))
    scene.stub.Report(ends(1))
    scene.observer.fires("TrackerEndsHeldBack", job_name="job")
    scene.stub.Abandon(wire.AbandonRequest(job="job", scope="tenant", name="w0"))
    scene.observer.clears("TrackerEndsHeldBack")


@pytest.mark.slow
def test_elements_that_are_late(scene: Scene) -> None:
    define(scene.stub)
    scene.stub.Report(ends(0))
    epochs = itertools.count(1)

    def floods() -> bool:
        scene.stub.Report(report(next(epochs), names=["w0"], end_times=[0]))
        return any(alert["state"] == "firing" for alert in scene.observer.alerts("TrackerLateFlood"))

    until(floods)
    scene.observer.fires("TrackerLateFlood", job_name="job")
    scene.observer.clears("TrackerLateFlood")


@pytest.mark.slow
def test_a_front_that_is_silent(scene: Scene) -> None:
    define(scene.stub, fronts=["f", "silent"])
    scene.stub.Report(ends(0))
    scene.observer.fires("TrackerSilentFront", job_name="job", front="silent")
    scene.stub.FinishFront(wire.FinishFrontRequest(job="job", front="silent"))
    scene.observer.clears("TrackerSilentFront")


@pytest.mark.slow
def test_a_reader_that_does_not_read(scene: Scene) -> None:
    """A watch's stream takes as much as the transport has room for; the rest waits."""
    define(scene.stub)
    count = 20_000
    with grpc.insecure_channel(scene.server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        watch = TrackerStub(channel).Watch(wire.WatchRequest(job="job"))
        watch.initial_metadata()
        scene.stub.Report(many_ends(count))
        scene.observer.fires("TrackerWatchBehind", job_name="job")
        for _ in range(2 * count):
            next(watch)
        scene.observer.clears("TrackerWatchBehind")
        watch.cancel()


@pytest.mark.slow
def test_a_journal_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delay = tmp_path / "milliseconds"
    delay.write_text("0")
    monkeypatch.setenv("LD_PRELOAD", str(slow_disk(tmp_path)))
    monkeypatch.setenv("SLOW_DISK", str(delay))
    with Scene(tmp_path) as scene, scene.under_load():
        delay.write_text("700")
        scene.observer.fires("TrackerJournalSlow", instance=scene.metrics)
        delay.write_text("0")
        scene.observer.clears("TrackerJournalSlow")


@pytest.mark.slow
def test_a_relay_that_cannot_reach_its_tracker(tmp_path: Path) -> None:
    with Scene(tmp_path) as scene:
        relay = Relay(tmp_path, scene.server.address, "--metrics", "127.0.0.1:0", listen="127.0.0.1:0")
        metrics = relay.metrics.removeprefix("http://")
        try:
            with scene.under_load({"substream-tracker-relay": metrics}):
                scene.server.kill()
                scene.observer.fires("TrackerRelayNotReady", instance=metrics)
                scene.server.start()
                scene.observer.clears("TrackerRelayNotReady")
        finally:
            relay.kill()


def slow_disk(directory: Path) -> Path:
    """Return a library that makes syncs slow."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a slow disk with: apt-get install gcc libc6-dev")
    library = directory / "slowdisk.so"
    source = Path(__file__).with_name("slowdisk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library
