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
from tracker.client.waiting import Following
from tracker.wire.gen.tracker_pb2 import AwaitThroughResponse

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


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    "text",
    [
        '["shop", "8f", "till", 7]',
        '["shop", "8f", "till", 7, [["berlin"]]]',
        '["shop", "8f", "till", 7, [["berlin", 1]]]',
        '[1, "8f", "till", 7, []]',
        '["shop", "8f", null, 7, []]',
        '["shop", "8f", "till", "7", []]',
        '["shop", "8f", "till", 7.5, []]',
        '["shop", "8f", "till", -1, []]',
        '["shop", "8f", "till", 9223372036854775808, []]',
    ],
)
def test_a_text_that_is_no_tokens_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no token; give what str"):
        Token.of(text)


def test_the_text_of_a_token_is_that_token() -> None:
    for token in (Token("shop", "8f", "till", 0, ()), Token("shop", "8f", "till", 2**40, (("berlin", "monday"),))):
        assert Token.of(str(token)) == Token.of(token) == token


def test_each_substream_is_asked_for_until_it_was_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer names substreams by their places in its question."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    substreams = (("berlin", "monday"), ("lima", "monday"), ("berlin", "tuesday"), ("lima", "tuesday"))
    following = Following(Token("shop", "8f", "till", 7, substreams), timeout=0, longest=20)

    def asked() -> list[tuple[str, str]]:
        question = following.question()
        assert question is not None
        assert (question.job, question.log_id, question.producer, question.epoch) == ("shop", "8f", "till", 7)
        return [(question.scopes[at], name) for at, name in zip(question.scope_index, question.names, strict=True)]

    assert asked() == list(substreams)
    with pytest.raises(TimeoutError, match="'tuesday' of scope 'berlin' and 1 more substreams"):
        following.learn(AwaitThroughResponse(pending=[2, 3], lost=[1]))
    assert asked() == [("berlin", "tuesday"), ("lima", "tuesday")]
    following.learn(AwaitThroughResponse(forgotten=[1]))
    assert following.question() is None
    assert following.passed == Passed(lost=(("lima", "monday"),), forgotten=(("lima", "tuesday"),))
    assert not Passed(lost=following.passed.lost).complete
    assert not Passed(forgotten=following.passed.forgotten).complete


@pytest.mark.parametrize(
    ("timeout", "longest", "asks"),
    [(None, 2.25, 2.25), (None, 3600, 20), (3600, 2.25, 2.25), (7.5, 20, 7.5), (0, 20, 0), (-1, 20, 0)],
)
def test_a_question_lasts_no_longer_than_anybody_waits(
    timeout: float | None, longest: float, asks: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    question = Following(Token("shop", "8f", "till", 7, (("berlin", "monday"),)), timeout, longest).question()
    assert question is not None
    assert question.wait.ToNanoseconds() == asks * 1e9
