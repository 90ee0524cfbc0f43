"""The meaning of a combined report: to the tracker, that of its parts; to each caller, that of its own alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.client import JobSpec, SubstreamStatus, TrackerClient
from tracker.client.calls import refusal
from tracker.client.connection import CHANNEL_OPTIONS
from tracker.relay.batching import Batcher, Budget, Capacity, Part
from tracker.wire.gen import tracker_pb2 as wire

NONE = 2**63 - 1
REPORT = "/substream.tracker.v1.Tracker/Report"


@dataclass
class Told:
    """Answers to reports that came at the same moment, the first of them just before the others."""

    answers: list[wire.ReportResponse | str]  #: a refusal's reason instead of an answer
    messages: int


def at_once(server: Server, reports: Sequence[wire.ReportRequest]) -> Told:
    """Give reports to a relay's gatherer before the first of them can have been answered."""

    async def deliver() -> Told:
        async with grpc.aio.insecure_channel(server.address, CHANNEL_OPTIONS) as channel:
            send: Any = channel.unary_unary(REPORT, None, None)
            gatherer = Batcher(lambda request, timeout: send(request, timeout=timeout), 60.0, Budget(1 << 30))

            async def one(request: wire.ReportRequest) -> wire.ReportResponse | str:
                try:
                    return wire.ReportResponse.FromString(await gatherer.report(request.SerializeToString(), 30.0))
                except grpc.aio.AioRpcError as error:
                    refused = refusal(error)
                    if refused is None:
                        raise
                    return refused.reason

            answers = await asyncio.gather(*map(one, reports))
            return Told(list(answers), gatherer.sent)

    return asyncio.run(deliver())


def alone(server: Server, reports: Sequence[wire.ReportRequest]) -> list[wire.ReportResponse | str]:
    """Give reports to the tracker one after the other."""
    return [answer for request in reports for answer in at_once(server, [request]).answers]


def report(job: str, unit: str, *entries: tuple[Any, ...], **more: Any) -> wire.ReportRequest:
    """Return a report of one unit of epoch 0.

    Args:
        entries: (name or id, segment, xor, sent, received); a name may be one with its end time.
    """
    by_name = {entry[0]: None for entry in entries if not isinstance(entry[0], int)}
    by_id = {entry[0]: None for entry in entries if isinstance(entry[0], int)}
    substreams = {substream: place for place, substream in enumerate([*by_name, *by_id])}
    segments = list(dict.fromkeys(entry[1] for entry in entries))
    named = [name if isinstance(name, tuple) else (name, NONE) for name in by_name]
    fields: dict[str, Any] = {
        "producer": "p",
        "run": "r",
        "units": [unit],
        "scopes": ["tenant"],
        "names": [name for name, _ in named],
        "scope_index": [0] * len(named),
        "end_times": [time for _, time in named],
        "substream_ids": list(by_id),
        "segments": segments,
        "substream_index": [substreams[entry[0]] for entry in entries],
        "segment_index": [segments.index(entry[1]) for entry in entries],
        "xor": [entry[2] for entry in entries],
        "sent": [entry[3] for entry in entries],
        "received": [entry[4] for entry in entries],
        "entry_count": len(entries),
    }
    return wire.ReportRequest(job=job, **{**fields, **more})


def outcomes(answers: Sequence[wire.ReportResponse | str]) -> list[str]:
    return [
        answer if isinstance(answer, str) else wire.ReportResponse.Outcome.Name(answer.outcome) for answer in answers
    ]


def counted(client: TrackerClient, job: str) -> dict[str, list[tuple[str, int, int, int]]]:
    """Return each substream's accounts, once everything is committed."""
    client.producer(job, "p", "r").commit(0)
    substreams: list[SubstreamStatus] = list(client.substreams(job))
    return {
        substream.name: [(each.segment, each.xor, each.sent, each.received) for each in substream.segments]
        for substream in substreams
    }


@pytest.fixture
def opened(client: TrackerClient, job: str) -> str:
    """Return a job of two segments, with one front and one producer that has opened its run."""
    client.define_job(spec(job, segments={"a": ["b"], "b": []}, fronts=["f"]))
    client.open_producer(job, "p", "r")
    return job


