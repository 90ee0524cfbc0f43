"""Watching, waiting for an end, reading ranges: nothing missed, nothing twice, and an end to it when the log ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tracker.client import TrackerClient
from tracker.client.texts import why_open
from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

from .processes import Server, Servers
from .tracking import define, ends, refused, report


@pytest.fixture(scope="module")
def server(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return servers.start(tmp_path_factory.mktemp("server"), "memory")


@pytest.fixture
def stub(server: Server) -> TrackerStub:
    return server.stub


def watch(stub: TrackerStub, job: str, after_seq: int = 0, **more: Any) -> Any:
    return stub.Watch(wire.WatchRequest(job=job, after_seq=after_seq, **more))


def take(events: Iterator[wire.Event], count: int) -> list[wire.Event]:
    return [next(events) for _ in range(count)]


def seqs(events: list[wire.Event]) -> list[int]:
    return [event.seq for event in events]


def soon(what: Callable[[], Any]) -> Any:
    """Wait until something is true. Return it."""
    for _ in range(3000):
        found = what()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come true")


def test_a_watch_sends_what_was_kept_then_what_comes(stub: TrackerStub) -> None:
    define(stub, "live")
    for epoch in range(3):
        stub.Report(ends(epoch, "live"))
    events = watch(stub, "live")
    assert seqs(take(events, 6)) == [1, 2, 3, 4, 5, 6]
    stub.Report(ends(3, "live"))
    event = next(events)
    assert event.seq == 7
    assert event.deployment == "d1"
    assert event.at.seconds > 1_600_000_000
    ended = event.ended
    assert (ended.segment, ended.scope, ended.name, ended.end_time) == ("a", "tenant", "w3", 3)
    assert (ended.elements, ended.reason, ended.in_flight) == (1, wire.COMPLETE, 0)
    events.cancel()


def test_a_watcher_that_comes_back_misses_nothing_and_sees_nothing_twice(stub: TrackerStub) -> None:
    define(stub, "resumed")
    told, seen = 50, list[int]()
    reporter = threading.Thread(target=lambda: [stub.Report(ends(epoch, "resumed")) for epoch in range(told)])
    reporter.start()
    while len(seen) < 2 * told:
        events = watch(stub, "resumed", seen[-1] if seen else 0)
        seen += seqs(take(events, min(7, 2 * told - len(seen))))
        events.cancel()
    reporter.join()
    assert seen == list(range(1, 2 * told + 1))


def test_batches_bring_the_same_events_in_few_messages(stub: TrackerStub) -> None:
    define(stub, "batched", progress=True)
    for epoch in range(300):
        stub.Report(ends(epoch, "batched"))
    for scopes in ([], ["nobody"]):
        one_by_one = take(watch(stub, "batched", scopes=scopes), 600)
        messages = watch(stub, "batched", scopes=scopes, in_batches=True)
        together, count = list[wire.Event](), 0
        while len(together) < 600:
            message = next(messages)
            together += [message, *message.more]
            count += 1
        messages.cancel()
        for event in together:
            del event.more[:]
        assert together[:600] == one_by_one
        assert count <= 600 // 20


def test_filters_and_bookmarks(stub: TrackerStub) -> None:
    """A filter holds back Ended, Late and Advanced of other segments and scopes; after 1,000, a bookmark."""
    define(stub, "filtered", progress=True)
    for epoch in range(1100):
        stub.Report(ends(epoch, "filtered", scopes=["even" if epoch % 2 == 0 else "odd"]))
    by_segment = take(watch(stub, "filtered", segments=["b"]), 4)
    assert [(event.WhichOneof("kind"), event.seq % 4) for event in by_segment] == [("ended", 2), ("advanced", 0)] * 2
    by_scope = take(watch(stub, "filtered", scopes=["odd"], segments=["a"]), 3)
    assert [(event.WhichOneof("kind"), event.seq) for event in by_scope] == [
        ("advanced", 3),
        ("ended", 5),
        ("advanced", 7),
    ]
    nothing = watch(stub, "filtered", scopes=["nobody"], segments=["nowhere"])
    bookmarks = take(nothing, 4)
    assert [(event.WhichOneof("kind"), event.seq) for event in bookmarks] == [
        ("bookmark", 1000 * n) for n in (1, 2, 3, 4)
    ]
    stub.Drain(wire.DrainRequest(job="filtered", deployment="d1", drain_id="now"))
    assert next(nothing).drain_requested.drain_id == "now"  # what concerns all passes every filter
    nothing.cancel()


@pytest.mark.slow
def test_a_bookmark_comes_with_time_too(stub: TrackerStub) -> None:
    define(stub, "quiet")
    events = watch(stub, "quiet", scopes=["nobody"])
    stub.Report(ends(0, "quiet"))
    event = next(events)
    assert (event.WhichOneof("kind"), event.seq) == ("bookmark", 2)
    events.cancel()


@pytest.mark.thorough
def test_a_watcher_that_does_not_read_holds_nobody_up_and_misses_nothing(stub: TrackerStub) -> None:
    define(stub, "slow")
    events = watch(stub, "slow")
    events.initial_metadata()
    count = 20_000
    stub.Report(
        report(
            0,
            "slow",
            names=[f"{'w' * 400}{i}" for i in range(count)],
            scope_index=[0] * count,
            end_times=list(range(count)),
            substream_index=list(range(count)),
            segment_index=[0] * count,
            xor=[0] * count,
            sent=[1] * count,
            received=[1] * count,
            entry_count=count,
            promises=[wire.Promise(frontier=wire.Frontier(front="f", time=count))],
        )
    )
    assert stub.GetJob(wire.GetJobRequest(job="slow")).last_seq == 40_000
    assert seqs(take(events, 40_000)) == list(range(1, 40_001))
    events.cancel()


def test_a_watch_ends_when_its_log_does(stub: TrackerStub) -> None:
    first = define(stub, "deleted").log_id
    stub.Report(ends(0, "deleted"))
    events = watch(stub, "deleted", 2)
    events.initial_metadata()
    waiting = stub.Await.future(wire.AwaitRequest(job="deleted", segment="a", scope="tenant", name="never"))
    assert refused(stub.DeleteJob, wire.DeleteJobRequest(job="deleted"))[1] == "JOB_ACTIVE"
    stub.DeleteJob(wire.DeleteJobRequest(job="deleted", force=True))
    assert refused(lambda: list(events))[:2] == ("NOT_FOUND", "UNKNOWN_JOB")
    assert refused(waiting.result)[:2] == ("NOT_FOUND", "UNKNOWN_JOB")
    second = define(stub, "deleted").log_id
    assert second != first
    for call in (
        lambda: list(watch(stub, "deleted", 2, log_id=first)),
        lambda: stub.ListEvents(wire.ListEventsRequest(job="deleted", log_id=first)),
        lambda: stub.Report(
            report(0, "deleted", names=[], scope_index=[], end_times=[], substream_ids=[0], log_id=first)
        ),
    ):
        assert refused(call)[:2] == ("FAILED_PRECONDITION", "LOG_CHANGED")
    events = watch(stub, "deleted", log_id=second)
    stub.Report(ends(0, "deleted"))
    assert seqs(take(events, 2)) == [1, 2]
    events.cancel()


def test_events_that_retention_has_dropped(stub: TrackerStub) -> None:
    define(stub, "forgetful", retention={"nanos": 1_000_000})
    stub.Report(ends(0, "forgetful"))
    stub.Report(ends(1, "forgetful"))
    job = wire.GetJobRequest(job="forgetful")
    soon(lambda: stub.GetJob(job).first_seq == 5)
    code, reason, message = refused(lambda: list(watch(stub, "forgetful", 2)))
    assert (code, reason) == ("OUT_OF_RANGE", "EVENTS_EXPIRED")
    assert "5" in message
    assert refused(stub.ListEvents, wire.ListEventsRequest(job="forgetful", after_seq=1))[1] == "EVENTS_EXPIRED"
    request = wire.AwaitRequest(job="forgetful", segment="a", scope="tenant", name="w0", end_time=0)
    assert refused(stub.Await, request)[:2] == ("OUT_OF_RANGE", "EVENTS_EXPIRED")
    events = watch(stub, "forgetful")  # from the oldest kept
    stub.Report(ends(2, "forgetful"))
    assert next(events).seq == 5
    events.cancel()


def test_time_makes_events(stub: TrackerStub) -> None:
    """Stalls, expiry and a drain that is late are announced without anybody's call."""
    define(stub, "timed", stall_after={"nanos": 1_000_000}, expire_after={"nanos": 200_000_000})
    stub.Report(ends(0, "timed", sent=[3]))
    stub.Drain(wire.DrainRequest(job="timed", deployment="d1", drain_id="d", timeout=Duration(nanos=1)))
    kinds = {event.WhichOneof("kind"): event for event in take(watch(stub, "timed"), 5)}
    assert set(kinds) == {"stalled", "drain_requested", "drain_timed_out", "ended"}
    assert kinds["stalled"].stalled == wire.Stalled(scope="tenant", name="w0", segments=["a"], in_flight=2)
    assert kinds["ended"].ended.reason == wire.EXPIRED


