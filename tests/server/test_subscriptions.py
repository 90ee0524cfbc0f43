"""Durable readers on the wire: events are kept for them past retention and kills; expired, they are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracker.wire.gen import tracker_pb2 as wire
from tracker.wire.gen.tracker_pb2_grpc import TrackerStub

from .processes import Server, Servers
from .test_reading import seqs, soon, take
from .tracking import define, ends, refused

SHORT = {"nanos": 1_000_000}


@pytest.fixture(scope="module")
def stub(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> TrackerStub:
    limits = ("--limit", "max_subscriptions=3", "--limit", "max_subscribed_names=5")
    return servers.start(tmp_path_factory.mktemp("server"), "memory", *limits).stub


def subscribe(stub: TrackerStub, job: str, name: str = "s", **more: Any) -> wire.SubscribeResponse:
    return stub.Subscribe(wire.SubscribeRequest(job=job, name=name, **more))


def listed(stub: TrackerStub, job: str, **more: Any) -> list[int]:
    return seqs(list(stub.ListEvents(wire.ListEventsRequest(job=job, **more)).events))


def status(stub: TrackerStub, job: str, name: str = "s") -> wire.SubscriptionStatus:
    found = stub.ListSubscriptions(wire.ListSubscriptionsRequest(job=job)).subscriptions
    return next(each for each in found if each.name == name)


def first_seq(stub: TrackerStub, job: str) -> int:
    return stub.GetJob(wire.GetJobRequest(job=job)).first_seq


def test_what_a_subscription_asks_for_outlives_retention(stub: TrackerStub) -> None:
    define(stub, "kept", retention=SHORT)
    assert subscribe(stub, "kept", segments=["b"]).created
    for epoch in range(3):
        stub.Report(ends(epoch, "kept"))  # an end on a, an end on b
    soon(lambda: first_seq(stub, "kept") == 6)  # 6 is kept for the subscription
    assert status(stub, "kept").retained == 3
    assert listed(stub, "kept", subscription="s") == [2, 4, 6]
    assert listed(stub, "kept", segments=["b"], after_seq=0, own_position=True) == [2, 4, 6]
    assert stub.Ack(wire.AckRequest(job="kept", name="s", seq=4)).acknowledged == 4
    assert listed(stub, "kept", subscription="s") == [6]
    assert stub.Ack(wire.AckRequest(job="kept", name="s", seq=1)).acknowledged == 4
    assert refused(stub.ListEvents, wire.ListEventsRequest(job="kept", after_seq=2, subscription="s"))[:2] == (
        "OUT_OF_RANGE",
        "EVENTS_EXPIRED",
    )
    stub.Ack(wire.AckRequest(job="kept", name="s", seq=6))
    assert first_seq(stub, "kept") == 7


def test_a_reader_is_refused_only_for_what_it_asked_for(stub: TrackerStub) -> None:
    define(stub, "judged", retention=SHORT)
    subscribe(stub, "judged", segments=["b"])
    stub.Report(ends(0, "judged"))
    soon(lambda: first_seq(stub, "judged") == 2)
    ask = wire.ListEventsRequest
    assert refused(stub.ListEvents, ask(job="judged", own_position=True))[1] == "EVENTS_EXPIRED"
    assert refused(stub.ListEvents, ask(job="judged", own_position=True, segments=["a"]))[1] == "EVENTS_EXPIRED"
    assert refused(stub.ListEvents, ask(job="judged", own_position=True, scopes=["tenant"]))[1] == "EVENTS_EXPIRED"
    assert listed(stub, "judged", own_position=True, segments=["b"]) == [2]
    assert listed(stub, "judged", own_position=True, scopes=["another"]) == []
    answer = stub.ListEvents(ask(job="judged"))  # from the oldest kept, which the answer names
    assert (seqs(list(answer.events)), answer.first_seq) == ([2], 2)
    assert stub.ListEvents(ask(job="judged", segments=["b"])).first_seq == 1
    watch = stub.Watch(wire.WatchRequest(job="judged", own_position=True))
    assert refused(lambda: list(watch))[:2] == ("OUT_OF_RANGE", "EVENTS_EXPIRED")


def test_one_that_lags_too_far_expires_and_is_told_by_name(stub: TrackerStub) -> None:
    define(stub, "lagging", retention=SHORT)
    subscribe(stub, "lagging", "old", max_age={"nanos": 50_000_000})
    subscribe(stub, "lagging", "many", max_events=3)
    subscribe(stub, "lagging", "fine")
    watch = stub.Watch(wire.WatchRequest(job="lagging", subscription="old"))
    watch.initial_metadata()
    for epoch in range(2):
        stub.Report(ends(epoch, "lagging"))
    for name in ("old", "many"):
        soon(lambda name=name: status(stub, "lagging", name).HasField("expired"))  # type: ignore[misc]
        for call, request in (
            (stub.ListEvents, wire.ListEventsRequest(job="lagging", subscription=name)),
            (stub.Ack, wire.AckRequest(job="lagging", name=name, seq=1)),
            (stub.Subscribe, wire.SubscribeRequest(job="lagging", name=name)),
        ):
            code, reason, message = refused(call, request)
            assert (code, reason) == ("OUT_OF_RANGE", "SUBSCRIPTION_EXPIRED")
            assert repr(name) in message
    assert refused(lambda: list(watch))[1] == "SUBSCRIPTION_EXPIRED"
    assert listed(stub, "lagging", subscription="fine") == [1, 2, 3, 4]
    assert refused(stub.Subscribe, wire.SubscribeRequest(job="lagging", name="fourth"))[1] == "LIMIT"
    stub.Unsubscribe(wire.UnsubscribeRequest(job="lagging", name="old"))
    assert subscribe(stub, "lagging", "old").created


def test_all_filters_of_a_job_together_are_bounded(stub: TrackerStub) -> None:
    define(stub, "wide")
    subscribe(stub, "wide", "one", scopes=["a", "b", "c"])
    subscribe(stub, "wide", "one", scopes=["a", "b", "c"], segments=["a", "b"])  # instead of the other
    request = wire.SubscribeRequest(job="wide", name="two", scopes=["d"])
    assert refused(stub.Subscribe, request)[:2] == ("RESOURCE_EXHAUSTED", "LIMIT")
    stub.Unsubscribe(wire.UnsubscribeRequest(job="wide", name="one"))
    stub.Subscribe(request)


def test_who_reads_as_a_subscription_that_ends_is_told(stub: TrackerStub) -> None:
    define(stub, "ended")
    subscribe(stub, "ended")
    stub.Report(ends(0, "ended"))
    watch = stub.Watch(wire.WatchRequest(job="ended", subscription="s"))
    assert seqs(take(watch, 2)) == [1, 2]
    stub.Unsubscribe(wire.UnsubscribeRequest(job="ended", name="s"))
    assert refused(lambda: list(watch))[:2] == ("NOT_FOUND", "UNKNOWN_SUBSCRIPTION")
    both = wire.ListEventsRequest(job="ended", subscription="s", segments=["a"])
    assert refused(stub.ListEvents, both)[1] == "MALFORMED"


def test_another_filter_is_taken_over_unless_it_asks_for_what_is_gone(stub: TrackerStub) -> None:
    define(stub, "widened", retention=SHORT)
    subscribe(stub, "widened", segments=["b"])
    stub.Report(ends(0, "widened"))
    soon(lambda: first_seq(stub, "widened") == 2)
    refusal = refused(stub.Subscribe, wire.SubscribeRequest(job="widened", name="s"))
    assert refusal[:2] == ("OUT_OF_RANGE", "EVENTS_EXPIRED")
    assert listed(stub, "widened", subscription="s") == [2]
    assert not subscribe(stub, "widened", segments=["b"], scopes=["tenant"]).created
    assert listed(stub, "widened", subscription="s") == [2]


def test_it_outlives_the_server(servers: Servers, tmp_path: Path) -> None:
    """kill -9, and recovery once from the log and once from a snapshot."""

    def check(server: Server) -> None:
        assert listed(server.stub, "job", subscription="s") == [2, 4]
        assert status(server.stub, "job").retained == 2
        assert refused(server.stub.ListEvents, wire.ListEventsRequest(job="job", own_position=True))[1] == (
            "EVENTS_EXPIRED"
        )

    server = servers.start(tmp_path, "sqlite")
    define(server.stub, retention=SHORT)
    subscribe(server.stub, "job", segments=["b"])
    stub = server.stub
    for epoch in range(2):
        stub.Report(ends(epoch))
    soon(lambda: first_seq(stub, "job") == 4)
    server.kill()
    server = servers.start(tmp_path, "sqlite")
    check(server)
    assert server.stop() == 0
    server = servers.start(tmp_path, "sqlite")
    check(server)
    server.stub.Ack(wire.AckRequest(job="job", name="s", seq=4))
    server.kill()
    server = servers.start(tmp_path, "sqlite")
    assert status(server.stub, "job").acknowledged == 4
    assert listed(server.stub, "job", subscription="s") == []
    server.kill()
