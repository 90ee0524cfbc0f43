"""Attacks of one caller on all the others: each on a server of its own, with another client beside it."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import grpc
from google.protobuf.duration_pb2 import Duration

from tests.attacks import clients, http2
from tests.attacks.http2 import Http2
from tests.conformance.over_grpc import refusal
from tests.server.processes import Server
from tests.server.rawfields import field
from tests.server.tracking import define, report
from tracker.wire.codec import pack_i8, pack_u4, pack_u8
from tracker.wire.gen import columns_pb2
from tracker.wire.gen import tracker_pb2 as wire

MIB = 1 << 20
CALL = "/substream.tracker.v1.Tracker/"


class Attack(NamedTuple):
    """An attack: what is made ready before anything is measured, and what is then done, again and again."""

    prepare: Callable[[Server, float], Any]
    strike: Callable[[Server, float, Any], Counter[str]]
    answers: frozenset[str]  #: one of them each time, as a code or a reason
    limits: tuple[str, ...] = ()


def nothing(server: Server, scale: float) -> None:
    """Prepare nothing."""


def said(call: Callable[[], Any]) -> str:
    """Return how a call is answered: OK, a reason, or a code."""
    try:
        call()
    except grpc.RpcError as error:
        code = error.code()
        with suppress(Exception):
            return str(refusal(error)["reason"])
        return str(code.name)
    return "OK"


@contextmanager
def own_channel(server: Server) -> Iterator[Any]:  # the types of grpc know no calls with bytes
    with closing(clients.open_channel(server, "attacker")) as channel:
        yield channel


def raw(method: str, make: Callable[[float], bytes]) -> Callable[[Server, float, Any], Counter[str]]:
    """Make one call with bytes."""
    made: dict[float, bytes] = {}

    def strike(server: Server, scale: float, _: Any) -> Counter[str]:
        data = made.setdefault(scale, make(scale))
        with own_channel(server) as channel:
            return Counter([said(lambda: channel.unary_unary(CALL + method)(data, timeout=300))])

    return strike


def one_each(count: int, received: int) -> dict[str, Any]:
    """Return the columns of a report with one element of each of so many names, sent and received, or only sent."""
    return {
        "scope_index": [0] * count,
        "end_times": [],
        "substream_index": list(range(count)),
        "segment_index": [0] * count,
        "xor": [1 - received] * count,
        "sent": [1] * count,
        "received": [received] * count,
        "entry_count": count,
    }


SPEC = field(1, b"evil") + field(2, b"d")


def graph(segments: int, feeds: int) -> bytes:
    spec = wire.JobSpec(
        job="evil",
        deployment="d",
        segments=[
            wire.Segment(name=f"s{n}", feeds=[f"s{(n + k) % segments}" for k in range(feeds)]) for n in range(segments)
        ],
    )
    return wire.DefineJobRequest(spec=spec).SerializeToString()


def many(server: Server, count: int, job: str = "evil", **spec: Any) -> None:
    """Make a job with so many open substreams that do not balance."""
    define(server.stub, job, **spec)
    for first in range(0, count, 100_000):
        some = min(100_000, count - first)
        message = columns_pb2.ReportRequest(
            job=job,
            producer="p",
            run="r",
            epoch=first // 100_000,
            scopes=["tenant"],
            names=[str(n) for n in range(first, first + some)],
            scope_index=pack_u4([0] * some),
            end_times=pack_i8(range(first, first + some)),
            segments=["a"],
            substream_index=pack_u4(range(some)),
            segment_index=pack_u4([0] * some),
            xor=pack_u8([1] * some),
            sent=pack_u4([1] * some),
            received=pack_u4([0] * some),
            entry_count=some,
            commit=True,
        )
        server.channel.unary_unary(CALL + "Report")(message.SerializeToString(), timeout=300)


def large_job(server: Server, scale: float) -> list[int]:
    count = int(1_000_000 * scale)
    many(server, count)
    return [0, count]


def advance(server: Server, scale: float, state: list[int]) -> Counter[str]:
    """Promise a frontier over everything: the first closes it all, and nothing ends."""
    state[0] += 1
    promise = wire.Promise(frontier=wire.Frontier(front="f", time=state[1] * state[0]))
    request = wire.ReportRequest(
        job="evil", producer="p", run="r", epoch=1000 + state[0], promises=[promise], commit=True, units=["u"]
    )
    return Counter([said(lambda: server.stub.Report(request, timeout=300))])


def list_all(server: Server, scale: float, _: Any) -> Counter[str]:
    with own_channel(server) as channel:
        ask = channel.unary_unary(
            CALL + "ListSubstreams",
            wire.ListSubstreamsRequest.SerializeToString,
            wire.ListSubstreamsResponse.FromString,
        )
        token, answers = "", Counter[str]()
        for _page in range(20):
            page = ask(wire.ListSubstreamsRequest(job="evil", page_size=10_000, page_token=token), timeout=300)
            answers["OK"] += 1
            token = page.next_page_token
            if not token:
                break
        return answers


def read_all(server: Server, scale: float, _: Any) -> Counter[str]:
    """Read all events, in the largest pages."""
    with own_channel(server) as channel:
        ask = channel.unary_unary(
            CALL + "ListEvents", wire.ListEventsRequest.SerializeToString, wire.ListEventsResponse.FromString
        )
        seq, answers = 0, Counter[str]()
        while True:
            page = ask(wire.ListEventsRequest(job="evil", after_seq=seq, limit=10_000), timeout=300)
            answers["OK"] += 1
            if page.last_seq == seq:
                return answers
            seq = page.last_seq


def redefine(server: Server, scale: float, state: list[int]) -> Counter[str]:
    """Define a front more, and one less, by force: what is open is abandoned, the first time."""
    answers = Counter[str]()
    for fronts in (["f", "g"], ["f"]):
        state[0] += 1
        spec = wire.JobSpec(
            job="evil",
            deployment=f"again {state[0]}",
            segments=[wire.Segment(name="a", feeds=["b"]), wire.Segment(name="b")],
            fronts=fronts,
        )
        request = wire.DefineJobRequest(spec=spec, force=True)
        answers[said(lambda request=request: server.stub.DefineJob(request, timeout=300))] += 1  # type: ignore[misc]
    return answers


def stalling_job(server: Server, scale: float) -> None:
    """Make a job in which everything stalls after a second, and is given up later."""
    many(
        server,
        int(1_000_000 * scale),
        stall_after=Duration(seconds=1),
        expire_after=Duration(seconds=max(2, int(4 * scale))),
    )
    server.stub.Report(report(1_000_000, "evil", promises=[wire.Promise(finish="f")]))


def wait_a_while(server: Server, scale: float, _: Any) -> Counter[str]:
    time.sleep(1)
    return Counter(["OK"])


def closes_by_name(server: Server, scale: float, state: list[int]) -> Counter[str]:
    """Send new names, each closed by a promise of its own; all of them end."""
    state[0] += 1
    count = int(100_000 * scale)
    closes = [wire.Promise(close=wire.Close(front="f", substream_index=place)) for place in range(count)]
    names = [f"{state[0]}-{place}" for place in range(count)]
    request = report(state[0], "evil", names=names, promises=closes, **one_each(count, received=1))
    return Counter([said(lambda: server.stub.Report(request, timeout=300))])


def wide_job(server: Server, scale: float) -> None:
    many(
        server,
        int(20_000 * scale),
        segments=[wire.Segment(name="a")] + [wire.Segment(name=f"s{n}") for n in range(999)],
    )


def large_messages(server: Server, scale: float, _: Any) -> Counter[str]:
    """Send messages as large as they may be, all at once."""
    return at_once(server, field(1, b"nobody") + field(2, b"x" * int(15 * MIB * scale)))


def too_large_messages(server: Server, scale: float, _: Any) -> Counter[str]:
    return at_once(server, field(1, b"nobody") + field(2, b"x" * int(60 * MIB * scale)))


def at_once(server: Server, data: bytes) -> Counter[str]:
    def send(_: int) -> str:
        with own_channel(server) as channel:
            return said(lambda: channel.unary_unary(CALL + "Report")(data, timeout=300))

    with ThreadPoolExecutor(20) as threads:
        return Counter(threads.map(send, range(20)))


def watches(server: Server, scale: float, _: Any) -> Counter[str]:
    """Watch very many at once; each is ended when it is under way."""
    count = int(2000 * scale)
    ended = Counter[str]()
    with own_channel(server) as channel:
        watch = channel.unary_stream(CALL + "Watch", wire.WatchRequest.SerializeToString, wire.Event.FromString)
        calls = [watch(wire.WatchRequest(job="evil"), timeout=300) for _ in range(count)]
        for call in calls:
            ended[said(lambda call=call: next(call))] += 1  # type: ignore[misc]
        for call in calls:
            call.cancel()
    return ended


def one_event(server: Server, scale: float) -> None:
    define(server.stub, "evil")
    server.stub.Report(report(0, "evil", promises=[wire.Promise(finish="f")]))


def open_and_cancel(server: Server, scale: float, _: Any) -> Counter[str]:
    with own_channel(server) as channel:
        stream = channel.stream_stream(CALL + "ReportStream")
        for _call in range(int(6000 * scale)):
            stream(iter(())).cancel()
    return Counter(["CANCELLED"])


def one_job(server: Server, scale: float, **spec: Any) -> list[int]:
    define(server.stub, "evil", **spec)
    return [0]


def one_job_in_order(server: Server, scale: float) -> list[int]:
    return one_job(server, scale, ordering=wire.ORDERING_SCOPE)


def backlog(server: Server, scale: float) -> None:
    """Make a job with many events."""
    count = int(20_000 * scale)
    define(server.stub, "evil")
    columns = one_each(count, received=1) | {"end_times": list(range(count))}
    promise = wire.Promise(frontier=wire.Frontier(front="f", time=count))
    names = [f"{'w' * 400}{n}" for n in range(count)]
    server.stub.Report(report(0, "evil", names=names, promises=[promise], **columns))


def unread_watches(server: Server, scale: float, _: Any) -> Counter[str]:
    with own_channel(server) as channel:
        watch = channel.unary_stream(CALL + "Watch", wire.WatchRequest.SerializeToString)
        calls = [watch(wire.WatchRequest(job="evil")) for _ in range(int(400 * scale))]
        for call in calls:
            call.initial_metadata()
        time.sleep(2)
        for call in calls:
            call.cancel()
    return Counter(["OK"])


def dribble(server: Server, scale: float, _: Any) -> Counter[str]:
    """Open connections that send a byte now and then, and streams that send a report now and then."""
    host, _colon, port = server.address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    sockets = [socket.create_connection((host, int(port))) for _ in range(int(200 * scale))]
    message = report(0, "evil", names=["w"]).SerializeToString()
    answers = Counter[str]()

    def slowly() -> Iterator[bytes]:
        for _turn in range(20):
            time.sleep(0.1)
            yield message

    with own_channel(server) as channel:
        stream = channel.stream_stream(CALL + "ReportStream")
        calls = [stream(slowly()) for _ in range(max(1, int(50 * scale)))]
        for turn in range(20):
            for each in sockets:
                with suppress(OSError):
                    each.send(preface[turn : turn + 1])
            time.sleep(0.1)
        for call in calls:
            answers[said(lambda call=call: list(call))] += 1  # type: ignore[misc]
    for each in sockets:
        each.close()
    return answers


def report_flood(server: Server, scale: float, _: Any) -> Counter[str]:
    """Send small reports with new names, as fast as they go, from several connections."""
    answers = Counter[str]()
    stop = time.monotonic() + 3 * scale
    numbers = itertools.count()

    def send(_: int) -> None:
        with own_channel(server) as channel:
            call = channel.unary_unary(CALL + "Report")
            while time.monotonic() < stop:
                names = [f"{next(numbers)}-{n}" for n in range(100)]
                data = report(next(numbers), "evil", names=names, **one_each(100, received=0))
                answers[said(lambda data=data: call(data.SerializeToString(), timeout=300))] += 1  # type: ignore[misc]

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(4)))
    return answers


def awaits(server: Server, scale: float, _: Any) -> Counter[str]:
    """Wait, very many times, for what does not end, while others do."""
    with own_channel(server) as channel:
        wait = channel.unary_unary(CALL + "Await", wire.AwaitRequest.SerializeToString)
        calls = [
            wait.future(
                wire.AwaitRequest(job="good", segment="a", scope="tenant", name=f"never {n}"), timeout=1 + 9 * scale
            )
            for n in range(int(900 * scale))
        ]
        return Counter(said(call.result) for call in calls)


def filters(server: Server, scale: float, _: Any) -> Counter[str]:
    """Watch with the largest filters."""
    answers = Counter[str]()
    for names in (10_001 + int(100_000 * scale), 10_000):
        request = wire.WatchRequest(job="evil", scopes=["tenant", *(f"{n:090}" for n in range(names - 1))])
        with own_channel(server) as channel:
            watch = channel.unary_stream(CALL + "Watch", wire.WatchRequest.SerializeToString, wire.Event.FromString)
            calls = [watch(request, timeout=300) for _ in range(5)]
            for call in calls:
                answers[said(lambda call=call: next(call))] += 1  # type: ignore[misc]
                call.cancel()
    return answers


def refused_reports(server: Server, scale: float, _: Any) -> Counter[str]:
    """Send large reports for a job that is not there."""
    data = report(0, "nowhere", names=["x" * 500] * int(30_000 * scale)).SerializeToString()
    with own_channel(server) as channel:
        return Counter(said(lambda: channel.unary_unary(CALL + "Report")(data, timeout=300)) for _ in range(10))


def cells(server: Server, scale: float, _: Any) -> Counter[str]:
    """Send one report that would take gigabytes: many names in a job of many segments."""
    answers = Counter[str]()
    segments = [wire.Segment(name="a")] + [wire.Segment(name=f"s{n}") for n in range(999)]
    define(server.stub, "cells", segments=segments)
    count = int(100_000 * scale) + 1
    request = report(0, "cells", names=[str(n) for n in range(count)], **one_each(count, received=0))
    answers[said(lambda: server.stub.Report(request, timeout=300))] += 1
    return answers


def flood(server: Server, scale: float, _: Any) -> Counter[str]:
    """Send look-ups as fast as they go, from several connections."""
    answers = Counter[str]()
    stop = time.monotonic() + 3 * scale

    def ask(_: int) -> None:
        with own_channel(server) as channel:
            call = channel.unary_unary(CALL + "GetJob", wire.GetJobRequest.SerializeToString)
            while time.monotonic() < stop:
                answers[said(lambda: call(wire.GetJobRequest(job="evil"), timeout=300))] += 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(4)))
    return answers


OK = frozenset({"OK"})
LIMIT = frozenset({"LIMIT"})
TOO_LARGE = frozenset({"LIMIT", "RESOURCE_EXHAUSTED"})  # by the server, or by the transport
HTTP2 = frozenset({"TAKEN", "PAUSED", "CLOSED"})  # the server may take it, stop reading, or close the connection

ATTACKS: dict[str, Attack] = {
    "nothing": Attack(nothing, wait_a_while, OK),
    "DefineJob, 1,000 segments that all feed all": Attack(
        nothing, raw("DefineJob", lambda scale: graph(1000, int(1000 * scale) + 51)), LIMIT
    ),
    "DefineJob, 1,000 segments with 50 feeds each": Attack(
        nothing, raw("DefineJob", lambda scale: graph(1000, 50)), OK
    ),
    "DefineJob, 8 MiB of empty segments": Attack(
        nothing, raw("DefineJob", lambda scale: field(1, SPEC + field(3) * int(4 * MIB * scale - 99))), LIMIT
    ),
    "DefineJob, 10,000 fronts": Attack(
        nothing,
        raw(
            "DefineJob",
            lambda scale: field(
                1, SPEC + field(3, field(1, b"a")) + b"".join(field(4, b"f%d" % n) for n in range(10_000))
            ),
        ),
        OK,
    ),
    "Report, 16 MiB of units of two bytes": Attack(
        nothing, raw("Report", lambda scale: field(5) * max(120_000, int(8 * MIB * scale))), LIMIT
    ),
    "Report, 64 MiB of units of two bytes": Attack(
        nothing, raw("Report", lambda scale: field(5) * int(32 * MIB * scale)), TOO_LARGE
    ),
    "Report, 16 MiB of finishes of nothing": Attack(
        nothing, raw("Report", lambda scale: field(16, field(3)) * max(120_000, int(3 * MIB * scale))), LIMIT
    ),
    "GetJob, a name of 16 MiB": Attack(
        nothing, raw("GetJob", lambda scale: field(1, b"j" * int(16 * MIB * scale))), LIMIT
    ),
    "GetJob, a name of 60 MiB": Attack(
        nothing, raw("GetJob", lambda scale: field(1, b"j" * int(60 * MIB * scale))), TOO_LARGE
    ),
    "a report that would take gigabytes": Attack(nothing, cells, frozenset({"LIMIT", "OK", "FENCED", "DUPLICATE"})),
    "a frontier over 1,000,000 open": Attack(large_job, advance, OK),
    "pages of 10,000 of 1,000,000 open": Attack(large_job, list_all, OK),
    "a redefinition over 1,000,000 open": Attack(large_job, redefine, OK),
    "1,000,000 stall at once": Attack(stalling_job, wait_a_while, OK),
    "100,000 closes by name in a report": Attack(one_job, closes_by_name, OK),
    "100,000 ends in order of time": Attack(one_job_in_order, closes_by_name, OK),
    "pages of 10,000 of 20,000 events": Attack(backlog, read_all, OK),
    "pages of 10,000 of 1,000 segments": Attack(wide_job, list_all, OK),
    "20 connections, a message of 15 MiB each": Attack(
        nothing, large_messages, frozenset({"LIMIT", "UNKNOWN_JOB", "MALFORMED"})
    ),
    "20 connections, a message of 60 MiB each": Attack(
        nothing, too_large_messages, TOO_LARGE | {"UNKNOWN_JOB", "MALFORMED"}
    ),
    "2,000 watches at once": Attack(one_event, watches, OK),
    "watches with large filters": Attack(one_event, filters, frozenset({"LIMIT", "OK"})),
    "6,000 streams opened and cancelled": Attack(nothing, open_and_cancel, frozenset({"CANCELLED"})),
    "400 unread watches over 20,000 events": Attack(backlog, unread_watches, OK),
    "900 Awaits of the other client's ends": Attack(nothing, awaits, frozenset({"DEADLINE_EXCEEDED"})),
    "10 refused reports of 15 MB": Attack(nothing, refused_reports, frozenset({"UNKNOWN_JOB"})),
    "200 connections and 50 streams that dribble": Attack(one_event, dribble, OK),
    "new names as fast as they go": Attack(one_event, report_flood, OK),
    "GetJob of 10,000 fronts, again and again": Attack(
        lambda server, scale: define(
            server.stub, "evil", fronts=[f"f{n}" for n in range(10_000)], segments=[wire.Segment(name="a")]
        ),
        flood,
        OK,
    ),
    **{
        name: Attack(each.prepare, each.strike, HTTP2, ("max_connection_streams=100",))
        for name, each in (
            ("HTTP/2: streams opened and reset", Http2(http2.rapid_reset)),
            ("HTTP/2: streams that the server must reset", Http2(http2.made_you_reset)),
            ("HTTP/2: windows that overflow", Http2(http2.made_you_reset_by_overflow)),
            ("HTTP/2: data after the end", Http2(http2.made_you_reset_by_end)),
            ("HTTP/2: heads that are none", Http2(http2.made_you_reset_by_head)),
            ("HTTP/2: streams that depend on themselves", Http2(http2.made_you_reset_by_priority)),
            ("HTTP/2: streams that depend on one another", Http2(http2.priorities)),
            ("HTTP/2: empty frames of data", Http2(http2.empty_data)),
            ("HTTP/2: a head without end", Http2(http2.continuations)),
            ("HTTP/2: a head without end, of nothing", Http2(http2.empty_continuations)),
            ("HTTP/2: headers of nothing", Http2(http2.empty_headers)),
            ("HTTP/2: settings again and again", Http2(http2.settings_flood)),
            ("HTTP/2: large settings", Http2(http2.large_settings)),
            ("HTTP/2: pings again and again", Http2(http2.ping_flood)),
            ("HTTP/2: pings whose answers nobody reads", Http2(http2.ping_flood, hold=0.1, reads=False)),
            ("HTTP/2: windows that grow by one", Http2(http2.window_flood)),
            ("HTTP/2: unknown frames", Http2(http2.unknown_frames)),
            ("HTTP/2: heads that are not finished", Http2(http2.slow_heads)),
        )
    },
}

#: Attacks that gRPC's server does not bear (docs/howto/security.md), and `Front` has to.
UNBORNE: dict[str, Attack] = {
    name: Attack(each.prepare, each.strike, HTTP2)
    for name, each in (
        ("HTTP/2 without a limit: streams opened and reset", Http2(http2.rapid_reset)),
        ("HTTP/2 without a limit: headers that grow when they are unpacked", Http2(http2.header_bomb)),
        ("HTTP/2 without a limit: answers that may not be sent", Http2(http2.no_window, hold=0.1)),
        ("HTTP/2 without a limit: answers that are taken byte by byte", Http2(http2.small_windows, hold=0.1)),
        ("HTTP/2 without a limit: answers that nobody reads", Http2(http2.unread, hold=0.1, reads=False)),
    )
}


class Memory(NamedTuple):
    """Memory that a process has taken up, in MiB."""

    most: int
    kept: int


class Beside:
    """Memory that a server takes up meanwhile."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = memory(server)
        self._most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with suppress(FileNotFoundError, ProcessLookupError):
            while not self._done.wait(0.02):
                self._most = max(self._most, memory(self._server) - self._before)

    def stop(self) -> Memory:
        self._done.set()
        self._thread.join()
        return Memory(self._most, memory(self._server) - self._before)


def memory(server: Server) -> int:
    with open(f"/proc/{server.pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096 // MIB
