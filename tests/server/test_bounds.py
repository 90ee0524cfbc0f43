"""Nobody takes the server from the others: what is too large is refused before it is read, what is long takes turns."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.rawfields import field
from tracker.contract.refusal import Refused
from tracker.server.intake import Intake
from tracker.server.limits import Limits, check_counts, most_promises, parse_limits, pieces, shape_of
from tracker.wire.codec import Method, read_command, read_large_report
from tracker.wire.gen import tracker_pb2 as wire

from .processes import Server, Servers
from .tracking import define, ends, refused, report


def memory(server: Server) -> int:
    """Return the memory of a process, in MiB."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096 >> 20


@pytest.fixture(scope="module")
def server(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Server:
    return servers.start(tmp_path_factory.mktemp("server"), "sqlite")


def raw(server: Server, method: str, data: bytes) -> tuple[str, str, str]:
    return refused(server.channel.unary_unary(f"/substream.tracker.v1.Tracker/{method}"), data)


SPEC = field(1, b"j") + field(2, b"d")
MIB = 1 << 20

#: Refused calls, each with the limit that the refusal names.
TOO_MUCH: dict[str, tuple[str, bytes, str]] = {
    "units of two bytes": ("Report", field(5) * (4 * MIB), "max_report_units"),
    "finishes of nothing": ("Report", field(16, field(3)) * (2 * MIB), "max_promises"),
    "names of nothing": ("Report", field(7) * (4 * MIB), "max_report_substreams"),
    "scopes of nothing": ("Report", field(6) * (4 * MIB), "max_report_substreams"),
    "an unpacked column": ("Report", (b"\x7d" + bytes(4)) * 1_100_000, "max_report_entries"),
    "fields that nobody knows": ("Report", b"\xf8\x07\x00" * MIB, "max_repeated"),
    "one field again and again": ("Report", field(1, b"j") * MIB, "max_repeated"),
    "a manifest of nothing": ("Commit", field(5, field(1) * (4 * MIB)), "max_report_units"),
    "empty segments": ("DefineJob", field(1, SPEC + field(3) * (3 * MIB)), "max_segments"),
    "feeds": ("DefineJob", field(1, SPEC + field(3, field(1, b"a") + field(2, b"a") * MIB)), "max_feeds"),
    "fronts": ("DefineJob", field(1, SPEC + field(4, b"f") * MIB), "max_fronts"),
    "a spec of one long name": ("DefineJob", field(1, SPEC + field(4, b"f" * 9 * MIB)), "max_spec_bytes"),
    "a front of a long name": ("DefineJob", field(1, SPEC + field(4, b"f" * MIB)), "max_field_bytes"),
    "a producer of a long name": ("Report", field(1, b"j") + field(2, b"p" * MIB), "max_field_bytes"),
    "a unit of a long name": ("Report", field(1, b"j") + field(5, b"p" * MIB), "max_field_bytes"),
    "a job of a long name": ("GetJob", field(1, b"j" * 2 * MIB), "max_question_bytes"),
    "many scopes": ("ListSubstreams", field(1, b"j") + field(2, b"s") * 20_000, "max_filter_names"),
    "many segments": ("ListEvents", field(1, b"j") + field(5, b"s") * 20_000, "max_filter_names"),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_what_is_too_large_is_refused_before_it_is_read(server: Server, what: str) -> None:
    method, data, limit = TOO_MUCH[what]
    code, reason, message = raw(server, method, data)
    assert (code, reason) == ("RESOURCE_EXHAUSTED", "LIMIT")
    assert message.startswith(f"LIMIT: limit {limit}=")
    assert ";" in message


def test_a_filter_of_many_names_is_refused(server: Server) -> None:
    define(server.stub, "filtered")
    request = wire.WatchRequest(job="filtered", scopes=[str(n) for n in range(20_000)])
    assert "max_filter_names" in refused(lambda: list(server.stub.Watch(request)))[2]


@pytest.mark.thorough
def test_memory_is_bounded_by_what_is_taken(server: Server) -> None:
    """All that is too large, at once from many connections: the server grows by less than they send."""
    before = memory(server)
    grown = 0

    def attack(number: int) -> None:
        channel: Any
        with closing(grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)])) as channel:
            for method, data, _ in list(TOO_MUCH.values())[number::4]:
                with suppress(grpc.RpcError):
                    channel.unary_unary(f"/substream.tracker.v1.Tracker/{method}")(data)

    def look(done: threading.Event) -> None:
        nonlocal grown
        while not done.wait(0.02):
            grown = max(grown, memory(server) - before)

    done = threading.Event()
    looking = threading.Thread(target=look, args=[done])
    looking.start()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(attack, [0, 1, 2, 3] * 2))
    done.set()
    looking.join()
    assert 0 < grown < 400


