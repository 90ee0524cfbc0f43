"""Rules for when the tracker dies, stands still, or is heard no more: nothing is lost, nothing counts twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.client.conftest import spec
from tests.client.processes import Line, Server
from tests.client.test_client import pass_through
from tracker.client import Event, Outcome, TrackerClient, TrackerUnavailable, label
from tracker.client.calls import Calls
from tracker.client.connection import Connection


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come; the test's own time limit is the only one."""
    while not condition():
        time.sleep(0.01)


def test_reports_outlast_kill_9(server: Server) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec("job"))
    done = threading.Event()
    counts = []

    def work(number: int) -> int:
        producer = client.open_producer("job", f"q{number}", "r1")
        epoch = 0
        while not done.is_set():
            report = producer.epoch(epoch)
            for element in range(20):
                report.sent("raw", "s", f"n{element}", label(number, epoch, element))
            assert report.report(units=["a"]).done
            report = producer.epoch(epoch)
            report.received("raw", "s", "n0", label(number, epoch, 0))
            assert report.report(units=["b"], commit=True).done
            epoch += 1
        producer.close()
        return epoch

    with ThreadPoolExecutor(4) as pool:
        works = [pool.submit(work, number) for number in range(4)]
        for _ in range(4):
            before = sum(p.committed_epoch or 0 for p in client.job("job").producers)
            until(lambda: sum(p.committed_epoch or 0 for p in client.job("job").producers) > before + 20)  # noqa: B023
            server.restart()
        done.set()
        counts = [work.result() for work in works]
    substreams = {substream.name: substream.segments[0] for substream in client.substreams("job")}
    assert {name: account.sent for name, account in substreams.items()} == {f"n{n}": sum(counts) for n in range(20)}
    assert substreams["n0"].received == sum(counts)
    assert substreams["n0"].xor == 0
    xor = 0
    for number, count in enumerate(counts):
        for epoch in range(count):
            xor ^= label(number, epoch, 1)
    assert substreams["n1"].xor == xor


@pytest.mark.thorough
def test_a_watch_sees_everything_once_over_restarts(server: Server) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec("job"))
    producer = client.open_producer("job", "q", "r1")
    events = client.watch("job")
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(list[Event], events)
        for start in range(0, 60, 20):
            for epoch in range(start, start + 20):
                pass_through(producer, epoch, f"n{epoch}")
            server.restart()
        client.wait_for_end("job", "raw", "s", "n59", timeout=60)
        until(lambda: events.last_seq >= 60)
        events.close()
        assert [event.seq for event in seen.result()] == list(range(1, 61))
    assert events.log_id == client.job("job").log_id


@pytest.mark.thorough
def test_a_watch_reports_an_absent_tracker_and_continues_when_it_is_back(server: Server) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec("job"))
    with TrackerClient(server.address, retry_for=0).watch("job") as events:
        pass_through(client.open_producer("job", "q", "r1"), 0, "n0")
        assert next(events).seq == 1
        server.kill()
        for _ in range(2):
            with pytest.raises(TrackerUnavailable, match="has not answered"):
                next(events)
        server.start()
        pass_through(client.open_producer("job", "q", "r2"), 1, "n1")
        assert next(events).seq == 2


@pytest.mark.thorough
def test_waiting_for_an_end_outlasts_a_restart(server: Server) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec("job"))
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(client.wait_for_end, "job", "raw", "s", "n", timeout=60)
        server.stop()
        server.start()
        server.restart()
        pass_through(client.open_producer("job", "q", "r1"), 0, "n")
        assert end.result().elements == 1


def test_a_tracker_that_stands_still_is_asked_again(server: Server) -> None:
    client = TrackerClient(server.address, timeout=0.3, retry_for=120)
    client.define_job(spec("job"))
    producer = client.open_producer("job", "q", "r1")
    server.freeze()
    with ThreadPoolExecutor(1) as pool:
        report = producer.epoch(0)
        report.sent("raw", "s", "n", 1)
        reported = pool.submit(report.report, units=["a"])
        with pytest.raises(TrackerUnavailable, match="DEADLINE_EXCEEDED"):
            TrackerClient(server.address, timeout=0.3, retry_for=0).jobs()
        server.thaw()
        assert reported.result().done
    producer.commit(0)
    assert client.job("job").in_flight == 1


