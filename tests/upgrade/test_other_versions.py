"""Release 0.1's code, from the git history, beside today's: clients of either against servers of the other.

They need the whole history: a shallow clone or a source archive has no release 0.1 to run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tests.conformance.over_grpc import Driver
from tests.conformance.test_vectors import check, lines
from tests.upgrade import old_version
from tests.upgrade.make_journals import known_vectors
from tests.upgrade.old_version import ROOT, OldServer
from tracker.client import DrainState, JobSpec, TrackerClient, TrackerError, label
from tracker.testing import LocalTracker
from tracker.wire.gen import tracker_pb2_grpc

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not old_version.is_there(), reason="this clone has no history back to release 0.1"),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with old_version.checked_out(tmp_path_factory.mktemp("old")) as tree:
        yield tree


@pytest.fixture
def old_server(tree: Path, tmp_path: Path) -> Iterator[OldServer]:
    server = OldServer(tree, tmp_path / "tracker.db")
    yield server
    server.end(signal.SIGKILL)


def test_a_client_of_0_1_works_with_todays_server(tree: Path) -> None:
    with LocalTracker() as tracker:
        done = old_version.run(tree, "examples/plain_pipeline.py", tracker.address)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(done.stdout.splitlines()) == [
            "birds: all 10 images are done",
            "cats: all 30 images are done",
            "dogs: all 20 images are done",
        ]
        looked = old_version.run(tree, "-m", "tracker.cli.main", "jobs", "--server", tracker.address)
        assert looked.returncode == 0, looked.stderr
        assert "thumbnails" in looked.stdout


def test_what_0_1_knew_of_the_contract_holds_for_its_clients_today(tree: Path) -> None:
    """The old driver, with its own stubs, gets from today's server what its vectors state."""
    program = """
import sys
import grpc
from pathlib import Path
from tests.conformance.over_grpc import Driver
from tests.conformance.test_vectors import lines
from tracker.wire.gen import tracker_pb2_grpc

address, *vectors = sys.argv[1:]
stub = tracker_pb2_grpc.TrackerStub(grpc.insecure_channel(address))
for vector in map(Path, vectors):
    driver = Driver(stub, vector.stem)
    for number, line in enumerate(lines(vector)):
        answer, events = driver.run(line)
        assert (answer, events) == (line["expect"], line["events"]), (vector, number + 1, answer, events)
print(len(vectors))
"""
    vectors = [str(tree / vector.relative_to(ROOT)) for vector in known_vectors()]
    with LocalTracker() as tracker:
        done = old_version.run(tree, "-c", program, tracker.address, *vectors)
    assert done.stdout == f"{len(vectors)}\n", done.stderr


def test_todays_client_works_with_a_server_of_0_1(old_server: OldServer) -> None:
    """Reports, commits, ends and events do; what 0.1 does not know is refused, and changes nothing."""
    program = [sys.executable, "examples/plain_pipeline.py", old_server.address]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cats: all 30 images are done" in done.stdout
    with TrackerClient(old_server.address, retry_for=5) as client:
        for call in (
            lambda: client.subscribe("thumbnails", "mailer"),
            lambda: client.explain("thumbnails", "s", "n"),
            lambda: client.subscriptions("thumbnails"),
            lambda: client.drain("thumbnails", client.job("thumbnails").spec.deployment, "night", hand_over=True),
        ):
            with pytest.raises(TrackerError) as refused:
                call()
            assert refused.value.code == "UNIMPLEMENTED"
        assert client.get_drain("thumbnails").state is DrainState.NOT_DRAINING, "0.1 would finish the deployment"
        client.define_job(JobSpec(job="counted", deployment="d1", segments={"raw": []}, fronts=("schedule",)))
        with client.open_producer("counted", "source", run="1") as source:
            report = source.epoch()
            report.sent("raw", "s", "n", label(1))
            report.expect("schedule", "raw", "s", "n", 1)
            with pytest.raises(TrackerError) as refused:
                report.report(commit=True)
        assert refused.value.reason == "MALFORMED"
        assert list(client.substreams("counted")) == []


def test_todays_wire_says_what_the_old_vectors_say_to_an_old_server(old_server: OldServer) -> None:
    with grpc.insecure_channel(old_server.address) as channel:
        for vector in known_vectors()[:10]:
            driver = Driver(tracker_pb2_grpc.TrackerStub(channel), vector.stem)
            for number, line in enumerate(lines(vector)):
                check(driver, number, line)


def test_0_1_refuses_a_journal_that_today_has_written(tree: Path, tmp_path: Path) -> None:
    """There is no way back but a backup: it refuses by that, and changes nothing."""
    journal = tmp_path / "tracker.db"
    with LocalTracker(f"sqlite:{journal}") as tracker:
        tracker.client.define_job(JobSpec(job="shop", deployment="d1", segments={"orders": []}))
    with pytest.raises(AssertionError, match="the snapshot is of form 2; this version reads form 1"):
        OldServer(tree, journal)
    with LocalTracker(f"sqlite:{journal}") as tracker:
        assert tracker.client.jobs() == ["shop"]