def test_others_are_answered_while_one_job_is_busy(server: Server) -> None:
    """A frontier over very many substreams holds its own job up; another's reports go on meanwhile."""
    define(server.stub, "large")
    define(server.stub, "small")
    count = 30_000
    answered = epoch = 0
    while not answered:  # where others take the machine, it may be done before anybody gets to ask
        columns: dict[str, Any] = {"scope_index": [0] * count, "substream_index": list(range(count))}
        columns |= {"segment_index": [0] * count, "xor": [1] * count, "sent": [1] * count, "received": [0] * count}
        before = epoch * count  # the frontier closes all that was there, and nothing balances
        frontier = wire.Promise(frontier=wire.Frontier(front="f", time=before - 1))
        names, end_times = [f"{epoch} {n}" for n in range(count)], list(range(before, before + count))
        request = report(epoch, "large", names=names, end_times=end_times, entry_count=count, **columns)
        request.promises.append(frontier)
        long = server.stub.Report.future(request)
        while not long.done():
            server.stub.Report(ends(answered, "small"))
            answered += 1
        assert long.result().outcome == wire.ReportResponse.APPLIED
        epoch += 1
    assert server.stub.GetJob(wire.GetJobRequest(job="large")).open_substreams == count * epoch


def test_a_page_of_many_segments_has_few_substreams(server: Server) -> None:
    segments = [wire.Segment(name=f"s{n}") for n in range(500)]
    define(server.stub, "wide", segments=segments)
    names = [str(n) for n in range(60)]
    columns = {"names": names, "scope_index": [0] * 60, "end_times": [], "segments": ["s0"]}
    server.stub.Report(
        report(
            0,
            "wide",
            **columns,
            substream_index=list(range(60)),
            segment_index=[0] * 60,
            xor=[1] * 60,
            sent=[1] * 60,
            received=[0] * 60,
            entry_count=60,
        )
    )
    seen: list[str] = []
    token, pages = "", 0
    while token or not pages:
        request = wire.ListSubstreamsRequest(job="wide", page_size=10_000, page_token=token)
        page = server.stub.ListSubstreams(request)
        assert len(page.substreams) <= 20
        seen += [substream.name for substream in page.substreams]
        token, pages = page.next_page_token, pages + 1
    assert seen == names
    assert pages == 3


def test_a_page_token_of_many_digits(server: Server) -> None:
    define(server.stub, "tokens")
    for token in ("9" * 5000, "٣", "-1", "1e3"):
        request = wire.ListSubstreamsRequest(job="tokens", page_token=token)
        assert refused(server.stub.ListSubstreams, request)[:2] == ("INVALID_ARGUMENT", "MALFORMED")