def answer_is_lost(line: Line, call: Callable[[], object], carried_out: Callable[[], bool]) -> object:
    """Make a call that is carried out, and whose answer is lost with the line."""
    with ThreadPoolExecutor(1) as pool:
        line.hold_answers()
        answer = pool.submit(call)
        until(carried_out)
        line.cut()
        return answer.result()


def test_what_was_done_is_not_done_again_when_its_answer_is_lost(client: TrackerClient, line: Line, job: str) -> None:
    far = TrackerClient(line.address)
    far.server_info()
    defined = answer_is_lost(line, lambda: far.define_job(spec(job)), lambda: job in client.jobs())
    assert not defined.created  # type: ignore[attr-defined]

    def opened() -> bool:
        return bool(client.job(job).producers)

    answer_is_lost(line, lambda: far.open_producer(job, "q", "r1"), opened)
    producer = far.producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "s", "n", 1)

    def staged() -> bool:
        return client.job(job).producers[0].staged_epochs == (0,)

    def committed() -> bool:
        return client.job(job).producers[0].committed_epoch == 0

    def closed() -> bool:
        return client.job(job).producers[0].closed

    reported = answer_is_lost(line, lambda: report.report(units=["a"]), staged)
    assert reported.outcome is Outcome.DUPLICATE  # type: ignore[attr-defined]
    reported = answer_is_lost(line, lambda: report.report(units=["b"], commit=True), committed)
    assert reported.outcome is Outcome.ALREADY_COMMITTED  # type: ignore[attr-defined]
    answer_is_lost(line, producer.close, closed)
    [substream] = client.substreams(job)
    assert (substream.segments[0].sent, substream.segments[0].xor) == (2, 0)


def test_a_call_that_names_what_may_be_made_anew_is_not_repeated(client: TrackerClient, line: Line, job: str) -> None:
    far = TrackerClient(line.address)
    far.define_job(spec(job))
    far.open_producer(job, "q", "r1")

    def forgotten() -> bool:
        return not client.job(job).producers

    line.hold_answers(after=job.encode())  # not yet while the client sees whether the tracker is there
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(far.forget_producer, job, "q")
        until(forgotten)
        client.open_producer(job, "q", "r2")
        line.cut()
        with pytest.raises(TrackerUnavailable, match="has not answered ForgetProducer"):
            answer.result()
    assert client.job(job).producers[0].run == "r2"


def test_a_watch_comes_back_when_its_line_is_cut(client: TrackerClient, line: Line, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    with TrackerClient(line.address) as far, far.watch(job) as events:
        for epoch in range(5):
            pass_through(producer, epoch, f"n{epoch}")
            assert next(events).seq == epoch + 1
            line.cut()


def test_a_tracker_that_cannot_keep_up_is_waited_for(tmp_path: Path) -> None:
    server = Server(tmp_path, "sqlite", "--limit", "max_pending_bytes=100000")
    client = TrackerClient(server.address)
    client.define_job(spec("job"))

    def work(number: int) -> None:
        producer = client.open_producer("job", f"q{number}", "r1")
        names = [str(name) for name in range(2_500)]  # 75,000 bytes a report
        for epoch in range(5):
            report = producer.epoch(epoch)
            report.add_columns("raw", ["s"] * 2_500, names, None, range(2_500), [1] * 2_500, [0] * 2_500)
            assert report.report(units=["a"], commit=True).done

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert client.job("job").in_flight == 4 * 5 * 2_500
    server.stop()


def test_a_call_lasts_although_another_thread_has_moved_on_to_another_address(
    client: TrackerClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the caller's reference to the connection is the last one."""
    client.define_job(spec(job))
    producer = client.open_producer(job, "p", "r1")

    def left(calls: Calls) -> Connection:
        return Connection(calls.address, calls.credentials)

    monkeypatch.setattr(Calls, "connection", left)
    monkeypatch.setattr(Calls, "waiting_connection", left)
    report = producer.epoch()
    report.close("berlin", "monday")
    report.report(commit=True)
    with client.watch(job) as watch:
        assert next(watch).seq == 1
    assert client.wait_for_end(job, "raw", "berlin", "monday").elements == 0
    client.delete_job(job, force=True)
    assert job not in client.jobs()
