"""One job over several trackers announces what it would over one, and whoever comes with other servers is refused."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import count, islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.client.processes import Server
from tests.scale.test_spread import listed
from tracker.cli.main import main
from tracker.client import (
    Advanced,
    Drained,
    DrainRequested,
    DrainState,
    Ended,
    Event,
    Finish,
    JobSpec,
    Late,
    Mode,
    Outcome,
    Position,
    Producer,
    Reason,
    Report,
    ShardedClient,
    ShardedProducer,
    ShardedWatch,
    TrackerClient,
    TrackerError,
    Watch,
    label,
)
from tracker.contract.spec import OrderingWord as Ordering

EPOCHS = 5
OVER = 2**63 - 1
FRONTS = ["f0", "f1"]

_programs = count()


def spec(job: str, ordering: Ordering = "none", deployment: str = "d1") -> JobSpec:
    """Return two segments, one after the other, and two fronts."""
    segments = {"up": ["down"], "down": []}
    return JobSpec(job=job, deployment=deployment, segments=segments, fronts=FRONTS, ordering=ordering, progress=True)


def play(client: TrackerClient | ShardedClient, job: str, seed: int, mode: Mode) -> None:
    """Play two producers of windows and of substreams without end; each passes on what either has sent.

    Reports are made twice, elements come late or never, runs are superseded before and after what they staged was
    committed.
    """
    chance = random.Random(seed)
    flying: list[tuple[str, str, str, int | None]] = []
    runs: dict[str, Producer | ShardedProducer] = {}
    for epoch in range(EPOCHS):
        for front in FRONTS:
            received = [element for element in flying if chance.random() < 0.8 or epoch == EPOCHS - 1]
            flying = [element for element in flying if element not in received]
            sent = [("down", *element[1:]) for element in received if element[0] == "up"]
            for number in range(chance.randrange(10) if epoch < EPOCHS - 2 else 0):
                window = chance.randrange(max(0, epoch - 2), epoch + 3)
                end = None if chance.random() < 0.1 else window
                sent.append(("up", chance.choice("abc"), f"{window}, {end}, {front}, {epoch}, {number}"[:5], end))
            sent = list(dict.fromkeys(sent))
            lost = sent[:1] if chance.random() < 0.1 else []

            def said(report: Report) -> Report:
                for segment, scope, name, end in received:  # noqa: B023
                    report.received(segment, scope, name, label(segment, scope, name), end)
                for segment, scope, name, end in sent:  # noqa: B023
                    report.sent(segment, scope, name, label(segment, scope, name), end)
                report.frontier(front, epoch - 1)  # noqa: B023
                if epoch == EPOCHS - 1:  # noqa: B023
                    report.finish(front)  # noqa: B023
                return report

            if front not in runs or chance.random() < 0.3:
                runs[front] = client.open_producer(job, front, f"r{epoch}", mode, resume_epoch=epoch)
            run = runs[front]
            for _ in range(chance.choice([1, 1, 2])):
                said(run.epoch(epoch)).report(["unit"])
            if chance.random() < 0.2:  # the engine has not committed it: it is replayed
                run = runs[front] = client.open_producer(job, front, f"r{epoch}, again", mode, resume_epoch=epoch)
                said(run.epoch(epoch)).report(["unit"])
            if chance.random() < 0.2:  # the engine has, and the tracker was not told
                runs[front] = client.open_producer(job, front, f"r{epoch}, next", mode, resume_epoch=epoch + 1)
            else:
                run.commit(epoch, units=["unit"])
            flying += [element for element in sent if element not in lost]
    for run in runs.values():
        run.close()


def until_drained(watch: Watch | ShardedWatch) -> list[Event]:
    """Return all events, up to the one that announces that the job is drained."""
    events: list[Event] = []
    while not (events and isinstance(events[-1].kind, Drained)):
        events.append(next(watch))
    watch.close()
    return events


def finished(client: TrackerClient | ShardedClient, job: str) -> list[Event]:
    """Abandon what was lost, and drain the job. Return its events."""
    # In the order of their end times: what is whole on a segment, and only held by an earlier one, ends as COMPLETE.
    for substream in sorted(client.substreams(job), key=lambda each: (each.end_time is None, each.end_time)):
        if any(account.sent != account.received or account.xor for account in substream.segments):
            client.abandon(job, substream.scope, substream.name)
    assert client.drain(job, "d1", "drain").state is DrainState.DRAINED
    return until_drained(client.watch(job))


def told(events: list[Event]) -> Counter[object]:
    return Counter(event.kind for event in events if isinstance(event.kind, Ended | Late))


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    rules=st.sampled_from([("none", "staged"), ("none", "immediate"), ("scope", "staged"), ("global", "staged")]),
)
@example(seed=2_327_302_155, rules=("global", "staged"))
def test_several_trackers_announce_what_one_would(three: list[Server], seed: int, rules: tuple[Ordering, Mode]) -> None:
    ordering, mode = rules
    job = f"program-{next(_programs)}"
    with TrackerClient(three[0].address) as one, ShardedClient(listed(three), ordering) as several:
        one.define_job(spec(f"{job}-one", ordering))
        several.define_job(spec(job, ordering))
        play(one, f"{job}-one", seed, mode)
        play(several, job, seed, mode)
        if ordering != "global":  # where what hangs holds all others of its server
            assert several.job(job).open_substreams == one.job(f"{job}-one").open_substreams
        assert several.job(job).in_flight == one.job(f"{job}-one").in_flight
        alone, together = finished(one, f"{job}-one"), finished(several, job)
    assert told(together) == told(alone)
    assert {event.kind for event in together if isinstance(event.kind, Advanced)} >= {
        Advanced("up", OVER),
        Advanced("down", OVER),
    }
    assert sum(isinstance(event.kind, DrainRequested) for event in together) == 1
    ends = [event.kind for event in together if isinstance(event.kind, Ended)]
    given_up = {(end.scope, end.name) for end in ends if end.reason is not Reason.COMPLETE}
    waiting = [end for end in ends if end.end_time is not None and (end.scope, end.name) not in given_up]
    for segment in ("up", "down"):
        here = [end for end in waiting if end.segment == segment]
        if ordering == "global":
            assert here == sorted(here, key=lambda end: (end.end_time, end.scope, end.name))
        if ordering == "scope":
            for scope in "abc":
                times = [end.end_time or 0 for end in here if end.scope == scope]
                assert times == sorted(times)


def test_an_end_waits_for_the_shards_that_are_not_as_far(three: list[Server], job: str) -> None:
    with ShardedClient(listed(three), "global") as client:
        client.define_job(spec(job, "global"))
        watch = client.watch(job)
        producer = client.open_producer(job, "q", "r1")
        report = producer.epoch(0)
        for name in range(40):  # on every shard, a window each; one of them hangs
            report.sent("up", "s", f"{name}", label(name), end_time=name)
            if name != 20:
                report.received("up", "s", f"{name}", label(name), end_time=name)
        report.frontier("f0", 100)
        report.frontier("f1", 100)
        report.report(["u"], commit=True)
        ended = []
        for event in watch:
            if isinstance(event.kind, Advanced) and event.kind.segment == "down":
                assert event.kind.time == 19
                break
            if isinstance(event.kind, Ended) and event.kind.segment == "up":
                ended.append(event.kind.end_time)
        assert ended == list(range(20))
        with client.watch(job, Position(**json.loads(json.dumps(asdict(watch.position))))) as other:
            report = producer.epoch(1)
            report.received("up", "s", "20", label(20), end_time=20)
            report.report(["u"], commit=True)
            for watching in (watch, other):
                ends = (event.kind for event in watching if isinstance(event.kind, Ended))
                assert [end.end_time for end in islice(ends, 40) if end.segment == "up"] == list(range(20, 40))
        watch.close()


def test_a_watch_is_closed_from_another_thread(three: list[Server], job: str) -> None:
    with ShardedClient(listed(three)) as client, ThreadPoolExecutor(1) as pool:
        client.define_job(spec(job))
        watch = client.watch(job)
        waiting = pool.submit(list[Event], watch)
        threading.Event().wait(0.1)
        watch.close()
        assert waiting.result() == []


def test_client_and_run_travel_to_other_processes(three: list[Server], job: str) -> None:
    with ShardedClient(listed(three)) as client:
        client.define_job(spec(job))
        run = client.open_producer(job, "q", "r1")
        report = pickle.loads(pickle.dumps(run)).epoch(0)
        report.sent("up", "s", "n", 1)
        report.report(["a"])
        report = pickle.loads(pickle.dumps(client)).producer(job, "q", "r1").epoch(0)
        report.received("up", "s", "n", 1)
        report.report(["b"])
        run.commit(0, units=["a", "b"])
        assert [substream.segments[0].received for substream in client.substreams(job)] == [1]
        with pytest.raises(TrackerError, match="MISSING_UNITS"):
            run.commit(1, units=["c"])


def test_a_report_of_some_shards_is_made_whole_by_repetition(three: list[Server], job: str) -> None:
    with ShardedClient(listed(three)) as client:
        client.define_job(spec(job))
        run = client.open_producer(job, "q", "r1")
        first = TrackerClient(three[0].address)
        (shard,) = (name for name in first.jobs() if name.startswith(f"{job}."))
        first.producer(shard, "q", "r1").epoch(0).report(["a"])  # as far as the first came before it died
        report = run.epoch(0)
        for name in range(20):
            report.sent("up", "s", f"{name}", label(name))
        assert report.report(["a"]).outcome is Outcome.APPLIED
        assert report.report(["a"]).outcome is Outcome.DUPLICATE
        assert report.report(["a", "b"]).duplicate_units == ("a",)


def test_a_token_waits_for_the_shards_of_its_substreams(three: list[Server], job: str) -> None:
    client = ShardedClient(listed(three))
    client.define_job(spec(job))
    till, bank = (client.open_producer(job, name, run="1") for name in ("till", "bank"))
    days = [f"day {number}" for number in range(12)]
    sent, received = till.epoch(), bank.epoch()
    for day in days:
        sent.sent("down", "berlin", day, label(day), end_time=7)
        received.received("down", "berlin", day, label(day), end_time=7)
    sent.report(commit=True)
    with pytest.raises(TimeoutError):
        client.wait_for(sent.token(), timeout=0.1)
    received.report(commit=True)
    assert client.wait_for(str(sent.token()), timeout=60).complete
    assert asyncio.run(client.await_token(sent.token(), timeout=60)).complete
    with pytest.raises(ValueError, match="the token is of 3 shards, but"):
        ShardedClient(listed(three[:2])).wait_for(sent.token())


@pytest.mark.parametrize("ordering", ["none", "global"])
def test_other_servers_or_another_ordering_are_refused(three: list[Server], job: str, ordering: Ordering) -> None:
    with ShardedClient(listed(three), "scope") as client:
        client.define_job(spec(job, "scope"))
        assert not ShardedClient(listed(three[::-1]), "scope").define_job(spec(job, "scope")).created
        for other in (ShardedClient(listed(three), ordering), ShardedClient(listed(three[1:]), ordering)):
            with pytest.raises(TrackerError, match=r"has job .*All clients of a job need the same"):
                other.define_job(spec(job, ordering))
            with pytest.raises(TrackerError, match="UNKNOWN_JOB"):
                other.open_producer(job, "q", "r1")
            assert job not in other.jobs()
        assert job in client.jobs()
        client.delete_job(job)
        with pytest.raises(TrackerError, match="UNKNOWN_JOB"):
            client.delete_job(job)
        assert ShardedClient(listed(three[1:]), ordering).define_job(spec(job, ordering)).created


def test_a_job_that_is_not_sharded_is_not_made_a_second_time(three: list[Server], job: str) -> None:
    TrackerClient(three[2].address).define_job(spec(job))
    with pytest.raises(TrackerError, match="OTHER_SERVERS"):
        ShardedClient(listed(three)).define_job(spec(job))


def test_a_spec_that_shards_cannot_keep_is_refused(three: list[Server], job: str) -> None:
    with ShardedClient(listed(three), "global") as client:
        with pytest.raises(ValueError, match="give a sharded job's ordering to both"):
            client.define_job(spec(job, "scope"))
        with pytest.raises(ValueError, match="needs progress=True and fronts"):
            client.define_job(replace(spec(job, "global"), progress=False))
        assert job not in client.jobs()


def test_a_deployment_is_taken_by_all_shards_or_none(three: list[Server], job: str) -> None:
    with ShardedClient(listed(three)) as client:
        client.define_job(spec(job))
        run = client.open_producer(job, "q", "r1")
        other = replace(spec(job, deployment="d2"), segments={"up": []})
        with pytest.raises(TrackerError, match="INCOMPATIBLE_GRAPH"):
            client.define_job(other)
        assert client.define_job(spec(job, deployment="d2")).incarnation == 0
        client.drain(job, "d2", "drain")
        with pytest.raises(TrackerError, match="DRAIN_IN_PROGRESS: 0 of the 3 shards"):
            client.define_job(replace(other, deployment="d3"))
        run.commit(promises=[Finish(front) for front in FRONTS])
        assert client.get_drain(job).state is DrainState.DRAINED
        assert client.define_job(replace(other, deployment="d3")).incarnation == 1


def test_a_drain_that_one_shard_cannot_take_back_goes_on_everywhere(three: list[Server], job: str) -> None:
    with ShardedClient(listed(three)) as client:
        client.define_job(spec(job))
        client.drain(job, "d1", "drain")
        assert client.cancel_drain(job).state is DrainState.CANCELLED
        client.drain(job, "d1", "drain")
        last = TrackerClient(max(server.address for server in three))
        (shard,) = (name for name in last.jobs() if name.startswith(f"{job}."))
        last.finish_front(shard, "f0")  # it has come this far when the drain is taken back
        with pytest.raises(TrackerError, match="DRAIN_IN_PROGRESS"):
            client.cancel_drain(job)
        assert client.get_drain(job).state is DrainState.DRAINING


def test_the_command_line_shows_a_sharded_job_as_one(
    three: list[Server], job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ShardedClient(listed(three)) as client:
        client.define_job(spec(job))
        run = client.open_producer(job, "q", "r1")
        report = run.epoch(0)
        for name in range(20):
            report.sent("up", "s", f"{name}", label(name))
        report.report(["u"], commit=True)
    servers = ["--server", listed(three), "--sharded", "none"]
    assert main(["job", job, *servers, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["in_flight"] == 20
    assert main(["substreams", job, *servers]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 21
    assert main(["explain", job, "s", "7", *servers]) == 0
    assert "segment 'up': 1 in flight" in capsys.readouterr().out
    assert main(["watch", job, "--after", "1", *servers]) == 2


@pytest.mark.thorough
def test_a_client_with_other_patience_keeps_to_the_lowest_limits(three: list[Server], tmp_path: Path) -> None:
    low = Server(tmp_path, "memory", "--limit", "max_promises=7")
    try:
        servers = ",".join([three[0].address, low.address])
        client = ShardedClient(servers, "scope").with_patience(5, 0)
        assert repr(client) == f"ShardedClient({servers!r}, ordering='scope', timeout=5, retry_for=0)"
        assert client.command_options == f"--server {servers} --sharded scope"
        limits = client.server_info().limits
        assert limits["max_promises"] == 7
        assert limits == {**TrackerClient(three[0].address).server_info().limits, "max_promises": 7}
    finally:
        low.kill()
