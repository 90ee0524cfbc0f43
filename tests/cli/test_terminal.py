"""Nothing that a terminal would act on comes out of the command line, whatever names are in a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from tests.server.processes import Servers, launcher
from tracker.cli.main import main
from tracker.cli.output import print_json, print_line
from tracker.cli.views import line
from tracker.client.texts import shown
from tracker.wire.codec.values import read_event
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

#: Characters that a terminal acts on: escape sequences, C0 and C1 controls, line ends of all kinds, turns of text.
BAD = ["\x1b[2J", "\x1b]0;title\x07", "\r", "\n", "\t", "\x7f", "\x9b31m", "\x85", "\u2028", "\u202e", "\u2066", "\x00"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with launcher() as servers:
        yield _started(servers, tmp_path_factory.mktemp("server"))


def _started(servers: Servers, directory: Path) -> str:
    return servers.start(directory, "memory").address


def fill(stub: TrackerStub, job: str, names: Random) -> dict[str, str]:
    """Make a job in which everything that has a name has a bad one; return the names."""

    def bad(name: str) -> str:
        parts = names.sample(BAD, 4)
        return name + parts[0] + "x" + "".join(parts[1:])

    given = {
        what: bad(what) for what in ("segment", "front", "producer", "run", "scope", "name", "unit", "drain", "ended")
    }
    stub.DefineJob(
        wire.DefineJobRequest(
            spec=wire.JobSpec(
                job=job,
                deployment="d1",
                segments=[wire.Segment(name=given["segment"])],
                fronts=[given["front"], bad("other front")],
                stall_after=Duration(nanos=1),
            )
        )
    )
    stub.OpenProducer(wire.OpenProducerRequest(job=job, producer=given["producer"], run=given["run"]))
    said: dict[str, Any] = {"job": job, "producer": given["producer"], "run": given["run"], "scopes": [given["scope"]]}
    said |= {"segments": [given["segment"]], "names": [given["name"], given["ended"]], "scope_index": [0, 0]}
    said |= {"substream_index": [0, 1], "segment_index": [0, 0], "xor": [1, 0], "sent": [1, 1], "received": [0, 1]}
    promises = [wire.Promise(frontier=wire.Frontier(front=given["front"], scope=given["scope"], time=5))]
    promises.append(wire.Promise(close=wire.Close(substream_index=1)))
    promises.append(wire.Promise(close=wire.Close(substream_index=0)))
    for epoch, commit in ((0, True), (1, False)):
        stub.Report(
            wire.ReportRequest(
                **said, epoch=epoch, units=[given["unit"]], entry_count=2, promises=promises, commit=commit
            )
        )
    # Late entries, and a drain that is waited for.
    stub.Commit(wire.CommitRequest(job=job, producer=given["producer"], run=given["run"], epoch=1))
    stub.Subscribe(wire.SubscribeRequest(job=job, name=bad("subscription"), scopes=[given["scope"]]))
    return given


@pytest.mark.parametrize("seed", range(3))
def test_every_command_shows_names_escaped(address: str, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    job = f"job-{seed}"
    with grpc.insecure_channel(address) as channel:
        stub = TrackerStub(channel)
        given = fill(stub, job, Random(seed))
        last = stub.GetJob(wire.GetJobRequest(job=job)).last_seq
        stub.Drain(wire.DrainRequest(job=job, deployment="d1", drain_id=given["drain"]))
    assert last > 0
    scope, name = given["scope"], given["name"]
    commands = [
        ["jobs"],
        ["job", job],
        ["substreams", job],
        ["substreams", job, "--ended"],
        ["substreams", job, "--stalled"],
        ["explain", job, scope, name],
        ["explain", job, scope, name + "?"],
        ["explain", job, scope, given["ended"]],
        ["subscriptions", job],
        ["drain", job, "d1"],
        ["cancel-drain", job],
        ["abandon", job, scope, name + "?"],
        ["finish-front", job, given["front"] + "?"],
        ["forget-producer", job, given["producer"] + "?"],
        ["unsubscribe", job, name],
        ["delete-job", job],
        ["abandon", job, scope, name],
        ["finish-front", job, given["front"]],
        ["forget-producer", job, given["producer"]],
    ]
    said = 0
    for command in commands:
        for as_json in ([], ["--json"]):
            main([*command, *as_json, "--server", address])
            out, error = capsys.readouterr()
            raw = [c for c in out + error if not c.isprintable() and c != "\n"]
            assert not raw, f"{command}: {raw}"
            # No name makes a line of its own.
            for printed in (out + error).splitlines():
                assert not printed.startswith("x\\"), printed
            if as_json and out and not command[0].startswith("sub"):
                json.loads(out)
            said += len(out + error) > 0
    assert said > 20


def test_the_events_too(address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = TrackerStub(channel)
        fill(stub, "watched", Random(9))
        events = stub.ListEvents(wire.ListEventsRequest(job="watched")).events
    assert {"ended", "late"} <= {str(event.WhichOneof("kind")) for event in events}
    for event in map(read_event, events):
        assert event is not None
        print_line(line(event))
        print_json(event)
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2 * len(events)
    assert not [c for c in out if not c.isprintable() and c != "\n"]


def test_what_is_plain_stays_as_it_is() -> None:
    for name in ("JFK 2013-01-01", "[0.0, 1.0)", "Zürich", "東京", "🛫", "a\\b", ""):
        assert shown(name) == name
