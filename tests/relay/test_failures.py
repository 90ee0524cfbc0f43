"""Rules for when the relay dies, the tracker, or both: nothing is lost, nothing counts twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.client.conftest import spec
from tests.client.processes import Line, Server
from tests.relay.node import JOB, NAMES, PRODUCER, RUN
from tests.relay.processes import Node, Relay, messages
from tracker.client import Outcome, TrackerClient, label


def kill(victim: str, server: Server, relay: Relay) -> None:
    """Kill the relay, the tracker or both by SIGKILL, and start the tracker again."""
    if victim != "tracker":
        relay.kill()
    if victim != "relay":
        server.restart()
    if victim != "tracker":
        relay.start()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what must come; the test's own time limit is the only one."""
    while not condition():
        time.sleep(0.01)


def check_exact(client: TrackerClient, done: list[int]) -> None:
    """Assert that the tracker has counted what the workers have done, each element once."""
    units = [(worker, unit) for worker, count in enumerate(done) for unit in range(count)]
    for substream in client.substreams(JOB):
        [account] = substream.segments
        name = int(substream.name.removeprefix("n"))
        xor = 0
        if name == NAMES - 1:
            for worker, unit in units:
                xor ^= label(worker, unit, name)
        assert account.sent == len(units)
        assert account.received == (0 if name == NAMES - 1 else len(units))
        assert account.xor == xor


@pytest.mark.thorough
@pytest.mark.parametrize(
    "victim", [*(pytest.param(each, marks=pytest.mark.slow) for each in ("relay", "tracker")), "both"]
)
def test_kill_9_in_mid_load(victim: str, server: Server, relay: Relay, tmp_path: Path) -> None:
    client = TrackerClient(server.address)
    client.define_job(spec(JOB))
    producer = client.open_producer(JOB, PRODUCER, RUN)
    node = Node(tmp_path, server, 4, {"TRACKER_RELAY": relay.address})

    def newest() -> int:
        return max(client.job(JOB).producers[0].staged_epochs, default=-1)

    for _ in range(3):
        before = newest()
        until(lambda: newest() > before + 6)  # noqa: B023
        kill(victim, server, relay)
    before = newest()
    until(lambda: newest() > before + 12)
    ended = sorted(node.stop(), key=lambda said: said["worker"])
    done = [said["reports"] for said in ended]
    producer.commit(newest())
    check_exact(client, done)
    assert all(set(said["outcomes"]) <= {"APPLIED", "DUPLICATE"} for said in ended)
    server.kill()
    assert messages(tmp_path)[PRODUCER] < sum(done)


@pytest.mark.parametrize("heard", ["applied", "not yet"])
def test_what_a_dead_relay_had_sent_counts_once(
    heard: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay's callers report to the tracker themselves, which has its message already, or gets it now."""
    line = Line(server.address)
    relay = Relay(tmp_path, line.address)
    monkeypatch.setenv("TRACKER_RELAY", relay.address)
    client = TrackerClient(server.address)
    client.define_job(spec(JOB))
    client.open_producer(JOB, PRODUCER, RUN, mode="immediate")
    far = TrackerClient(line.address)

    def send(unit: int) -> Outcome:
        report = far.producer(JOB, PRODUCER, RUN).epoch(0)
        report.sent("raw", "s", "n", label(unit))
        return report.report(units=[str(unit)]).outcome

    def sent() -> int:
        return sum(substream.segments[0].sent for substream in client.substreams(JOB))

    assert send(0) is Outcome.APPLIED
    line.hold_answers()
    if heard == "not yet":
        server.freeze()
    with ThreadPoolExecutor(5) as pool:
        reports = [pool.submit(send, unit) for unit in range(1, 6)]
        if heard == "applied":
            until(lambda: sent() == 6)
        relay.kill()
        line.cut()
        server.thaw()
        outcomes = {report.result() for report in reports}
    assert outcomes == {Outcome.DUPLICATE} if heard == "applied" else outcomes <= {Outcome.APPLIED, Outcome.DUPLICATE}
    assert sent() == 6
    [substream] = client.substreams(JOB)
    xor = 0
    for unit in range(6):
        xor ^= label(unit)
    assert substream.segments[0].xor == xor
    line.close()


@pytest.mark.thorough
def test_workers_find_their_relay_by_themselves(server: Server, tmp_path: Path) -> None:
    relay = Relay(tmp_path, server.address, listen="")
    client = TrackerClient(server.address)
    client.define_job(spec(JOB))
    producer = client.open_producer(JOB, PRODUCER, RUN)
    node = Node(tmp_path, server, 8, {})
    until(lambda: max(client.job(JOB).producers[0].staged_epochs, default=-1) >= 2)
    done = [said["reports"] for said in sorted(node.stop(), key=lambda said: said["worker"])]
    assert relay.stop() == 0
    producer.commit(max(done))
    check_exact(client, done)
    assert f"msg=stopped reports={sum(done)} " in relay.log  # every one went over it
    server.kill()
    assert messages(tmp_path)[PRODUCER] < sum(done)  # how many it combines depends on how busy the tracker is
