"""A journal that release 0.1 has left, killed or stopped, is continued: nothing that it had answered is lost.

The journals are a real 0.1 server's (`make_journals.py`). Their time stands still: it is over by now, and retention
would drop what they hold.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conformance.over_grpc import Driver
from tests.conformance.test_vectors import VECTORS, check, lines
from tests.model.lines import as_told
from tests.server.processes import launcher
from tracker.client import DrainState, Ended, Reason, TrackerClient, TrackerError, label
from tracker.testing import LocalTracker, ManualClock, like
from tracker.wire.gen import tracker_pb2_grpc

JOURNALS = Path(__file__).parent / "journals-0.1.tar.xz"
KINDS = ["killed", "killed-beside-snapshots", "stopped"]


@dataclass
class Left:
    """The journal that release 0.1 has left, and its callers' knowledge."""

    journal: str
    vectors: dict[str, int]  #: by name: how many lines it has carried out
    shop: dict[str, Any]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("journals")
    with tarfile.open(JOURNALS) as archive:
        for member in archive:  # `extractall` without a filter warns, and filters came with Python 3.11.4
            if (content := archive.extractfile(member)) is not None:
                path = directory / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    return directory


@pytest.fixture(params=KINDS)
def left(unpacked: Path, request: pytest.FixtureRequest, tmp_path: Path) -> Left:
    """Return a copy of the test's own."""
    for path in (unpacked / request.param).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return Left(f"sqlite:{tmp_path}/tracker.db", **json.loads((tmp_path / "known.json").read_text()))


@pytest.fixture
def tracker(left: Left) -> Iterator[LocalTracker]:
    with LocalTracker(left.journal, ManualClock()) as tracker:
        yield tracker


@pytest.mark.thorough
def test_every_job_goes_on_where_it_was(left: Left, tracker: LocalTracker) -> None:
    """The second half of each vector gets the answers and events that it would have got from one server alone."""
    with grpc.insecure_channel(tracker.address) as channel:
        stub = tracker_pb2_grpc.TrackerStub(channel)
        drivers = {vector: Driver(stub, vector.stem) for vector in VECTORS if vector.stem in left.vectors}
        assert len(drivers) == len(left.vectors) >= 12
        for vector, driver in drivers.items():
            done = lines(vector)[: left.vectors[vector.stem]]
            told = [event for line in done for event in line["events"]]
            assert as_told(driver.new_events(), told) == told, "what had happened before is what it was"
        for vector, driver in drivers.items():
            for number, line in enumerate(lines(vector)):
                if number >= left.vectors[vector.stem]:
                    check(driver, number, line)


def test_a_reader_continues_after_the_event_that_it_had(left: Left, tracker: LocalTracker) -> None:
    assert left.shop["names"] == ["tuesday", "tuesday"]
    tracker.assert_events("shop", [like(Ended, name="tuesday", segment=each) for each in ("orders", "mails")])
    with tracker.client.watch("shop", after_seq=left.shop["last_seq"], log_id=left.shop["log_id"]) as watch:
        tracker.client.producer("shop", "cook", "r1").commit(1)
        event = next(watch)
    assert (event.seq, event.kind) == (
        left.shop["last_seq"] + 1,
        Ended("orders", "berlin", "wednesday", None, 3, Reason.COMPLETE, 0),
    )


def test_an_epoch_that_was_staged_is_committed(tracker: LocalTracker) -> None:
    tracker.assert_open("shop", "orders", "berlin", "wednesday", in_flight=2, waiting_for=[])
    assert "has reported epoch 1 and not committed it" in tracker.explain("shop", "berlin", "wednesday")
    tracker.client.producer("shop", "cook", "r1").commit(1)
    tracker.assert_ended("shop", "orders", "berlin", "wednesday", elements=3)


def test_an_epoch_that_was_staged_is_revoked_by_the_next_run(tracker: LocalTracker) -> None:
    with tracker.client.open_producer("shop", "cook", run="r2", resume_epoch=1) as cook:
        again = cook.epoch(1)
        again.received("orders", "berlin", "wednesday", label("wednesday", 1))
        again.report(commit=True)
    tracker.assert_open("shop", "orders", "berlin", "wednesday", in_flight=1)
    with pytest.raises(TrackerError, match="FENCED"):
        tracker.client.producer("shop", "cook", "r1").commit(2)


def test_entries_that_took_effect_at_once_can_still_be_revoked(tracker: LocalTracker) -> None:
    tracker.assert_open("shop", "mails", "lima", "monday", in_flight=1)
    tracker.client.open_producer("shop", "quick", run="r2", mode="immediate", resume_epoch=1)
    tracker.client.finish_front("shop", "schedule")
    assert "had an epoch revoked whose entries took effect at once" in tracker.explain("shop", "lima", "monday")


def test_a_frontier_closes_what_was_open(tracker: LocalTracker) -> None:
    tracker.assert_open("shop", "orders", "berlin", "monday", in_flight=0, waiting_for=["schedule"])
    with tracker.client.open_producer("shop", "till", run="r2") as till:
        epoch = till.epoch()
        epoch.frontier("schedule", 1)
        epoch.report(commit=True)
    ended = tracker.assert_ended("shop", "orders", "berlin", "monday", elements=3)
    assert ended.end_time == 1


def test_the_job_is_drained_and_its_next_deployment_has_what_is_new(tracker: LocalTracker) -> None:
    client = tracker.client
    for producer in ("till", "cook", "quick"):
        client.forget_producer("shop", producer)
    client.drain("shop", "d1", "to upgrade")
    client.finish_front("shop", "schedule")
    for scope, name in (("berlin", "wednesday"), ("lima", "monday")):
        if client.explain("shop", scope, name).substream is not None:
            client.abandon("shop", scope, name)
    assert client.job("shop").drain.state is DrainState.DRAINED
    spec = client.job("shop").spec
    client.define_job(type(spec)(job="shop", deployment="d2", segments=spec.segments, fronts=spec.fronts))
    client.subscribe("shop", "mailer").close()
    with client.open_producer("shop", "till", run="r3") as till:
        epoch = till.epoch()
        epoch.expect("schedule", "orders", "berlin", "friday", 0)
        epoch.report(commit=True)
    tracker.assert_ended("shop", "orders", "berlin", "friday", elements=0)


@pytest.mark.thorough
def test_a_server_of_its_own_continues_it_also_after_a_kill(left: Left, tmp_path: Path) -> None:
    with launcher() as servers:
        for _ in range(2):
            server = servers.start(tmp_path, left.journal)
            client = TrackerClient(server.address)
            assert client.job("shop").log_id == left.shop["log_id"]
            assert client.explain("shop", "berlin", "wednesday").substream is not None
            client.close()
            server.kill()
        assert "level=error" not in server.log
        assert server.log.count("msg=recovered") == 2
