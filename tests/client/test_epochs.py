"""A new run goes on where the producer is; one that begins again is refused instead of losing what it reports."""

from __future__ import annotations

import pickle

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.client import EpochCommittedError, Outcome, Report, ShardedClient, TrackerClient, TrackerError


def one(report: Report, name: str) -> Report:
    report.sent("raw", "s", name, 1)
    report.received("raw", "s", name, 1)
    report.close("s", name)
    return report


def test_a_new_run_that_begins_again_is_told_where_to_go_on(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    first = client.open_producer(job, "p", "1")
    for number, report in zip(range(3), first.epochs(), strict=False):
        assert report.epoch == number
        one(report, f"w{number}").report(commit=True)
    for run in ("2", "2"):  # one of the same name is a new start of the program all the same
        again = client.open_producer(job, "p", run)
        for epoch in (0, 2):
            with pytest.raises(EpochCommittedError, match=r"'p'.*The next epoch is 3") as refused:
                one(again.epoch(epoch), "lost").report(commit=True)
            assert (refused.value.next_epoch, refused.value.reason) == (3, "EPOCH_COMMITTED")
            assert isinstance(refused.value, TrackerError)
            assert pickle.loads(pickle.dumps(refused.value)).next_epoch == 3
        assert again.next_epoch() == 3
    assert one(again.epoch(), "w3").report(commit=True).outcome is Outcome.APPLIED
    assert again.next_epoch() == 4
    assert client.wait_for_end(job, "raw", "s", "w3", timeout=60).elements == 1
    assert {each.name for each in client.substreams(job, include_ended=True)} == {"w0", "w1", "w2", "w3"}


def test_who_replays_says_so_and_hears_what_was_committed(client: TrackerClient, job: str) -> None:
    """A program that works through the same input again, and an engine that knows where it goes on."""
    client.define_job(spec(job))
    one(client.open_producer(job, "p", "1").epoch(0), "w0").report(commit=True)
    replaying = client.open_producer(job, "p", "2", replays=True)
    assert one(replaying.epoch(0), "w0").report(commit=True).outcome is Outcome.ALREADY_COMMITTED
    assert one(replaying.epoch(1), "w1").report(commit=True).outcome is Outcome.APPLIED
    engine = client.open_producer(job, "p", "3", resume_epoch=2)
    assert engine.next_epoch() == 2
    assert one(engine.epoch(1), "w1").report(commit=True).outcome is Outcome.ALREADY_COMMITTED
    executor = client.producer(job, "p", "3")
    assert one(executor.epoch(0), "w0").report(units=["u"]).outcome is Outcome.ALREADY_COMMITTED
    assert client.producer(job, "p", "3").next_epoch() == 2


def test_a_repeated_report_of_the_same_run_is_no_fault(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "p", "1")
    report = one(producer.epoch(), "w0")
    assert report.report(commit=True).outcome is Outcome.APPLIED
    assert report.report(commit=True).outcome is Outcome.ALREADY_COMMITTED


def test_the_next_epoch_follows_what_this_run_commits(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "p", "1")
    assert producer.next_epoch() == 0
    producer.epoch().report(units=["a"])
    assert producer.next_epoch() == 0  # reported is not committed
    producer.commit(0, units=["a"], seal=True)
    assert producer.next_epoch() == 0
    producer.commit(0)
    assert producer.next_epoch() == 1
    copy = pickle.loads(pickle.dumps(producer))
    assert copy.next_epoch() == 1
    assert client.producer(job, "p", "1").next_epoch() == 1
    assert client.producer(job, "q", "1").next_epoch() == 0
    for _ in zip(range(1), producer.epochs(), strict=False):
        pass  # an epoch that is never reported
    reports = producer.epochs()
    next(reports).report(units=["a"])
    with pytest.raises(RuntimeError, match="epoch 1 of producer 'p' was not committed"):
        next(reports)


def test_epochs_that_cannot_be_are_refused_before_they_are_sent(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "p", "1")
    for epoch in (-1, -(2**63), 2**62, 2**64 - 1):
        for call in (
            lambda epoch=epoch: producer.epoch(epoch),
            lambda epoch=epoch: producer.commit(epoch),
            lambda epoch=epoch: producer.close(resume_epoch=epoch),
            lambda epoch=epoch: client.open_producer(job, "p", "2", resume_epoch=epoch),
        ):
            with pytest.raises(ValueError, match="epochs are 0, 1, 2, …"):
                call()
    assert producer.epoch(2**62 - 1).report(commit=True).outcome is Outcome.APPLIED


def test_over_several_trackers_it_is_the_same(shared_server: Server, server: Server, job: str) -> None:
    client = ShardedClient(f"{shared_server.address},{server.address}")
    client.define_job(spec(job))
    first = client.open_producer(job, "p", "1")
    for number, report in zip(range(2), first.epochs(), strict=False):
        one(report, f"w{number}").report(commit=True)
    again = client.open_producer(job, "p", "2")
    with pytest.raises(EpochCommittedError, match="The next epoch is 2"):
        one(again.epoch(0), "lost").report(commit=True)
    assert again.next_epoch() == 2
    assert one(again.epoch(), "w2").report(commit=True).outcome is Outcome.APPLIED
    replaying = client.open_producer(job, "p", "3", replays=True)
    assert one(replaying.epoch(1), "w1").report(commit=True).outcome is Outcome.ALREADY_COMMITTED