def test_what_comes_while_one_is_under_way_is_one_message(
    shared_server: Server, client: TrackerClient, opened: str
) -> None:
    reports = [report(opened, f"u{n}", ("x", "a", 1 << n, 1, 0), (f"y{n % 2}", "b", 5, 0, 2)) for n in range(20)]
    told = at_once(shared_server, reports)
    assert outcomes(told.answers) == ["APPLIED"] * 20
    assert told.messages == 2
    assert counted(client, opened) == {
        "x": [("a", 2**20 - 1, 20, 0), ("b", 0, 0, 0)],
        "y0": [("a", 0, 0, 0), ("b", 0, 0, 20)],
        "y1": [("a", 0, 0, 0), ("b", 0, 0, 20)],
    }


class Line:
    """A line to a tracker that holds each message until the test lets it fail or be answered."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[bytes]] = []
        self.batcher = Batcher(self._send, 60.0, Budget(1 << 30))

    async def _send(self, request: bytes, timeout: float | None) -> bytes:
        self.sent.append(asyncio.get_running_loop().create_future())
        return await self.sent[-1]

    def report(self, number: int) -> asyncio.Task[bytes]:
        request = report("j", f"u{number}", ("x", "a", 1, 1, 0)).SerializeToString()
        return asyncio.create_task(self.batcher.report(request, 30.0))

    @staticmethod
    async def rest() -> None:
        """Let everything happen that can happen now."""
        for _ in range(20):
            await asyncio.sleep(0)


def test_a_tracker_that_is_away_gets_a_combined_report_once() -> None:
    """Sent one by one, its parts would get the same error, and a tracker that comes back many times the load."""

    async def run() -> None:
        line = Line()
        reports = [line.report(number) for number in range(5)]
        away = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        for sent in (1, 2):
            await line.rest()
            assert len(line.sent) == sent
            line.sent[-1].set_exception(away)
        await line.rest()
        assert [each.exception() for each in reports] == [away] * 5
        assert len(line.sent) == 2

    asyncio.run(run())


def test_a_report_whose_caller_has_gone_is_not_sent() -> None:
    async def run() -> None:
        line = Line()
        reports = [line.report(number) for number in range(3)]
        await line.rest()
        reports[1].cancel()
        reports[2].cancel()
        await line.rest()
        line.sent[0].set_result(b"")
        assert await reports[0] == b""
        await line.rest()
        assert len(line.sent) == 1

    asyncio.run(run())


def test_other_epochs_runs_producers_and_jobs_do_not_wait_or_mix(
    shared_server: Server, client: TrackerClient, opened: str
) -> None:
    client.open_producer(opened, "other", "r")
    client.open_producer(opened, "p", "r2", resume_epoch=0)  # or the first word that arrives would say where it starts
    client.define_job(spec(f"{opened}-other", segments={"a": []}))
    client.open_producer(f"{opened}-other", "p", "r")
    reports = [
        report(opened, "u", ("x", "a", 1, 1, 0), run="r2"),
        report(opened, "u", ("x", "a", 2, 1, 0), run="r2", epoch=1),
        report(opened, "u", ("x", "a", 4, 1, 0), producer="other"),
        report(f"{opened}-other", "u", ("x", "a", 8, 1, 0)),
        report(opened, "u", ("x", "a", 16, 1, 0)),
    ]
    told = at_once(shared_server, reports)
    assert told.messages == 5
    assert outcomes(told.answers) == [*["APPLIED"] * 4, "FENCED"]
    client.producer(opened, "p", "r2").commit(0)
    assert next(client.substreams(opened)).segments[0].xor == 1
    assert counted(client, f"{opened}-other") == {"x": [("a", 8, 1, 0)]}


def test_each_hears_of_its_own_duplicates_alone(shared_server: Server, client: TrackerClient, opened: str) -> None:
    alone(shared_server, [report(opened, "old", ("x", "a", 1, 1, 0))])
    reports = [
        report(opened, "first", ("x", "a", 2, 1, 0)),
        report(opened, "new", ("x", "a", 4, 1, 0)),
        report(opened, "old", ("x", "a", 1, 1, 0)),
        report(opened, "half", ("x", "a", 8, 1, 0), units=["half", "old"]),
        report(opened, "newer", ("x", "a", 16, 1, 0)),
    ]
    told = at_once(shared_server, reports)
    assert outcomes(told.answers) == ["APPLIED", "APPLIED", "DUPLICATE", "PARTIAL_DUPLICATE", "APPLIED"]
    assert told.messages > 3  # the first, those together that the tracker would not have, and the rest of them
    [half] = [answer for answer in told.answers if not isinstance(answer, str) and answer.duplicate_units]
    assert list(half.duplicate_units) == ["old"]
    assert counted(client, opened)["x"][0] == ("a", 1 + 2 + 4 + 16, 4, 0)
    assert set(outcomes(alone(shared_server, reports))) == {"ALREADY_COMMITTED"}
    assert outcomes(at_once(shared_server, reports).answers) == ["ALREADY_COMMITTED"] * 5


def test_a_unit_that_two_report_at_once_counts_once(shared_server: Server, client: TrackerClient, opened: str) -> None:
    told = at_once(shared_server, [report(opened, "same", ("x", "a", 3, 1, 0)) for _ in range(6)])
    assert sorted(outcomes(told.answers)) == ["APPLIED", *["DUPLICATE"] * 5]
    assert counted(client, opened)["x"][0] == ("a", 3, 1, 0)


def test_only_the_guilty_hear_a_refusal(shared_server: Server, client: TrackerClient, opened: str) -> None:
    [bound] = alone(shared_server, [report(opened, "old", (("x", 7), "a", 1, 1, 0), want_ids=True)])
    assert isinstance(bound, wire.ReportResponse)
    reports = [
        report(opened, "first", (("x", 7), "a", 2, 1, 0)),
        report(opened, "good", (("x", 7), "a", 4, 1, 0)),
        report(opened, "segment", ("z", "nowhere", 1, 1, 0)),
        report(opened, "end time", (("x", 8), "a", 1, 1, 0)),
        report(opened, "id", (99_999, "a", 1, 1, 0), log_id=bound.log_id),
        report(opened, "name", ("n" * 600, "a", 1, 1, 0)),
        report(opened, "u" * 600, ("z", "a", 1, 1, 0)),
        report(opened, "better", (("x", 7), "b", 8, 1, 0)),
    ]
    told = at_once(shared_server, reports)
    assert outcomes(told.answers) == [
        "APPLIED",
        "APPLIED",
        "UNKNOWN_SEGMENT",
        "END_TIME_CONFLICT",
        "UNKNOWN_ID",
        "MALFORMED",
        "MALFORMED",
        "APPLIED",
    ]
    assert counted(client, opened) == {"x": [("a", 1 ^ 2 ^ 4, 3, 0), ("b", 8, 1, 0)]}


def test_two_end_times_for_one_new_name_are_the_trackers_to_judge(
    shared_server: Server, client: TrackerClient, opened: str
) -> None:
    reports = [report(opened, f"u{n}", (("x", n % 2), "a", 1, 1, 0)) for n in range(5)]
    told = at_once(shared_server, reports)
    assert outcomes(told.answers) == ["APPLIED", "END_TIME_CONFLICT"] * 2 + ["APPLIED"]


def test_ids_return_to_those_who_want_them_and_mix_with_names(
    shared_server: Server, client: TrackerClient, opened: str
) -> None:
    reports = [
        report(opened, f"u{n}", (f"n{n}", "a", 1, 1, 0), ("all", "a", 1, 1, 0), want_ids=n != 3) for n in range(5)
    ]
    told = at_once(shared_server, reports)
    ids: dict[str, int] = {}
    log_id = ""
    for number, answer in enumerate(told.answers):
        assert isinstance(answer, wire.ReportResponse)
        assert len(answer.substream_ids) == (0 if number == 3 else 2)
        ids |= dict(zip([f"n{number}", "all"], answer.substream_ids, strict=False))
        log_id = answer.log_id or log_id
    reports = [
        report(opened, "first", ("all", "a", 1, 1, 0)),
        report(opened, "names", ("n0", "b", 1, 0, 1), ("all", "b", 2, 0, 1)),
        report(opened, "ids", (ids["all"], "b", 4, 0, 1), (ids["n1"], "b", 8, 0, 1), log_id=log_id),
        report(opened, "both", ("n2", "b", 16, 0, 1), (ids["all"], "b", 32, 0, 1), log_id=log_id),
    ]
    told = at_once(shared_server, reports)
    assert outcomes(told.answers) == ["APPLIED"] * 4
    assert told.messages == 2
    assert {name: accounts[1] for name, accounts in counted(client, opened).items()} == {
        "all": ("b", 2 ^ 4 ^ 32, 0, 3),
        "n0": ("b", 1, 0, 1),
        "n1": ("b", 8, 0, 1),
        "n2": ("b", 16, 0, 1),
        "n3": ("b", 0, 0, 0),
        "n4": ("b", 0, 0, 0),
    }


def test_ids_of_another_log_mislead_nobody_else(shared_server: Server, client: TrackerClient, opened: str) -> None:
    [bound] = alone(shared_server, [report(opened, "old", ("x", "a", 1, 1, 0), want_ids=True)])
    assert isinstance(bound, wire.ReportResponse)
    reports = [
        report(opened, "first", ("y", "a", 1, 1, 0)),
        report(opened, "stale", (bound.substream_ids[0], "a", 1, 1, 0), log_id="another"),
        report(opened, "right", (bound.substream_ids[0], "a", 2, 1, 0), log_id=bound.log_id),
        report(opened, "named", ("x", "a", 4, 1, 0)),
    ]
    told = at_once(shared_server, reports)
    assert outcomes(told.answers) == ["APPLIED", "LOG_CHANGED", "APPLIED", "APPLIED"]
    assert counted(client, opened)["x"][0] == ("a", 1 ^ 2 ^ 4, 3, 0)


@pytest.mark.parametrize("first", ["right", "stale"])
def test_ids_of_two_logs_are_never_of_one_message(first: str) -> None:
    """In either order: the tracker could not tell that some of the ids are not of the log that is named."""
    logs = {"right": "log-1", "stale": "another"}
    order = [first, *(unit for unit in logs if unit != first)]
    parts = {
        unit: Part.read(report("j", unit, (7, "a", 1, 1, 0), log_id=logs[unit]).SerializeToString()) for unit in order
    }
    named = Part.read(report("j", "named", ("x", "a", 1, 1, 0)).SerializeToString())
    assert named is not None
    capacity = Capacity()
    for unit, fits in zip(order, [True, False], strict=True):
        part = parts[unit]
        assert part is not None
        assert capacity.take(part) is fits
        assert capacity.take(named) is (unit == first)
        assert not capacity.take(named)  # one unit twice is of two messages, too


def test_counts_that_would_run_over_are_not_added_up(shared_server: Server, client: TrackerClient, opened: str) -> None:
    most = 2**32 - 1
    told = at_once(shared_server, [report(opened, f"u{n}", ("x", "a", 0, most, most)) for n in range(4)])
    assert outcomes(told.answers) == ["APPLIED"] * 4
    assert counted(client, opened)["x"][0] == ("a", 0, 4 * most, 4 * most)


def test_what_adds_up_to_too_much_goes_in_pieces(shared_server: Server, client: TrackerClient, opened: str) -> None:
    names = ["n" * 500 + str(n) for n in range(1_800)]  # 0.9 MB a report
    reports = [report(opened, f"u{n}", *((name, "a", 1, 1, 0) for name in names)) for n in range(5)]
    told = at_once(shared_server, reports)
    assert outcomes(told.answers) == ["APPLIED"] * 5
    assert told.messages == 3
    assert client.job(opened).producers[0].staged_epochs == (0,)


CLOSES = wire.Promise(frontier=wire.Frontier(front="f", time=10))


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        ({"keep_apart": True}, "APPLIED"),
        ({"promises": [CLOSES]}, "APPLIED"),
        ({"units": []}, "MALFORMED"),
        ({"units": ["u", "u"]}, "MALFORMED"),
        ({"entry_count": 3}, "MALFORMED"),
        ({"substream_index": [5]}, "MALFORMED"),
        ({"scope_index": [1]}, "MALFORMED"),
        ({"names": ["x", "y"]}, "MALFORMED"),
    ],
    ids=lambda what: str(what)[:30],
)
def test_what_must_not_be_combined_travels_alone(
    shared_server: Server, opened: str, what: dict[str, Any], outcome: str
) -> None:
    good = [report(opened, f"good {n}", ("x", "a", 1, 1, 0)) for n in range(4)]
    told = at_once(shared_server, [*good, report(opened, "u", ("x", "a", 1, 1, 0), **what)])
    assert outcomes(told.answers) == [*["APPLIED"] * 4, outcome]
    assert told.messages == 3


def test_what_this_relay_does_not_know_travels_as_it_is(shared_server: Server, opened: str) -> None:
    newer = report(opened, "newer", ("x", "a", 1, 1, 0))
    newer.MergeFromString(b"\xfa\x06\x03new")  # a field of number 111
    told = at_once(shared_server, [report(opened, f"u{n}", ("x", "a", 1, 1, 0)) for n in range(3)] + [newer])
    assert outcomes(told.answers) == ["APPLIED"] * 4
    assert told.messages == 3


def test_a_commit_takes_what_was_answered_before_it(shared_server: Server, client: TrackerClient, opened: str) -> None:
    alone(shared_server, [report(opened, f"u{n}", ("x", "a", 1, 1, 0)) for n in range(3)])
    told = at_once(shared_server, [report(opened, "last", ("x", "a", 0, 0, 3), commit=True)])
    assert outcomes(told.answers) == ["APPLIED"]
    [substream] = client.substreams(opened)
    assert (substream.segments[0].sent, substream.segments[0].received) == (3, 3)


def test_what_is_kept_apart_can_be_left_out_of_a_manifest(
    shared_server: Server, client: TrackerClient, opened: str
) -> None:
    reports = [report(opened, f"u{n}", ("x", "a", 1 << n, 1, 0), keep_apart=True) for n in range(4)]
    assert outcomes(at_once(shared_server, reports).answers) == ["APPLIED"] * 4
    client.producer(opened, "p", "r").commit(0, units=["u1", "u3"])
    [substream] = client.substreams(opened)
    assert (substream.segments[0].xor, substream.segments[0].sent) == (0b1010, 2)


NAMES = [f"n{number}" for number in range(6)]
ENTRY = st.tuples(
    st.sampled_from(NAMES).map(lambda name: (name, 7)) | st.sampled_from(range(3)) | st.just(("n0", 8)),
    st.sampled_from(["a", "b"] * 8 + ["nowhere"]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 3),
    st.integers(0, 3),
)
SAID = st.tuples(
    st.lists(ENTRY, max_size=4, unique_by=lambda entry: entry[:2]),
    st.booleans(),
    st.sampled_from(["", "", "old", "older"]),
)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SAID, min_size=3, max_size=8), st.booleans())
def test_combined_or_alone_all_is_the_same(
    shared_server: Server, client: TrackerClient, said: list[tuple[list[Any], bool, list[str]]], immediate: bool
) -> None:
    """The same reports, at once through a gatherer and one by one without: the same answers, the same accounts."""
    results = []
    for job in ("together", "alone"):
        if job in client.jobs():
            client.delete_job(job, force=True)
        client.define_job(JobSpec(job=job, deployment="d1", segments={"a": ["b"], "b": []}, fronts=["f"]))
        client.open_producer(job, "p", "r", mode="immediate" if immediate else "staged")
        prelude = [
            report(job, unit, *(((f"n{n}", 7), "a", 1, 1, 0) for n in range(3)), want_ids=True)
            for unit in ("old", "older")
        ]
        first, _ = alone(shared_server, prelude)
        assert isinstance(first, wire.ReportResponse)
        assert list(first.substream_ids) == [0, 1, 2]
        reports = [
            report(
                job, f"u{n}", *entries, want_ids=want_ids, log_id=first.log_id, units=[f"u{n}", *filter(None, [old])]
            )
            for n, (entries, want_ids, old) in enumerate(said)
        ]
        answers = at_once(shared_server, reports).answers if job == "together" else alone(shared_server, reports)
        results.append((outcomes(answers), counted(client, job)))
    assert results[0] == results[1]