@pytest.fixture(scope="module")
def limited(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Server:
    limits = (
        "max_jobs=5",
        "max_producers=5",
        "max_open_substreams=10",
        "max_staged_substreams=10",
        "max_pending_drains=4",
        "max_watched_names=9",
    )
    arguments = [argument for limit in limits for argument in ("--limit", limit)]
    return servers.start(tmp_path_factory.mktemp("limited"), "sqlite", *arguments)


def at_once(calls: list[Callable[[], Any]]) -> int:
    """Make all calls at the same time. Return how many were not refused."""

    def taken(call: Callable[[], Any]) -> bool:
        try:
            call()
        except grpc.RpcError as error:
            codes.append(error.code())
            return False
        return True

    codes: list[grpc.StatusCode] = []
    with ThreadPoolExecutor(len(calls)) as threads:
        count = sum(threads.map(taken, calls))
    assert set(codes) <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
    return count


def test_limits_hold_however_many_come_at_once(limited: Server) -> None:
    stub = limited.stub

    def job(n: int) -> wire.DefineJobRequest:
        return wire.DefineJobRequest(
            spec=wire.JobSpec(job=f"j{n}", deployment="d1", segments=[wire.Segment(name="a")], fronts=["f"])
        )

    def producer(n: int) -> wire.OpenProducerRequest:
        return wire.OpenProducerRequest(job="limits", producer=f"q{n}", run="r")

    def drain(n: int) -> wire.DrainRequest:
        return wire.DrainRequest(job="limits", deployment=f"e{n}", drain_id="x")

    define(stub, "limits")
    assert at_once([partial(stub.DefineJob, job(n)) for n in range(60)]) == 4
    assert at_once([partial(stub.OpenProducer, producer(n)) for n in range(60)]) == 4
    assert at_once([partial(stub.Drain, drain(n)) for n in range(60)]) == 4
    for n in range(10):
        stub.Report(report(n, "limits", received=[0]))
    assert "max_open_substreams" in refused(stub.Report, report(10, "limits", received=[0]))[2]


def test_a_report_of_more_names_than_may_be_open(limited: Server) -> None:
    stub = limited.stub
    for job in names_of_jobs(limited):
        stub.DeleteJob(wire.DeleteJobRequest(job=job, force=True))
    define(stub, "names")
    many = {"names": [str(n) for n in range(11)], "scope_index": [0] * 11, "end_times": []}
    for commit in (True, False):  # at once, or staged
        request = report(0, "names", **many, units=["u"], commit=commit)
        assert "max_open_substreams" in refused(stub.Report, request)[2]
    few = {"names": [str(n) for n in range(9)], "scope_index": [0] * 9, "end_times": []}
    assert stub.Report(report(0, "names", **few, units=["u"], commit=False)).outcome == wire.ReportResponse.APPLIED
    # Known names may come again; staged elements are counted.
    assert stub.Report(report(0, "names", **few, units=["v"], commit=False)).outcome == wire.ReportResponse.APPLIED
    more = {"names": ["x", "y"], "scope_index": [0, 0], "end_times": []}
    assert "max_staged_substreams" in refused(stub.Report, report(0, "names", **more, units=["w"], commit=False))[2]


def names_of_jobs(server: Server) -> list[str]:
    return list(server.stub.ListJobs(wire.ListJobsRequest()).jobs)


def test_filters_of_all_watches_are_counted_together(limited: Server) -> None:
    for job in names_of_jobs(limited):
        limited.stub.DeleteJob(wire.DeleteJobRequest(job=job, force=True))
    define(limited.stub, "names")
    first = limited.stub.Watch(wire.WatchRequest(job="names", scopes=["tenant", *map(str, range(5))]))
    limited.stub.Report(ends(0, "names"))
    assert next(first).seq == 1  # it is under way
    request = wire.WatchRequest(job="names", scopes=[str(n) for n in range(4)])
    assert "max_watched_names" in refused(lambda: list(limited.stub.Watch(request)))[2]
    first.cancel()


def test_what_is_refused_is_not_journaled(servers: Servers, tmp_path: Path) -> None:
    """But for what settles what an earlier run left."""
    server = servers.start(tmp_path, "sqlite")
    stub = server.stub
    define(stub)
    stub.Report(report(0, units=["u"], commit=False))
    large: dict[str, Any] = {"names": ["x" * 500] * 1_000, "scope_index": [0] * 1_000, "end_times": []}
    nothing: list[tuple[Any, Any]] = [
        (stub.Report, report(1, "nowhere", **large)),
        (stub.Report, report(1, run="other", **large)),
        (stub.Report, report(1, producer="other", **large)),
        (stub.Report, report(1, segments=["nowhere"], **large)),
        (stub.Report, report(1, promises=[wire.Promise(finish="nobody")], **large)),
        (stub.Report, report(0, units=["v"], end_times=[7])),
        (stub.Commit, wire.CommitRequest(job="job", producer="p", run="r", epoch=0, units=wire.Units(names=["w"]))),
        (stub.OpenProducer, wire.OpenProducerRequest(job="job", producer="p", run="r", mode=wire.IMMEDIATE)),
        (stub.DeleteJob, wire.DeleteJobRequest(job="job")),
        (stub.Abandon, wire.AbandonRequest(job="job", scope="s", name="n")),
        (stub.FinishFront, wire.FinishFrontRequest(job="job", front="f2")),
        (stub.ForgetProducer, wire.ForgetProducerRequest(job="job", producer="q")),
        (stub.CancelDrain, wire.CancelDrainRequest(job="job", deployment="d9")),
    ]
    for call, request in nothing:
        refused(call, request)
    stub.OpenProducer(wire.OpenProducerRequest(job="job", producer="p", run="r2"))
    # The first word of the new run settles, and is then refused: what the earlier run had staged is committed.
    commit = wire.CommitRequest(job="job", producer="p", run="r2", epoch=1, seal=True, units=wire.Units(names=["w"]))
    assert refused(stub.Commit, commit)[1] == "MISSING_UNITS"
    server.kill()
    with closing(sqlite3.connect(tmp_path / "tracker.db")) as log:
        records, size = log.execute("SELECT sum(count), sum(length(data)) FROM log").fetchone()
    # The start, the job, its producer, a report, the new run, and the commit that settled.
    assert records == 6
    assert size < 10_000
    server = servers.start(tmp_path, "sqlite")
    (producer,) = server.stub.GetJob(wire.GetJobRequest(job="job")).producers
    assert producer.committed_epoch == 0
    server.kill()


def test_a_large_report_is_read_in_pieces_as_in_one(servers: Servers) -> None:
    count = 40_000
    request = report(
        3,
        names=[f"name {n}" for n in range(count)],
        scope_index=[n % 2 for n in range(count)],
        scopes=["one", "zwei"],
        end_times=list(range(count)),
        substream_index=list(range(count)),
        segment_index=[0] * count,
        xor=list(range(count)),
        sent=[1] * count,
        received=[0] * count,
        entry_count=count,
        units=[f"u{n}" for n in range(100)],
        promises=[wire.Promise(close=wire.Close(front="f", substream_index=n)) for n in range(1000)],
    )
    shape = shape_of(wire.ReportRequest.DESCRIPTOR)
    data = request.SerializeToString()
    scattered = field(1, b"first") + data + field(3, b"last") + field(5, b"one more") + field(1, b"job")
    for each in (data, scattered):
        whole, in_pieces = read_command(Method.REPORT, each), read_large_report(pieces(each, shape))
        for name in type(in_pieces).__dataclass_fields__:
            assert list_of(getattr(whole, name)) == list_of(getattr(in_pieces, name)), name
    assert len(list(pieces(data, shape))) > 5
    for cut in (data[:-3], data + b"\xff\xff", data[: len(data) // 2]):
        with pytest.raises(Refused):
            read_large_report(pieces(cut, shape))


_PARTS = st.one_of(
    st.just(field(16, field(3, b"f"))),
    st.just(b"\x82\x81\x00\x00"),  # a promise of which the key is longer than necessary
    st.just(b"\xfb\x07\x82\x01\x00\xfc\x07"),  # a group that nobody knows, with what looks like a promise
    st.builds(field, st.sampled_from([1, 3, 8, 9, 40]), st.binary(max_size=40)),
    st.binary(min_size=1, max_size=3),
)


@given(st.lists(_PARTS, max_size=60), st.sampled_from([b"", field(12, b"\x82" * 500)]))
def test_a_report_never_has_more_promises_than_were_estimated(parts: list[bytes], column: bytes) -> None:
    data = column + b"".join(parts)
    try:
        promises = len(wire.ReportRequest.FromString(data).promises)
    except Exception:
        promises = 0  # it is refused, whatever it holds
    assert most_promises(data) >= promises
    assert most_promises(column + field(16, field(3, b"f")) * 9) == 9, "a column is not looked at"


@settings(max_examples=40, deadline=None)
@given(
    names=st.integers(0, 30_000),
    units=st.integers(0, 200),
    promises=st.integers(0, 4_000),
    entries=st.integers(0, 20_000),
    spoilt=st.sampled_from([b"", b"", b"", b"\x82\x81\x00\x00", b"\xff", field(7, b"\xff\xfe"), field(9, b"cut")]),
    limit=st.sampled_from(["", "max_report_entries=9000", "max_report_substreams=9000", "max_promises=900"]),
)
def test_a_reports_needs_do_not_depend_on_how_it_is_read(
    names: int, units: int, promises: int, entries: int, spoilt: bytes, limit: str
) -> None:
    """A report between small and large is read as a small one, if that takes no time, or else as a large one."""
    request = report(
        3,
        names=[f"name {n}" * (n % 3) for n in range(names)],
        end_times=list(range(names)),
        xor=list(range(entries)),
        sent=[1] * entries,
        entry_count=entries,
        units=[f"u{n}" for n in range(units)],
        promises=[wire.Promise(close=wire.Close(front="f", substream_index=n)) for n in range(promises)],
    )
    data = request.SerializeToString() + (b"" if limit else spoilt)  # of two faults, either may be named

    async def read(large: bool) -> Any:
        intake = Intake(parse_limits([limit] if limit else []), lambda context, error: asyncio.sleep(0))
        try:
            return intake._command(Method.REPORT, data) if large else await intake.command(Method.REPORT, data)
        except Refused as refusal:
            return refusal.reason

    large, either = asyncio.run(read(True)), asyncio.run(read(False))
    if isinstance(large, str):
        assert either == large
    else:
        for name in type(large).__dataclass_fields__:
            assert list_of(getattr(large, name)) == list_of(getattr(either, name)), name


def list_of(value: Any) -> Any:
    return list(value) if hasattr(value, "__len__") and not isinstance(value, str) else value


def test_counts_are_those_of_the_parser() -> None:
    spec = wire.JobSpec(segments=[wire.Segment(name="a", feeds=["a", "b"]), wire.Segment(name="b", feeds=["b"])])
    data = wire.DefineJobRequest(spec=spec).SerializeToString()
    shape = shape_of(wire.DefineJobRequest.DESCRIPTOR)
    check_counts(data, shape, Limits(max_segments=2, max_feeds=3))
    for limits in (Limits(max_segments=1), Limits(max_feeds=2)):
        with pytest.raises(Refused):
            check_counts(data, shape, limits)
    # The same field twice is merged by the parser, so both count.
    with pytest.raises(Refused):
        check_counts(data + data, shape, Limits(max_segments=2))
