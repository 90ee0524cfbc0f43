"""Answers of the tracker, as the client returns them."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.client.conftest import spec
from tests.client.processes import Server, Silence
from tracker.client import (
    Advanced,
    Drained,
    DrainMode,
    DrainRequested,
    DrainState,
    Ended,
    Event,
    Finish,
    Frontier,
    JobSpec,
    Outcome,
    Producer,
    Reason,
    TrackerClient,
    TrackerError,
    TrackerUnavailable,
    label,
)


def ends(events: Iterator[Event], count: int) -> list[Ended]:
    """Return the next ends of a watch."""
    found: list[Ended] = []
    for event in events:
        if isinstance(event.kind, Ended):
            found.append(event.kind)
            if len(found) == count:
                break
    return found


def pass_through(producer: Producer, epoch: int, name: str, *, close: bool = True) -> None:
    """Send and receive one element, and promise that no more will come."""
    report = producer.epoch(epoch)
    report.sent("raw", "s", name, label(name))
    report.received("raw", "s", name, label(name))
    if close:
        report.close("s", name)
    report.report(units=[name], commit=True)


def test_a_spec_comes_back_as_it_was_given(client: TrackerClient, job: str) -> None:
    given = JobSpec(
        job=job,
        deployment="d1",
        segments={"raw": ("clean",), "clean": ("clean",)},
        fronts=("schedule",),
        ordering="scope",
        progress=True,
        stall_after=timedelta(seconds=1.5),
        expire_after=timedelta(minutes=1),
        idle_after=timedelta(hours=1),
        retention=timedelta(days=1),
        committed_ends=True,
    )
    defined = client.define_job(given)
    assert defined.created
    assert defined.spec == given
    assert not client.define_job(given).created
    assert client.job(job).spec == given
    assert job in client.jobs()


def test_what_is_sent_and_received_and_promised_ends(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, segments={"raw": ["clean"], "clean": []}, fronts=["schedule"], progress=True))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "JFK", "d1", 1, end_time=24)
    report.received("raw", "JFK", "d1", 1, end_time=24)
    report.sent("clean", "JFK", "d1", 2, end_time=24)
    report.frontier("schedule", 24)
    assert report.report(units=["a"]).outcome is Outcome.APPLIED
    assert client.list_events(job).events == ()
    producer.commit(0, units=["a"])
    with client.watch(job) as events:
        event = next(events)
        assert (event.seq, event.deployment) == (1, "d1")
        assert event.kind == Ended("raw", "JFK", "d1", 24, elements=1, reason=Reason.COMPLETE, in_flight=0)
        assert next(events).kind == Advanced("raw", 24)
        [substream] = client.substreams(job)
        assert substream.in_flight == 1
        assert {segment.segment: segment.ended for segment in substream.segments} == {"raw": True, "clean": False}
        report = producer.epoch(1)
        report.received("clean", "JFK", "d1", 2, end_time=24)
        report.report(units=["a"], commit=True)
        assert ends(events, 1)[0].segment == "clean"
    assert client.wait_for_end(job, "clean", "JFK", "d1", 24).elements == 1
    assert not list(client.substreams(job))
    assert client.job(job).ended_substreams == 1


def test_substreams_are_paged_without_being_noticed(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    report = client.open_producer(job, "q", "r1").epoch(0)
    names = [f"n{number:05}" for number in range(2_500)]
    report.add_columns("raw", ["s"] * len(names), names, None, range(1, 2_501), [1] * len(names), [0] * len(names))
    report.report(units=["a"], commit=True)
    assert [substream.name for substream in client.substreams(job)] == names
    assert not list(client.substreams(job, scopes=["other"]))


def test_a_refusal_says_why_and_is_not_repeated(client: TrackerClient, job: str) -> None:
    with pytest.raises(TrackerError, match=r"^UNKNOWN_JOB: ") as refused:
        client.job(job)
    assert (refused.value.code, refused.value.reason) == ("NOT_FOUND", "UNKNOWN_JOB")
    assert pickle.loads(pickle.dumps(refused.value)).reason == "UNKNOWN_JOB"
    client.define_job(spec(job))
    zombie = client.open_producer(job, "q", "r1")
    client.open_producer(job, "q", "r2")
    with pytest.raises(TrackerError) as refused:
        zombie.epoch(0).report(commit=True)
    assert refused.value.reason == "FENCED"
    with pytest.raises(TrackerError) as refused:
        zombie.close()
    assert refused.value.reason == "FENCED"


def test_names_for_which_there_is_no_word_are_refused_at_once(client: TrackerClient, job: str) -> None:
    with pytest.raises(ValueError, match="ordering='total' is not a known value; use one of 'none', 'scope', 'global'"):
        client.define_job(spec(job, ordering="total"))
    with pytest.raises(ValueError, match="mode='fast' is not a known value; use one of 'staged', 'immediate'"):
        client.open_producer(job, "q", "r1", mode="fast")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got the string 'ab'"):
        client.producer(job, "q", "r1").epoch(0).report(units="ab")


def test_repeated_units_are_duplicates(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    for outcome in (Outcome.APPLIED, Outcome.DUPLICATE):
        report = producer.epoch(0)
        report.sent("raw", "s", "n", 1)
        answer = report.report(units=["a"])
        assert (answer.outcome, answer.done) == (outcome, True)
    answer = producer.epoch(0).report(units=["a", "b"])
    assert (answer.outcome, answer.duplicate_units, answer.done) == (Outcome.PARTIAL_DUPLICATE, ("a",), False)
    producer.commit(0)
    assert producer.epoch(0).report(units=["b"]).outcome is Outcome.ALREADY_COMMITTED
    assert client.job(job).in_flight == 1
    assert client.open_producer(job, "q", "r2").committed_epoch == 0


def test_a_driver_seals_commits_and_promises_without_a_batch(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, fronts=["schedule"]))
    driver = client.open_producer(job, "q", "r1", seals=True)
    executor = client.producer(job, "q", "r1")
    report = executor.epoch(0)
    report.sent("raw", "s", "n", 1, end_time=5)
    report.received("raw", "s", "n", 1, end_time=5)
    report.report(units=["task 0, attempt 1"])
    with pytest.raises(TrackerError, match="attempt 2") as refused:
        driver.commit(0, units=["task 0, attempt 2"], seal=True)
    assert refused.value.reason == "MISSING_UNITS"
    driver.commit(0, units=["task 0, attempt 1"], seal=True)
    driver.commit(0)
    driver.commit(promises=[Frontier("schedule", 5)])
    assert client.wait_for_end(job, "raw", "s", "n", 5, timeout=30).elements == 1
    driver.commit(promises=[Finish("schedule")])
    assert client.job(job).fronts[0].finished


def test_immediate_entries_take_effect_before_their_epoch_commits(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1", mode="immediate")
    report = producer.epoch(0)
    report.add("raw", "s", "n", xor=0, sent=3, received=3)
    report.close("s", "n")
    report.report(units=["a"])
    assert client.wait_for_end(job, "raw", "s", "n", timeout=30).elements == 3


def test_waiting_for_what_does_not_end_stops_in_time(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    with pytest.raises(TimeoutError, match=r"'n' of scope 's' has not ended on 'raw' within 0\.2 s"):
        client.wait_for_end(job, "raw", "s", "n", timeout=0.2)
    with pytest.raises(TrackerError) as refused:
        client.wait_for_end(job, "nowhere", "s", "n", timeout=30)
    assert refused.value.reason == "UNKNOWN_SEGMENT"


def test_a_drain_is_asked_for_heard_and_cancelled(client: TrackerClient, job: str) -> None:
    assert client.drain(job, "d2", "soon", timeout=timedelta(hours=1)).state is DrainState.PENDING
    assert client.cancel_drain(job, deployment="d2").state is DrainState.CANCELLED
    client.define_job(spec(job, fronts=["schedule"]))
    assert client.drain(job, "d1", "now", timeout=3600).unfinished_fronts == ("schedule",)
    assert client.get_drain(job).state is DrainState.DRAINING
    assert client.cancel_drain(job, drain_id="now").state is DrainState.CANCELLED
    client.drain(job, "d1", "again")
    client.finish_front(job, "schedule")
    assert client.get_drain(job).state is DrainState.DRAINED
    assert [event.kind for event in client.list_events(job, limit=1).events] == [DrainRequested("now")]


def test_a_deployment_hands_over_what_is_open_to_the_next(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job, fronts=["schedule"]))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "s", "n", 1)
    report.report(units=["a"], commit=True)
    drain = client.drain(job, "d1", "release", hand_over=True)
    assert (drain.mode, drain.unbalanced_segments, drain.open_producers) == (DrainMode.HAND_OVER, ("raw",), ("q",))
    with pytest.raises(TrackerError, match="asked for before") as refused:
        client.drain(job, "d1", "finish")
    assert refused.value.reason == "DRAIN_MISMATCH"
    report = producer.epoch(1)
    report.received("raw", "s", "n", 1)
    report.report(units=["b"], commit=True)
    producer.close()
    drain = client.get_drain(job)
    assert (drain.state, drain.open_substreams, drain.open_producers) == (DrainState.DRAINED, 1, ())
    assert client.list_events(job).events[-1].kind == Drained("release", DrainMode.HAND_OVER)
    segments = {"raw": ["more"], "more": []}
    client.define_job(spec(job, fronts=["schedule"], deployment="d2", segments=segments, state_segments=["more"]))
    assert client.job(job).spec.state_segments == ("more",)
    client.finish_front(job, "schedule")
    ended = [event.kind for event in client.list_events(job).events if isinstance(event.kind, Ended)]
    assert [(end.segment, end.by_drain) for end in ended] == [("raw", False), ("more", False)]


def test_operators_end_what_will_not_end(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "s", "n", 1)
    report.report(units=["a"], commit=True)
    client.abandon(job, "s", "n")
    with client.watch(job) as events:
        assert ends(events, 1) == [Ended("raw", "s", "n", None, 1, Reason.ABANDONED, in_flight=1)]
    client.forget_producer(job, "q")
    assert client.job(job).producers == ()
    client.delete_job(job)
    assert job not in client.jobs()


def test_events_are_read_in_ranges_and_filtered(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    for epoch in range(5):
        pass_through(producer, epoch, f"n{epoch}")
    page = client.list_events(job, after_seq=1, up_to_seq=4)
    assert [event.seq for event in page.events] == [2, 3, 4]
    page = client.list_events(job, limit=2, scopes=["elsewhere"])
    assert (page.events, page.last_seq) == ((), 2)
    with pytest.raises(TrackerError) as refused:
        client.list_events(job, log_id="another")
    assert refused.value.reason == "LOG_CHANGED"
    assert "or a backup was restored" in str(refused.value)


def test_a_watch_is_closed_from_another_thread(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    events = client.watch(job)
    with ThreadPoolExecutor() as pool:
        seen = pool.submit(list[Event], events)
        pass_through(client.open_producer(job, "q", "r1"), 0, "n")
        client.wait_for_end(job, "raw", "s", "n", timeout=30)
        while events.last_seq < 1:
            pass
        events.close()
        assert [event.seq for event in seen.result(timeout=30)] == [1]
    assert list(events) == []


def test_a_watch_whose_job_was_deleted_says_so(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    pass_through(client.open_producer(job, "q", "r1"), 0, "n")
    events = client.watch(job)
    assert next(events).seq == 1
    client.delete_job(job, force=True)
    with pytest.raises(TrackerError) as refused:
        next(events)
    assert refused.value.reason in {"UNKNOWN_JOB", "LOG_CHANGED"}
    client.define_job(spec(job))
    with pytest.raises(TrackerError) as refused:
        next(client.watch(job, after_seq=events.last_seq, log_id=events.log_id))
    assert refused.value.reason == "LOG_CHANGED"
    assert list(events) == []
    with pytest.raises(TrackerError) as refused:
        next(client.watch("nobody knows it"))
    assert refused.value.reason == "UNKNOWN_JOB"


def test_a_filtered_watch_advances_past_what_it_does_not_show(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    for number in range(1_500):
        report.add("raw", "s", str(number), xor=0)
        report.close("s", str(number))
    report.add("raw", "wanted", "n", xor=0)
    report.close("wanted", "n")
    report.report(units=["a"], commit=True)
    with client.watch(job, scopes=["wanted"]) as events:
        assert next(events).seq == events.last_seq == 1_501


def test_ids_are_learnt_and_given_up_when_they_hold_no_more(client: TrackerClient, job: str) -> None:
    def fill(producer: Producer, epoch: int, name: str) -> None:
        report = producer.epoch(epoch)
        report.sent("raw", "s", name, 1, end_time=9)
        assert report.report(units=["a"], commit=True).outcome is Outcome.APPLIED

    client.define_job(spec(job, fronts=["schedule"]))
    producer = client.open_producer(job, "q", "r1")
    fill(producer, 0, "n")
    fill(producer, 1, "n")
    [substream] = client.substreams(job)
    assert substream.segments[0].sent == 2

    # The job starts afresh: every id is forgotten.
    client.abandon(job, "s", "n")
    client.drain(job, "d1", "now")
    client.finish_front(job, "schedule")
    assert client.get_drain(job).state is DrainState.DRAINED
    assert client.define_job(spec(job, fronts=["schedule"], deployment="d2")).incarnation == 1
    producer = client.open_producer(job, "q", "r2")
    fill(producer, 2, "n")
    fill(producer, 3, "n")
    [substream] = client.substreams(job)
    assert substream.segments[0].sent == 2

    # Another log altogether.
    client.delete_job(job, force=True)
    client.define_job(spec(job, fronts=["schedule"]))
    producer = client.open_producer(job, "q", "r1")
    fill(producer, 0, "n")
    [substream] = client.substreams(job)
    assert substream.segments[0].sent == 1


def test_an_id_never_hides_another_end_time(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    for epoch in range(2):
        report = producer.epoch(epoch)
        report.sent("raw", "s", "n", 1, end_time=9)
        report.report(units=["a"], commit=True)
    report = producer.epoch(2)
    report.sent("raw", "s", "n", 1, end_time=10)
    with pytest.raises(TrackerError) as refused:
        report.report(units=["a"], commit=True)
    assert refused.value.reason == "END_TIME_CONFLICT"


def test_names_and_ids_may_meet_in_one_report(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "a", "1", 0b001)
    report.sent("raw", "b", "2", 0b010)
    report.report(units=["x"], commit=True)
    report = producer.epoch(1)
    report.sent("raw", "c", "3", 0b100)
    report.received("raw", "b", "2", 0b010)
    report.received("raw", "a", "1", 0b001)
    report.received("raw", "c", "3", 0b100)
    for scope, name in (("b", "2"), ("c", "3"), ("a", "1")):
        report.close(scope, name)
    report.report(units=["x"], commit=True)
    with client.watch(job) as events:
        assert [(end.scope, end.name, end.reason, end.elements) for end in ends(events, 3)] == [
            ("a", "1", "COMPLETE", 1),
            ("b", "2", "COMPLETE", 1),
            ("c", "3", "COMPLETE", 1),
        ]


def test_many_threads_share_a_client(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    together = threading.Barrier(8)

    def work(number: int) -> None:
        producer = client.open_producer(job, f"q{number}", "r1")
        together.wait()
        for epoch in range(20):
            report = producer.epoch(epoch)
            for element in range(10):
                report.sent("raw", "s", f"n{element}", label(number, epoch, element))
            report.report(units=["a"], commit=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert {substream.segments[0].sent for substream in client.substreams(job)} == {8 * 20}


def test_clients_and_producers_travel_by_their_options(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    copy = pickle.loads(pickle.dumps(TrackerClient(client.address, timeout=3.0, retry_for=7.0)))
    assert repr(copy) == f"TrackerClient({client.address!r}, timeout=3.0, retry_for=7.0)"
    assert copy.job(job).spec.job == job
    producer = client.open_producer(job, "q", "r1")
    pass_through(pickle.loads(pickle.dumps(producer)), 0, "n")
    assert client.wait_for_end(job, "raw", "s", "n", timeout=30).elements == 1


def test_a_closed_client_may_be_used_again(shared_server: Server) -> None:
    with TrackerClient(shared_server.address) as client:
        client.server_info()
    assert client.server_info().leader


def test_nobody_there_is_said_with_what_to_do() -> None:
    client = TrackerClient("127.0.0.1:1", retry_for=0.2)
    with pytest.raises(TrackerUnavailable, match=r"tracker serve --listen 127\.0\.0\.1:1"):
        client.jobs()
    with pytest.raises(TrackerUnavailable, match="has not answered"):
        next(client.watch("job"))
    with pytest.raises(TrackerUnavailable, match="has not answered"):
        client.wait_for_end("job", "raw", "s", "n")
    with pytest.raises(TrackerUnavailable, match="has not answered"):
        client.delete_job("job")


def test_a_tracker_that_runs_and_is_slow_is_not_to_be_started(tmp_path: Path) -> None:
    server = Server(tmp_path, "memory")
    client = TrackerClient(server.address, timeout=0.5, retry_for=0)
    client.jobs()
    server.freeze()
    for call in (
        client.jobs,
        lambda: asyncio.run(client.await_progress("job", "raw", 1)),
        lambda: client.delete_job("job"),
    ):
        with pytest.raises(TrackerUnavailable, match=r"DEADLINE_EXCEEDED.* The connection to it stands") as failed:
            call()
        assert "tracker serve" not in str(failed.value)
    server.stop()


def test_who_takes_connections_and_says_nothing_may_be_no_tracker() -> None:
    with Silence() as silent, pytest.raises(TrackerUnavailable, match=r"DEADLINE_EXCEEDED.*tracker serve --listen"):
        TrackerClient(silent.address, timeout=0.5, retry_for=0).jobs()


def test_where_the_client_is_there_need_be_no_server() -> None:
    code = (
        "import sys, tracker.client, tracker.cli.main\n"
        "server = ('tracker.core', 'tracker.journal', 'tracker.server', 'msgpack')\n"
        "print([name for name in server if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_with_committed_ends_nothing_uncommitted_brings_an_end(client: TrackerClient, job: str) -> None:
    client.define_job(replace(spec(job, fronts=["schedule"]), committed_ends=True))
    assert client.job(job).spec.committed_ends
    with pytest.raises(TrackerError, match="open producer 'q' with mode STAGED") as refused:
        client.open_producer(job, "q", "r1", mode="immediate")
    assert refused.value.reason == "MODE_CONFLICT"
    producer = client.open_producer(job, "q", "r1")
    report = producer.epoch(0)
    report.sent("raw", "s", "n", 1, end_time=5)
    report.received("raw", "s", "n", 1, end_time=5)
    report.frontier("schedule", 5)
    report.report(units=["a"])
    assert client.explain(job, "s", "n").substream is None
    producer.commit(0)
    assert client.wait_for_end(job, "raw", "s", "n", 5, timeout=30).elements == 1


@pytest.mark.parametrize(
    ("feature", "ask"),
    [
        ("COMMITTED_ENDS", lambda client, job: client.define_job(replace(spec(job), committed_ends=True))),
        ("HAND_OVER", lambda client, job: client.drain(job, "d1", "now", hand_over=True)),
    ],
)
def test_an_earlier_tracker_is_not_asked_for_what_it_would_not_notice(
    client: TrackerClient,
    job: str,
    feature: str,
    ask: Callable[[TrackerClient, str], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The shared tracker plays the earlier release: it lacks a feature of tomorrow."""
    client.define_job(spec(job))
    monkeypatch.setattr(f"tracker.client.client.{feature}", "of tomorrow")
    with pytest.raises(TrackerError, match=r"is of an earlier release, which would .*; upgrade it first") as refused:
        ask(client, job)
    assert refused.value.reason == "UNSUPPORTED"
    assert not client.job(job).spec.committed_ends
    assert client.get_drain(job).drain_id == ""