class TestAwait:
    def test_answers_at_once_what_has_ended_and_later_what_ends(self, stub: TrackerStub) -> None:
        define(stub, "await")
        stub.Report(ends(0, "await"))
        assert stub.Await(wire.AwaitRequest(job="await", segment="b", scope="tenant", name="w0")).ended.segment == "b"
        waiting = [
            stub.Await.future(wire.AwaitRequest(job="await", segment="a", scope="tenant", name=f"w{epoch}"))
            for epoch in (2, 3, 1)
        ]
        for epoch in (1, 2, 3):
            stub.Report(ends(epoch, "await"))
        assert [call.result().ended.name for call in waiting] == ["w2", "w3", "w1"]

    def test_waits_for_what_nobody_has_named(self, stub: TrackerStub) -> None:
        define(stub, "await-nobody")
        request = wire.AwaitRequest(job="await-nobody", segment="a", scope="tenant", name="w0")
        with pytest.raises(grpc.RpcError) as error:
            stub.Await(request, timeout=0.3)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_ranges_and_pages(stub: TrackerStub) -> None:
    define(stub, "pages")
    for epoch in range(10):
        stub.Report(ends(2 * epoch, "pages"))
        stub.Report(report(2 * epoch + 1, "pages", end_times=[10_000 - epoch]))

    def listed(**request: Any) -> tuple[list[int], int]:
        response = stub.ListEvents(wire.ListEventsRequest(job="pages", **request))
        return seqs(list(response.events)), response.last_seq

    assert listed() == (list(range(1, 21)), 20)
    assert listed(after_seq=4, up_to_seq=7) == ([5, 6, 7], 7)
    assert listed(after_seq=4, limit=3, segments=["b"]) == ([6], 7)
    assert listed(after_seq=20) == ([], 20)
    names, token = [], ""
    while True:
        page = stub.ListSubstreams(wire.ListSubstreamsRequest(job="pages", page_size=4, page_token=token))
        names += [substream.name for substream in page.substreams]
        token = page.next_page_token
        if not token:
            break
        assert len(page.substreams) == 4
    assert names == [f"w{2 * epoch + 1}" for epoch in range(10)]
    everything = stub.ListSubstreams(wire.ListSubstreamsRequest(job="pages", include_ended=True))
    assert len(everything.substreams) == 20
    substream = page.substreams[-1]
    assert (substream.scope, substream.end_time, substream.closed) == ("tenant", 10_000 - 9, False)
    assert list(substream.waiting_for) == ["f"]
    on_a = substream.segments[0]
    assert (on_a.segment, on_a.sent, on_a.received, on_a.last_sender) == ("a", 1, 1, "p")


