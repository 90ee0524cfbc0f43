"""Bad input: an error that names the remedy, nothing changed, the server alive."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from tests.conformance.over_grpc import refusal
from tracker.wire.gen import tracker_pb2 as wire

from .processes import Server, Servers
from .tracking import define, ends, refused, report

LIMITS = {
    "max_message_bytes": 200_000,
    "max_report_entries": 10,
    "max_report_substreams": 5,
    "max_report_units": 4,
    "max_promises": 3,
    "max_jobs": 40,
    "max_segments": 6,
    "max_fronts": 7,
    "max_producers": 2,
    "max_watchers": 3,
    "max_open_substreams": 12,
}


@pytest.fixture(scope="module")
def server(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Server:
    limits = [argument for name, number in LIMITS.items() for argument in ("--limit", f"{name}={number}")]
    return servers.start(tmp_path_factory.mktemp("server"), "memory", *limits)


@pytest.fixture(autouse=True)
def alive(server: Server) -> Iterator[None]:
    yield
    assert server.stub.GetServerInfo(wire.GetServerInfoRequest()).leader
    assert "level=error" not in server.log


UNARY = [
    *("GetServerInfo", "DefineJob", "GetJob", "ListJobs", "DeleteJob", "OpenProducer", "CloseProducer", "Report"),
    *("ForgetProducer", "FinishFront", "Commit", "ListEvents", "Await", "ListSubstreams", "Drain", "GetDrain"),
    *("CancelDrain", "Abandon"),
]


@pytest.mark.parametrize("method", UNARY)
def test_bytes_that_are_no_message(server: Server, method: str) -> None:
    call = server.channel.unary_unary(f"/substream.tracker.v1.Tracker/{method}")
    code, reason, message = refused(call, b"\xff\xff garbage")
    assert (code, reason) == ("INVALID_ARGUMENT", "MALFORMED")
    assert "substream.tracker.v1." in message


def test_bytes_that_are_no_message_on_streams(server: Server) -> None:
    watch = server.channel.unary_stream("/substream.tracker.v1.Tracker/Watch")
    assert refused(lambda: list(watch(b"\xff\xff")))[:2] == ("INVALID_ARGUMENT", "MALFORMED")
    stream = server.channel.stream_stream(
        "/substream.tracker.v1.Tracker/ReportStream", response_deserializer=wire.ReportResponse.FromString
    )
    good = report(0, job="nope").SerializeToString()
    answers = list(stream(iter([b"\xff\xff", good])))
    assert [answer.error_reason for answer in answers] == ["MALFORMED", "UNKNOWN_JOB"]


def spec(**fields: Any) -> wire.DefineJobRequest:
    defaults: dict[str, Any] = {"job": "spec", "deployment": "d", "segments": [wire.Segment(name="a")]}
    return wire.DefineJobRequest(spec=wire.JobSpec(**{**defaults, **fields}))


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (spec(ordering=17), "ordering"),
        (spec(stall_after={"seconds": -1}), "stall_after"),
        (spec(retention={"nanos": -5}), "retention"),
        (spec(job="no spaces"), "job"),
        (spec(deployment=""), "deployment"),
        (spec(segments=[wire.Segment(name="a"), wire.Segment(name="a")]), "'a'"),
        (spec(fronts=["f", "f"]), "'f'"),
        (spec(retention={"seconds": 101 * 366 * 86_400}), "100 years"),
        (spec(stall_after={"seconds": 315_576_000_000}), "stall_after"),
        (spec(expire_after={"seconds": 315_576_000_000}), "expire_after"),
        (spec(idle_after={"seconds": 315_576_000_000}), "idle_after"),
    ],
)
def test_specs_that_contradict_themselves(server: Server, request_: wire.DefineJobRequest, word: str) -> None:
    code, reason, message = refused(server.stub.DefineJob, request_)
    assert (code, reason) == ("INVALID_ARGUMENT", "MALFORMED")
    assert word in message


def test_other_requests_that_say_nothing(server: Server) -> None:
    define(server.stub, "says-nothing")
    job = "says-nothing"
    for call, request in [
        (server.stub.Report, report(0, job, promises=[wire.Promise()])),
        (server.stub.Report, report(0, job, entry_count=2)),
        (server.stub.Report, report(0, job, received=[])),
        (server.stub.Report, report(0, job, commit=False)),
        (server.stub.Report, report(0, job, substream_index=[1])),
        (server.stub.Report, report(0, job, names=[""])),
        (server.stub.Report, report(2**62, job)),
        (server.stub.Report, report(0, job, end_times=[-(2**63)])),
        (server.stub.Report, report(0, job, end_times=[2**61 + 1])),
        (server.stub.Commit, wire.CommitRequest(job=job, producer="p", run="r", epoch=2**64 - 1)),
        (server.stub.OpenProducer, wire.OpenProducerRequest(job=job, producer="p", run="n", resume_epoch=2**62)),
        (server.stub.CloseProducer, wire.CloseProducerRequest(job=job, producer="p", run="r", resume_epoch=2**62)),
        (server.stub.Drain, wire.DrainRequest(job="none", deployment="d", drain_id="x", timeout={"seconds": 10**11})),  # type: ignore[arg-type]
        (server.stub.Commit, wire.CommitRequest(job=job, producer="p", run="r", seal=True)),
        (server.stub.OpenProducer, wire.OpenProducerRequest(job=job, producer="p", run="r", mode=9)),  # type: ignore[arg-type]
        (server.stub.OpenProducer, wire.OpenProducerRequest(job=job, run="r")),
        (server.stub.ListSubstreams, wire.ListSubstreamsRequest(job=job, page_token="seven")),
        (server.stub.Drain, wire.DrainRequest(job=job, deployment="d1", drain_id="x", timeout={"seconds": -3})),  # type: ignore[arg-type]
        (server.stub.Drain, wire.DrainRequest(job=job, deployment="d1")),
    ]:
        assert refused(call, request)[:2] == ("INVALID_ARGUMENT", "MALFORMED"), request
    status = server.stub.GetJob(wire.GetJobRequest(job=job))
    assert (status.last_seq, status.open_substreams) == (0, 0)
    assert [producer.producer for producer in status.producers] == ["p"]


def test_names_that_do_not_exist(server: Server) -> None:
    define(server.stub, "there")
    stub, there = server.stub, {"job": "there"}
    nowhere: dict[str, Any] = {"job": "nowhere"}
    for call, request, reason in [
        (stub.GetJob, wire.GetJobRequest(**nowhere), "UNKNOWN_JOB"),
        (lambda watch: list(stub.Watch(watch)), wire.WatchRequest(**nowhere), "UNKNOWN_JOB"),
        (stub.Await, wire.AwaitRequest(**nowhere, segment="a", name="w"), "UNKNOWN_JOB"),
        (stub.ListEvents, wire.ListEventsRequest(**nowhere), "UNKNOWN_JOB"),
        (stub.ListSubstreams, wire.ListSubstreamsRequest(**nowhere), "UNKNOWN_JOB"),
        (stub.Report, report(0, "nowhere"), "UNKNOWN_JOB"),
        (stub.Report, report(0, "there", producer="q"), "UNKNOWN_PRODUCER"),
        (stub.ForgetProducer, wire.ForgetProducerRequest(**there, producer="q"), "UNKNOWN_PRODUCER"),
        (stub.FinishFront, wire.FinishFrontRequest(**there, front="q"), "UNKNOWN_FRONT"),
        (stub.Abandon, wire.AbandonRequest(**there, scope="s", name="w"), "UNKNOWN_SUBSTREAM"),
    ]:
        code, said, message = refused(call, request)
        assert said == reason, message
        assert code == "NOT_FOUND", message


@contextmanager
def suppress_not_found() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        if refusal(error)["code"] != "NOT_FOUND":
            raise


def columns(count: int) -> dict[str, Any]:
    return {
        "substream_index": [0] * count,
        "segment_index": [0] * count,
        "xor": [0] * count,
        "sent": [1] * count,
        "received": [1] * count,
        "entry_count": count,
    }


def test_limits_are_told_and_kept(server: Server) -> None:
    """Each is in GetServerInfo, up to it all is well, beyond it the refusal names it and the way out."""
    stub = server.stub
    told = stub.GetServerInfo(wire.GetServerInfoRequest()).limits
    assert {name: told[name] for name in LIMITS} == LIMITS
    define(stub, "limits")
    call: Any
    job: dict[str, Any] = {"job": "limits"}
    finish = wire.Promise(frontier=wire.Frontier(front="f", time=0))
    epochs = iter(range(100))

    def names(count: int) -> dict[str, Any]:
        return {"names": [f"n{i}" for i in range(count)], "scope_index": [0] * count, "end_times": []}

    def next_report(**more: Any) -> wire.ReportRequest:
        return report(next(epochs), "limits", **{"end_times": [], "names": ["n0"], **more})

    def segments(count: int) -> wire.DefineJobRequest:
        return spec(job="many-segments", segments=[wire.Segment(name=f"s{i}") for i in range(count)])

    def manifest(count: int) -> wire.CommitRequest:
        units = wire.Units(names=[f"u{i}" for i in range(count)])
        return wire.CommitRequest(**job, producer="p", run="r", epoch=0, units=units)

    for name, call, within, beyond in [
        ("max_report_entries", stub.Report, next_report(**columns(10)), next_report(**columns(11))),
        ("max_report_substreams", stub.Report, next_report(**names(5)), next_report(**names(6))),
        ("max_report_units", stub.Report, next_report(units=list("abcd")), next_report(units=list("abcde"))),
        ("max_report_units", stub.Commit, manifest(4), manifest(5)),
        ("max_promises", stub.Report, next_report(promises=[finish] * 3), next_report(promises=[finish] * 4)),
        ("max_segments", stub.DefineJob, segments(6), segments(7)),
        ("max_fronts", stub.DefineJob, spec(fronts=list("abcdefg")), spec(fronts=list("abcdefgh"))),
        (
            "max_producers",
            stub.OpenProducer,
            wire.OpenProducerRequest(**job, producer="p2", run="r"),
            wire.OpenProducerRequest(**job, producer="p3", run="r"),
        ),
        (
            "max_message_bytes",
            stub.Abandon,
            wire.AbandonRequest(**job, name="x" * 500),
            wire.AbandonRequest(**job, name="x" * 200_001),
        ),
    ]:
        with suppress_not_found():
            call(within)
        code, reason, message = refused(call, beyond)
        assert (code, reason) == ("RESOURCE_EXHAUSTED", "LIMIT")
        assert message.startswith(f"LIMIT: limit {name}={LIMITS[name]} exceeded"), message
        assert ";" in message


def test_too_many_jobs(server: Server) -> None:
    there = len(server.stub.ListJobs(wire.ListJobsRequest()).jobs)
    for number in range(there, LIMITS["max_jobs"]):
        server.stub.DefineJob(spec(job=f"many-{number}"))
    server.stub.DefineJob(spec(job=f"many-{LIMITS['max_jobs'] - 1}"))  # one of them, again
    assert "max_jobs" in refused(server.stub.DefineJob, spec(job="one-more"))[2]
    for number in range(there, LIMITS["max_jobs"]):
        server.stub.DeleteJob(wire.DeleteJobRequest(job=f"many-{number}"))
    server.stub.DefineJob(spec(job="one-more"))
    server.stub.DeleteJob(wire.DeleteJobRequest(job="one-more"))


def test_too_many_open_substreams(server: Server) -> None:
    """Those that are known go on by id, and what ends makes room."""
    define(server.stub, "open")
    for epoch in range(12):
        answer = server.stub.Report(report(epoch, "open", received=[0], want_ids=True))
    code, reason, message = refused(server.stub.Report, report(12, "open"))
    assert (code, reason) == ("RESOURCE_EXHAUSTED", "LIMIT")
    assert "max_open_substreams" in message
    known = {"names": [], "scopes": [], "scope_index": [], "end_times": [], "log_id": answer.log_id}
    frontier = wire.Promise(frontier=wire.Frontier(front="f", time=20))
    server.stub.Report(report(12, "open", substream_ids=answer.substream_ids, sent=[0], promises=[frontier], **known))
    assert server.stub.GetJob(wire.GetJobRequest(job="open")).open_substreams == 11
    assert server.stub.Report(report(13, "open", end_times=[30])).outcome == wire.ReportResponse.APPLIED


def test_too_many_watchers(server: Server) -> None:
    define(server.stub, "watched")
    request = wire.WatchRequest(job="watched")
    watches = [server.stub.Watch(request) for _ in range(LIMITS["max_watchers"])]
    for watch in watches:
        watch.initial_metadata()  # it is under way
    assert "max_watchers" in refused(lambda: list(server.stub.Watch(request)))[2]
    assert "max_watchers" in refused(server.stub.Await, wire.AwaitRequest(job="watched", segment="a", name="w"))[2]
    for watch in watches:
        watch.cancel()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # the server notices in its own time
        again = server.stub.Watch(request)
        try:
            again.initial_metadata()
            server.stub.Report(ends(0, "watched"))
            assert next(again).seq == 1
            again.cancel()
            break
        except grpc.RpcError:
            time.sleep(0.01)
    else:
        raise AssertionError("watchers that left are still counted")


def test_a_huge_message(server: Server) -> None:
    """Larger than the transport takes: refused there, before it is read."""
    with pytest.raises(grpc.RpcError) as error:
        server.stub.Abandon(wire.AbandonRequest(job="job", name="x" * 30_000_000))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (error.value.details() or "")


def test_a_refusal_with_a_long_story_still_reaches_the_caller(server: Server) -> None:
    name = "ü" * 250
    define(server.stub, "long")
    units = wire.Units(names=[f"{name}{i}" for i in range(4)])
    server.stub.Report(ends(0, "long"))
    commit = wire.CommitRequest(job="long", producer="p", run="r", epoch=1, units=units)
    _, reason, message = refused(server.stub.Commit, commit)
    assert reason == "MISSING_UNITS"
    assert name in message


def test_a_refused_report_does_not_end_its_stream(server: Server) -> None:
    define(server.stub, "stream")
    told = [
        ends(0, "stream"),
        report(1, "stream", run="zombie"),
        report(2, "stream", segments=["nowhere"]),
        ends(0, "stream"),
        report(3, "nowhere"),
        ends(4, "stream"),
    ]
    answers = list(server.stub.ReportStream(iter(told)))
    outcomes = [wire.ReportResponse.Outcome.Name(answer.outcome) for answer in answers]
    assert outcomes == ["APPLIED", "REJECTED", "REJECTED", "ALREADY_COMMITTED", "REJECTED", "APPLIED"]
    assert [answer.error_reason for answer in answers] == ["", "FENCED", "UNKNOWN_SEGMENT", "", "UNKNOWN_JOB", ""]
    codes = [grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND]
    assert [answer.error_code for answer in answers if answer.error_code] == [code.value[0] for code in codes]
    assert all(a.error_message.startswith(f"{a.error_reason}: ") for a in answers if a.error_reason)


def test_clients_that_hang_up_in_the_middle(server: Server) -> None:
    """By cancelling their calls, and by leaving the connection with half a request sent."""
    define(server.stub, "hang-up")
    more = threading.Event()

    def told() -> Iterator[wire.ReportRequest]:
        yield ends(0, "hang-up")
        more.wait()

    stream = server.stub.ReportStream(told())
    assert next(stream).outcome == wire.ReportResponse.APPLIED
    stream.cancel()
    more.set()
    watch = server.stub.Watch(wire.WatchRequest(job="hang-up"))
    assert next(watch).seq == 1
    watch.cancel()
    host, port = server.address.rsplit(":", 1)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04", b"\x00" * 1000):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(said)
    # Calls before that count, and calls after that work.
    assert server.stub.GetJob(wire.GetJobRequest(job="hang-up")).last_seq == 2
    assert server.stub.Report(ends(1, "hang-up")).outcome == wire.ReportResponse.APPLIED
