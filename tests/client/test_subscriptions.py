"""A durable reader in Python: it goes on where it was, whoever died, and is refused by name when it cannot."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tests.client.test_client import pass_through
from tracker.client import Ended, ShardedClient, TrackerClient, TrackerError

MOMENT = timedelta(milliseconds=1)


def names(events: object, count: int) -> list[tuple[int, str]]:
    found = []
    for event in events:  # type: ignore[attr-defined]
        assert isinstance(event.kind, Ended)
        found.append((event.seq, event.kind.name))
        if len(found) == count:
            return found
    raise AssertionError("it ended by itself")


def test_it_goes_on_after_what_was_acknowledged_over_restarts(server: Server) -> None:
    """Reader and tracker die; retention is over long since; nothing that was not acknowledged is missing."""
    with TrackerClient(server.address) as client:
        client.define_job(spec("job", retention=MOMENT))
        producer = client.open_producer("job", "p", "r")
        with client.subscribe("job", "mailer", segments=["raw"], scopes=["s"]) as first:
            assert first.created
            for epoch in range(4):
                pass_through(producer, epoch, f"w{epoch}")
            assert names(first, 2) == [(1, "w0"), (2, "w1")]
            assert first.ack(1) == 1
        while client.job("job").first_seq < 2:
            time.sleep(0.01)
        server.restart()
        with client.subscribe("job", "mailer", segments=["raw"], scopes=["s"]) as again:
            assert (again.created, again.acknowledged) == (False, 1)
            assert names(again, 2) == [(2, "w1"), (3, "w2")]
            server.restart()
            assert names(again, 1) == [(4, "w3")]
            again.ack(4)
        assert [(each.name, each.acknowledged, each.retained) for each in client.subscriptions("job")] == [
            ("mailer", 4, 0)
        ]


def test_one_that_has_expired_says_so_by_its_name(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, retention=MOMENT))
    producer = client.open_producer(job, "p", "r")
    reader = client.subscribe(job, "slow", max_age=MOMENT)
    pass_through(producer, 0, "w0")
    while client.subscriptions(job)[0].expired is None:
        time.sleep(0.01)
    for call in (lambda: client.subscribe(job, "slow"), lambda: reader.ack(1)):
        with pytest.raises(TrackerError, match="'slow'") as refused:
            call()
        assert refused.value.reason == "SUBSCRIPTION_EXPIRED"
    client.unsubscribe(job, "slow")
    again = client.subscribe(job, "slow")
    assert (again.created, again.acknowledged) == (True, 1)
    with pytest.raises(TrackerError) as refused:
        client.subscribe(job, "late", after_seq=0)
    assert refused.value.reason == "EVENTS_EXPIRED"


def test_a_watch_says_where_it_begins(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, retention=MOMENT))
    producer = client.open_producer(job, "p", "r")
    pass_through(producer, 0, "w0")
    while client.job(job).first_seq < 2:
        time.sleep(0.01)
    with pytest.raises(TrackerError) as refused:
        next(client.watch(job, own_position=True))
    assert refused.value.reason == "EVENTS_EXPIRED"
    with client.watch(job) as watch, client.subscribe(job, "keeps") as kept:
        pass_through(producer, 1, "w1")
        assert names(kept, 1) == [(2, "w1")]
        assert names(watch, 1) == [(2, "w1")]
        assert watch.first_seq == 2
    assert client.list_events(job).first_seq == 2


def test_sharded_jobs_have_none_and_say_so(shared_server: Server, job: str) -> None:
    with pytest.raises(TrackerError, match=r"NOT_SHARDED.*ShardedWatch\.position"):
        ShardedClient(shared_server.address).subscribe(job, "s")