def test_committed_ends_are_refused_while_a_producer_may_still_bring_others(client: TrackerClient, job: str) -> None:
    client.define_job(spec(job))
    tentative = client.open_producer(job, "q", "r1", mode="immediate")
    with pytest.raises(TrackerError, match="let it commit and close its run, or forget it") as refused:
        client.define_job(replace(spec(job), committed_ends=True))
    assert refused.value.reason == "MODE_CONFLICT"
    tentative.close()
    client.define_job(replace(spec(job), committed_ends=True))


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "tracker", "http://127.0.0.1:7654", "tracker:0", "tracker:65536", "tracker:name", ":7654"),
        *("::1:7654", "[::1]", "dns:///tracker", "ipv4:10.0.0.1:1,10.0.0.2:", "a:7654+b", "a:7654,b"),
    ],
)
def test_an_address_without_a_port_is_refused_where_it_is_given(address: str) -> None:
    """gRPC would call port 443 for a minute, or the port modulo 65536."""
    with pytest.raises(ValueError, match=r"is not an address; name the tracker as HOST:PORT, such as 127\.0\.0\.1"):
        TrackerClient(address)


@pytest.mark.parametrize("address", ["tracker:7654", "[::1]:7654", "unix:/t", "dns:///tracker:7654", "ipv6:[::1]:1"])
def test_an_address_with_a_port_is_taken_in_each_form(address: str) -> None:
    TrackerClient(address).close()