def test_a_status_has_as_many_frontiers_as_a_message_has_room_for(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory", "--limit", "max_message_bytes=20000")
    stub = server.stub
    define(stub, "tenants", fronts=["f", "g"])
    scopes = [f"{number:03}{'é' * 100}" for number in range(100)]
    for epoch, scope in enumerate(scopes):
        promises = [wire.Frontier(front=front, scope=scope, time=1000 - epoch) for front in ("f", "g")]
        stub.Report(report(epoch, "tenants", promises=[wire.Promise(frontier=each) for each in promises]))
    of_all = wire.Promise(frontier=wire.Frontier(front="g", time=1))
    stub.Report(report(100, "tenants", promises=[of_all]))
    status = stub.GetJob(wire.GetJobRequest(job="tenants"))
    assert 8_000 < status.ByteSize() < 12_000
    f, g = status.fronts
    assert sorted(f.frontiers) == scopes[-len(f.frontiers) :], "those furthest behind"
    assert (len(f.frontiers) + f.more_frontiers, len(g.frontiers) + g.more_frontiers) == (100, 101)
    assert g.frontiers["*"] == 1
    with TrackerClient(server.address) as client:
        why = "\n".join(why_open(client.job("tenants"), client.explain("tenants", "tenant", "w50")))
    assert f"has promised times for {f.more_frontiers} scopes that the answer has no room for" in why


def test_status_and_drain(stub: TrackerStub) -> None:
    define(stub, "status")
    stub.Report(report(3, "status"))
    stub.Report(report(4, "status", sent=[5], commit=False, units=["u"]))
    status = stub.GetJob(wire.GetJobRequest(job="status"))
    assert (status.open_substreams, status.in_flight, status.spec.deployment) == (1, 0, "d1")
    (producer,) = status.producers
    assert (producer.run, producer.mode, producer.committed_epoch) == ("r", wire.STAGED, 3)
    assert list(producer.staged_epochs) == [4]
    assert producer.last_heard.seconds > 1_600_000_000
    (front,) = status.fronts
    assert (front.front, front.finished, front.producer) == ("f", False, "")
    assert not front.HasField("last_promise")
    drain = stub.GetDrain(wire.GetDrainRequest(job="status"))
    assert drain.state == wire.NOT_DRAINING
    drain = stub.Drain(wire.DrainRequest(job="status", deployment="d1", drain_id="x"))
    assert (drain.state, list(drain.unfinished_fronts)) == (wire.DRAINING, ["f"])
    assert list(drain.uncommitted_producers) == ["p"]
    stub.Commit(wire.CommitRequest(job="status", producer="p", run="r", epoch=4))
    finish = wire.Promise(finish="f")
    stub.Report(report(5, "status", received=[5], names=["w4"], end_times=[4], promises=[finish]))
    assert stub.GetDrain(wire.GetDrainRequest(job="status")).state == wire.DRAINED
    assert refused(stub.Report, report(6, "status"))[1] == "DRAINED"


def test_health_and_reflection(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(tmp_path, "memory", "--reflection")
    health = health_pb2_grpc.HealthStub(server.channel)
    for service in ("", "substream.tracker.v1.Tracker"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = reflection.ServerReflectionInfo(iter([request]))
    named = {service.name for service in answer.list_services_response.service}
    assert named >= {"substream.tracker.v1.Tracker", "grpc.health.v1.Health"}
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="substream.tracker.v1.Tracker")
    (answer,) = reflection.ServerReflectionInfo(iter([request]))
    assert answer.file_descriptor_response.file_descriptor_proto


def test_without_reflection_the_server_tells_of_its_health_and_of_nothing_else(
    servers: Servers, tmp_path: Path
) -> None:
    server = servers.start(tmp_path)
    reflection = reflection_pb2_grpc.ServerReflectionStub(server.channel)
    with pytest.raises(grpc.RpcError) as error:
        list(reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    health = health_pb2_grpc.HealthStub(server.channel)
    assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    assert define(server.stub, "served").created
