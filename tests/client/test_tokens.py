"""Tokens of reports: whoever waits for one learns when all that the report has sent is through everything."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server
from tracker.client import Passed, Producer, Token, TrackerClient, TrackerError

HOPS = {"orders": ["paid"], "paid": []}


def sent(producer: Producer, segment: str, *names: str, commit: bool = True) -> Token:
    report = producer.epoch()
    for name in names:
        report.sent(segment, "berlin", name, 7)
    report.report(units=["u"], commit=commit)
    return report.token()


def received(producer: Producer, segment: str, *names: str, on: str = "") -> None:
    """Take elements off a segment, and send what they give rise to on another."""
    report = producer.epoch()
    for name in names:
        report.received(segment, "berlin", name, 7)
        if on:
            report.sent(on, "berlin", name, 7)
    report.report(commit=True)


def later(do: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.3, do)
    timer.start()
    return timer


def test_a_token_waits_until_all_is_through_every_segment(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, segments=HOPS))
    till, bank = client.open_producer(job, "till", run="1"), client.open_producer(job, "bank", run="1")
    token = sent(till, "orders", "monday")
    with pytest.raises(TimeoutError, match=r"'monday' of scope 'berlin' of job .* not through"):
        client.wait_for(token, timeout=0.1)
    received(bank, "orders", "monday", on="paid")
    with pytest.raises(TimeoutError):
        client.wait_for(token, timeout=0.1)
    later(lambda: received(bank, "paid", "monday"))
    assert client.wait_for(str(token), timeout=60) == Passed()
    assert client.wait_for(token, timeout=0).complete


def test_a_token_waits_for_the_commit_of_its_epoch(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    till = client.open_producer(job, "till", run="1")
    token = sent(till, "raw", "monday", commit=False)
    received(client.open_producer(job, "bank", run="1"), "raw", "monday")
    with pytest.raises(TimeoutError, match=r"epoch 0 of producer 'till' .* has not taken effect"):
        client.wait_for(token, timeout=0.1)
    later(lambda: till.commit(0))
    assert client.wait_for(token, timeout=60).complete


def test_substreams_need_not_be_quiet_at_the_same_moment(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    till, bank = client.open_producer(job, "till", run="1"), client.open_producer(job, "bank", run="1")
    token = sent(till, "raw", "monday", "tuesday")
    waiting = later(lambda: received(bank, "raw", "monday"))

    def monday_again() -> None:
        waiting.join()
        time.sleep(0.3)
        sent(till, "raw", "monday")
        received(bank, "raw", "tuesday")

    later(monday_again)
    assert client.wait_for(token, timeout=60).complete


def test_a_token_tells_what_was_given_up(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    till = client.open_producer(job, "till", run="1")
    token = sent(till, "raw", "monday", "tuesday")
    received(client.open_producer(job, "bank", run="1"), "raw", "tuesday")
    client.abandon(job, "berlin", "monday")
    assert client.wait_for(token, timeout=60) == Passed(lost=(("berlin", "monday"),))
    closing = till.epoch()
    closing.close("berlin", "tuesday")
    closing.report(commit=True)
    assert client.wait_for(token, timeout=60) == Passed(lost=(("berlin", "monday"),))
    assert client.wait_for(sent(till, "raw", "tuesday"), timeout=60) == Passed(lost=(("berlin", "tuesday"),))


def test_a_token_of_a_whole_morning_is_asked_for_in_parts(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    names = [f"order {number}" for number in range(1200)]
    token = sent(client.open_producer(job, "till", run="1"), "raw", *names)
    later(lambda: received(client.open_producer(job, "bank", run="1"), "raw", *names))
    assert client.wait_for(token, timeout=60).complete


def test_many_tokens_are_awaited_across_a_restart_without_threads(server: Server) -> None:
    async def all_through() -> list[Passed]:
        with TrackerClient(server.address) as client:
            client.define_job(spec("job"))
            till = client.open_producer("job", "till", run="1")
            names = [f"n{number}" for number in range(200)]
            tokens = [await asyncio.to_thread(sent, till, "raw", name) for name in names]
            before = threading.active_count()
            waiting = [asyncio.create_task(client.await_token(token, timeout=120)) for token in tokens]
            await asyncio.to_thread(server.restart)
            assert threading.active_count() <= before + 5
            bank = client.open_producer("job", "bank", run="1")
            await asyncio.to_thread(received, bank, "raw", *names)
            return await asyncio.gather(*waiting)

    assert all(each.complete for each in asyncio.run(all_through()))


def test_a_token_of_another_job_is_refused(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    token = sent(client.open_producer(job, "till", run="1"), "raw", "monday")
    client.delete_job(job, force=True)
    with pytest.raises(TrackerError, match="UNKNOWN_JOB"):
        client.wait_for(token)
    client.define_job(spec(job))
    with pytest.raises(TrackerError, match="LOG_CHANGED: the report was answered by log"):
        client.wait_for(token)
    with pytest.raises(ValueError, match="'tomorrow' is no token"):
        client.wait_for("tomorrow")


def test_a_report_has_a_token_once_the_tracker_has_taken_it(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    till = client.open_producer(job, "till", run="1")
    report = till.epoch(0)
    report.sent("raw", "berlin", "monday", 7)
    with pytest.raises(ValueError, match="has not taken the report yet"):
        report.token()
    report.report(units=["a"])
    report.report(units=["a", "b"])
    with pytest.raises(ValueError, match="has not taken the report yet"):
        report.token()
