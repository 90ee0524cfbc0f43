"""Substreams that are closed by a number: what a client gives, what it gets back, and what a person sees."""

from __future__ import annotations

import pytest

from tests.client.conftest import spec
from tracker.client import (
    Ended,
    Excess,
    Expected,
    Finish,
    Producer,
    Reason,
    SegmentStatus,
    TrackerClient,
    TrackerError,
    label,
)


def elements(producer: Producer, epoch: int, scope: str, numbers: range) -> None:
    """Send and receive so many elements."""
    report = producer.epoch(epoch)
    for number in numbers:
        report.sent("raw", scope, "monday", label(number), end_time=24)
        report.received("raw", scope, "monday", label(number), end_time=24)
    report.report(units=[f"{scope}/{epoch}"], commit=True)


def account(client: TrackerClient, job: str, scope: str) -> SegmentStatus:
    (found,) = client.substreams(job, scopes=[scope], include_ended=True)
    return found.segments[0]


def events(client: TrackerClient, job: str) -> list[object]:
    return [event.kind for event in client.list_events(job).events]


def test_a_substream_ends_once_as_many_were_sent_as_expected(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, fronts=["source"]))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.expect("source", "raw", "JFK", "monday", 20, end_time=24)
    report.expect("source", "raw", "LGA", "monday", 20, end_time=24)
    report.frontier("source", 1000)
    report.report(units=["counts"], commit=True)
    elements(producer, 1, "JFK", range(16))
    assert (account(client, job, "JFK").sent, account(client, job, "JFK").expected) == (16, 20)
    assert (account(client, job, "LGA").missing, account(client, job, "LGA").expected_by) == (20, {"source": 20})
    status = client.job(job)
    assert (status.incomplete_substreams, status.expected, status.expected_sent) == (2, 40, 16)
    elements(producer, 2, "JFK", range(16, 20))
    assert events(client, job) == [Ended("raw", "JFK", "monday", 24, 20, Reason.COMPLETE, 0, False, 20)]


def test_a_driver_passes_counts_on_while_no_batch_comes(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, fronts=["source"]))
    query = client.open_producer(job, "q", "r1")
    elements(query, 0, "JFK", range(3))
    query.epoch(1).report(units=["still running"])
    query.commit(promises=[Expected("source", "raw", "LGA", "monday", 20, end_time=24)])
    query.commit(promises=[Expected("source", "raw", "JFK", "monday", 2, end_time=24)])
    with pytest.raises(TrackerError) as refused:
        query.commit(promises=[Expected("source", "raw", "LGA", "monday", 19, end_time=24)])
    assert refused.value.reason == "EXPECT_CONFLICT"
    query.commit(promises=[Expected("source", "raw", "LGA", "monday", 0, end_time=24, revise=True)])
    with pytest.raises(TrackerError) as refused:
        client.open_producer(job, "control", "r1").commit(promises=[Expected("source", "raw", "LGA", "monday", 1)])
    assert refused.value.reason == "FRONT_OWNED"
    assert events(client, job) == [
        Excess("raw", "JFK", "monday", 2, 3),
        Ended("raw", "JFK", "monday", 24, 3, Reason.COMPLETE, 0, False, 2),
        Ended("raw", "LGA", "monday", 24, 0, Reason.COMPLETE, 0, False, 0),
    ]


def test_an_end_says_that_only_a_drain_has_closed_it(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, fronts=["source"]))
    producer = client.open_producer(job, "q", "r1")
    producer.commit(promises=[Expected("source", "raw", "JFK", "monday", 20, end_time=24)])
    elements(producer, 0, "JFK", range(16))
    elements(producer, 1, "LGA", range(5))
    client.drain(job, "d1", "stop")
    producer.commit(promises=[Finish("source")])
    ended = {kind.scope: kind for kind in events(client, job) if isinstance(kind, Ended)}
    assert ended["JFK"] == Ended("raw", "JFK", "monday", 24, 16, Reason.COMPLETE, 0, True, 20)
    assert ended["LGA"] == Ended("raw", "LGA", "monday", 24, 5, Reason.COMPLETE, 0, True, None)
    assert client.wait_for_end(job, "raw", "JFK", "monday", timeout=5) == ended["JFK"]


def test_a_close_that_forgets_its_front_loses_nothing(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, fronts=["eu", "us"]))
    shop = client.open_producer(job, "shop", "r1")
    report = shop.epoch(0)
    report.close("JFK", "monday")
    with pytest.raises(TrackerError, match="name one of: eu, us") as refused:
        report.report(commit=True)
    assert refused.value.reason == "UNKNOWN_FRONT"
    report = shop.epoch(0)
    report.close("JFK", "monday", front="us")
    report.close("JFK", "revised", front=None)
    report.report(commit=True)
    elements(shop, 1, "LGA", range(1))
    assert events(client, job) == [Ended("raw", "JFK", "revised", None, 0, Reason.COMPLETE, 0)]
    assert [s.waiting_for for s in client.substreams(job, scopes=["JFK"])] == [("eu",)]


def test_a_segment_waits_only_for_the_fronts_that_lead_to_it(client: TrackerClient, job: str) -> None:
    given = spec(job, segments={"raw": [], "other": []}, fronts={"source": ["raw"], "second": ["other"]})
    client.define_job(given)
    assert client.job(job).spec.fronts == {"source": ("raw",), "second": ("other",)}
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "JFK", "monday", 0, end_time=24)
    report.received("raw", "JFK", "monday", 0, end_time=24)
    report.frontier("source", 24)
    report.report(units=["0"], commit=True)
    assert events(client, job) == [Ended("raw", "JFK", "monday", 24, 1, Reason.COMPLETE, 0)]
    (found,) = client.substreams(job)
    assert (found.closed, found.waiting_for) == (False, ("second",))
    assert {segment.segment: segment.closed for segment in found.segments} == {"raw": True, "other": False}
    with pytest.raises(TrackerError) as refused:
        client.define_job(spec(job, segments={"raw": [], "other": []}, fronts=["source", "second"]))
    assert refused.value.reason == "SPEC_CONFLICT"
